"""Times for people to read. Decisions do not compare them; see streamkeeper.flows.leases."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """Return the current time in UTC, to the second, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def in_iso(seconds: float) -> str:
    """Return a time in seconds since 1970 in UTC, to the second, in ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def ms_in_iso(ms: float) -> str:
    """Return a time in milliseconds since 1970 in UTC, to the millisecond, in ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def in_seconds(at: str) -> float | None:
    """Return a time in ISO 8601 in seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None


def describe_age(seconds: float) -> str:
    """Return an age as text: ``12 s``, ``3 min``, ``5 h``, ``4 d``."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
