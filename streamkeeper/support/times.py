"""Times for people to read. Decisions do not compare them; see streamkeeper.flows.leases."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

MOMENT = "a time in ISO 8601"
Moment = Annotated[str, MOMENT]
"""A time in ISO 8601 with its time zone: :func:`streamkeeper.support.json_values.read_as` takes no other
text, so ``datetime.fromisoformat`` takes what it read, and any two can be compared.
"""


def now() -> str:
    """Return the current time in UTC, to the second, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def in_iso(seconds: float, timespec: str = "seconds") -> str:
    """Return epoch seconds in ISO 8601, UTC, to the second; as seconds where no calendar has them."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


def ms_in_iso(ms: float) -> str:
    """Return a time in milliseconds since 1970 as :func:`in_iso`, to the millisecond."""
    return in_iso(ms / 1000, "milliseconds")


def in_seconds(at: str) -> float | None:
    """Return a time in ISO 8601 in seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return None


def describe_age(seconds: float) -> str:
    """Return an age as text: ``12 s``, ``3 min``, ``5 h``, ``4 d``."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
