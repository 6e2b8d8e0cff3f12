"""Holds: a flow with any hold must not run. Each owner puts and removes only its own.

Owners are ``park`` (the driver, after a failure that a restart cannot fix), ``person-<name>`` and
``recovery-<id>``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from streamkeeper.errors import RequestError, StorageError, check_reason
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.manifest import UNREADABLE
from streamkeeper.storage import Storage, read_json, to_json
from streamkeeper.support.times import now

PARK = "park"
PERSON = "person-"
"""Prefix of the owners of persons' holds."""
SECONDS = "seconds"
"""Name, in the details of a hold, of the time after which it ends."""
_DETAIL_TYPES: dict[str, type] = {
    **dict.fromkeys(("condition", "sql_state", "meaning", "fingerprint", "recovery"), str),
    "context": dict,
    "stateful": bool,
}
"""Types of the details of holds; what has another is left out."""
_OWNER = re.compile(r"park|(person|recovery)-[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}")


@dataclass(frozen=True)
class Hold:
    """One hold. ``details`` of a park hold describe the failure: see
    :class:`streamkeeper.drivers.failures.Failure`. Those of a hold that ends by itself have the ``seconds``
    after which it does.
    """

    owner: str
    reason: str
    by: str
    at: str
    details: dict[str, Any] = field(default_factory=dict)


def person(name: str) -> str:
    """Return the owner of a person's hold: the name, or a valid file name made from it."""
    # A changed name gets a hash of the original, so that two persons never share a hold.
    plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", name).lstrip("_.+-")[:100] or "someone"
    return (
        f"{PERSON}{plain}"
        if plain == name
        else f"{PERSON}{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )


def recovery(recovery_id: str) -> str:
    """Return the owner of a recovery's hold."""
    return f"recovery-{recovery_id}"


def put(
    home: FlowHome,
    owner: str,
    reason: str,
    by: str,
    details: dict[str, Any] | None = None,
    *,
    seconds: float | None = None,
) -> Hold:
    """Put a hold; an earlier one of the same owner is replaced.

    :param seconds: after which :func:`end_overdue` removes it; None for never.
    :raises RequestError: the owner is not one of the three kinds, or a person's reason is too long.
    """
    _check(owner)
    if owner.startswith(PERSON):
        check_reason(reason)
    if seconds is not None:
        ends = (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat(timespec="minutes")
        reason, details = f"{reason} (until {ends})", {**(details or {}), SECONDS: seconds}
    hold = Hold(owner, reason, by, now(), details or {})
    home.storage.overwrite(home.hold(owner), to_json(asdict(hold)))
    kind = Kind.PARKED if owner == PARK else Kind.HELD
    number = hold.details.get("generation")
    events.note(home, kind, reason, _occasion(owner, hold.at), by=by, generation=number)
    return hold


def release(home: FlowHome, owner: str, by: str = "") -> bool:
    """Remove one owner's hold; return whether there was one.

    :param by: who asks for it.
    :raises RequestError: the owner is not one of the three kinds.
    """
    _check(owner)
    content = home.storage.read(home.hold(owner))
    if content is not None:
        # Noted first: a release that is killed in between is made again, and finds it noted.
        mark = hashlib.sha256(content).hexdigest()
        events.note(home, Kind.RELEASED, f"the {_in_words(owner)}", _occasion(owner, mark), by=by)
    home.storage.remove(home.hold(owner))
    return content is not None


def end_overdue(home: FlowHome, moment: float) -> list[str]:
    """Remove the holds whose time is over, and return their owners.

    :param moment: the present by the storage's clock, in seconds since 1970. The age of a hold is that of its
        file, so that no two clocks are compared.
    """
    over = [
        hold.owner
        for hold in all_of(home)
        if (seconds := hold.details.get(SECONDS)) is not None
        and (put_at := home.storage.modified(home.hold(hold.owner))) is not None
        and moment - put_at >= float(seconds)
    ]
    return [owner for owner in over if release(home, owner, "its time was over")]


def _in_words(owner: str) -> str:
    """Return what an owner has put: a park, or the hold of a person or of a recovery."""
    if owner == PARK:
        return owner
    kind, _, name = owner.partition("-")
    return f"hold of {name}" if owner.startswith(PERSON) else f"hold of the {kind} {name}"


def _occasion(owner: str, mark: str) -> list[str]:
    """Return what identifies a hold among events: a recovery holds a flow once, however often it puts it."""
    return [owner] if owner.startswith(recovery("")) else [owner, mark]


def all_of(home: FlowHome) -> list[Hold]:
    """Read every hold of a flow, sorted by owner.

    :raises StorageError: one of them cannot be read, so the flow must not run.
    """
    holds = (_read(home, owner) for owner in home.owners())
    return [hold for hold in holds if hold is not None]


def lifted_by(hold: Hold, present: str) -> bool:
    """Return whether a hold is a park of another declaration: the present one is tried once. One that cannot
    be read lifts none, as it would only be parked again.

    :param present: the fingerprint of the present declaration.
    """
    failed = hold.details.get("fingerprint")
    return hold.owner == PARK and failed is not None and present not in (failed, UNREADABLE)


def parked(home: FlowHome) -> Hold | None:
    """Read the park hold; None if the flow is not parked."""
    return _read(home, PARK)


def parked_flows(storage: Storage, names: Sequence[str]) -> tuple[str, ...]:
    """Return the parked flows among some, all by full name; empty if the storage cannot be read."""
    try:
        parked = of_each(storage, names, lambda home: PARK in home.owners())
    except StorageError:
        return ()
    return tuple(name for name, is_parked in zip(names, parked, strict=True) if is_parked)


def _read(home: FlowHome, owner: str) -> Hold | None:
    value = read_json(home.storage, home.hold(owner))
    if value is None:
        return None
    try:
        hold = Hold(**value)
    except TypeError as error:
        raise StorageError(
            f"{home.storage.path(home.hold(owner))} is not a hold: {error}. Remove the file if"
            f" {home.full_name} may run."
        ) from error
    field_texts = {name: str(text) for name, text in asdict(hold).items() if name != "details"}
    details = hold.details if isinstance(hold.details, dict) else {}
    details = {name: value for name, value in details.items() if _is_of_type(name, value)}
    return Hold(
        **{**field_texts, "reason": field_texts["reason"].strip() or "no reason is given"}, details=details
    )


def _is_of_type(name: str, value: object) -> bool:
    """Return whether a detail has the type that its readers expect; a person may have changed the file."""
    if name == "operators":
        return isinstance(value, list) and all(isinstance(operator, str) for operator in value)
    return value is None or isinstance(value, _DETAIL_TYPES.get(name, object))


def _check(owner: str) -> None:
    if not _OWNER.fullmatch(owner):
        raise RequestError(
            f"A hold cannot be owned by {owner!r}. Allowed are park, person-<name> and recovery-<id>."
        )
