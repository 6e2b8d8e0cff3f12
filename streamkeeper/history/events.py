"""Events of a pipeline: what happened to its flows, once each, in order.

{state}/ledger/events/<pipeline>/new/<id>.json       one event: immutable
{state}/ledger/events/<pipeline>/<time>-<hash>.json  many events, up to that time: immutable, named by its
                                                     content

An event's id is made from its occasion, so that a writer that is killed and runs again writes no second one.
The monitor folds new events into segments: it writes a segment, and then removes what it holds. A reader
takes new events first, segments after, and each id once. So it misses none and tells none twice, whoever
folds meanwhile. The oldest segments are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Protocol

from streamkeeper.errors import FileTooLarge
from streamkeeper.manifest import names
from streamkeeper.manifest.names import Names
from streamkeeper.redaction import redact_text
from streamkeeper.storage import Storage
from streamkeeper.support.json_values import MOST_READ, parse, read_as
from streamkeeper.support.times import in_iso

FOLDER = "ledger/events"
FOLD = 32
"""New events that are folded together: fewer are read one by one."""
SEGMENT = 1_000
"""Events from which a segment is left as it is."""
MIN_EVENTS = 10_000
"""Newest events of a pipeline that are kept at least; at most a segment more."""
LONGEST = 2_000
"""Letters of an event's text that are kept."""
POLL_SECONDS = 2.0

log = logging.getLogger(__name__)


class Kind(StrEnum):
    """What happened."""

    STARTED = "started"
    """A driver took the flow's lease."""
    COMMITTED = "committed"
    """A driver committed its first batch."""
    STOPPED = "stopped"
    """A driver left its lease; a killed one does not."""
    RETRIED = "retried"
    """A driver ended by a failure, and its supervisor tries again: the deepest cause, with the file, the
    expression or the line of code.
    """
    PARKED = "parked"
    """A failure that a restart cannot fix stopped the flow."""
    HELD = "held"
    """A hold was put on the flow."""
    RELEASED = "released"
    """A hold, or a park, was removed."""
    CHANGE_SEEN = "change-seen"
    """The declaration changed, and is tried."""
    CHANGE_REFUSED = "change-refused"
    """It does not fit, and the flow runs on without it."""
    CHANGE_AWAITS = "change-awaits"
    """It fits, and a person must accept it."""
    CHANGE_READY = "change-ready"
    """It fits, and the driver that tried it takes over."""
    CHANGE_ACCEPTED = "change-accepted"
    """A person accepted it."""
    CHANGE_TAKEN = "change-taken"
    """A driver runs it."""
    SCHEMA_CHANGED = "schema-changed"
    """The columns of the flow's table changed."""
    TIED = "tied"
    """Upserts of AUTO CDC have the sequence of a delete of their key, which wins, or of another upsert with
    other values, of which the larger row counts. Noted for the first such batch of a generation.
    """
    FILES_SKIPPED = "files-skipped"
    """Files of a source changed after they were read, or have names that Spark cannot open."""
    SKIPPED = "skipped"
    """Commits of a Delta source that changed rows were passed over, as declared: which, and at most how many
    rows they added or changed.
    """
    GENERATION = "generation"
    """The flow's next generation was decided."""
    ALERT = "alert"
    """An alert was recorded, and is sent to the pipeline's notifiers."""
    RECOVERED = "recovered"
    """The flow commits again after a trouble."""
    RECOVERY_PLANNED = "recovery-planned"
    """A recovery was planned."""
    RECOVERY_APPROVED = "recovery-approved"
    """Its plan was approved."""
    STEP_BEGAN = "step-began"
    """A step of a recovery began."""
    STEP_DONE = "step-done"
    """A step of a recovery is done."""
    STEP_FAILED = "step-failed"
    """A step of a recovery failed."""
    NAME_STALE = "name-stale"
    """A recovery changed a table and could not write its name in the session catalog: the next start of
    a flow that writes the table does.
    """
    RECOVERY_FINISHED = "recovery-finished"
    """The last step of a recovery is done."""
    RECOVERY_GIVEN_UP = "recovery-given-up"
    """A recovery was rejected, or abandoned."""
    UNREADABLE = "unreadable"
    """A file of the log is damaged: the text names it."""


@dataclass(frozen=True)
class Event:
    """One event. ``at`` is in seconds since 1970, by the clock of who noted it.

    ``flows`` are full names (``pipeline.flow``) as they were then: one, or those of a recovery; none where it
    concerns a table alone. ``by`` is a person, or the part of Streamkeeper that did it. ``epoch`` is the
    lease epoch of the driver, ``generation`` the flow's, ``recovery`` the id of the recovery; None where that
    does not apply.
    """

    id: str
    at: float
    kind: str
    flows: tuple[str, ...]
    text: str
    by: str = ""
    generation: int | None = None
    epoch: int | None = None
    recovery: str | None = None

    @property
    def flow(self) -> str:
        """The flows, as text."""
        return ", ".join(self.flows)

    def to_json(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {**asdict(self), "flow": self.flow}

    def __str__(self) -> str:
        """Return the event as the line that command line, page and alerts show."""
        moment = in_iso(self.at).replace("T", " ").removesuffix("+00:00")
        by = f" (by {self.by})" if self.by else ""
        return f"{moment}  {self.flow or '–'}  {self.kind}: {self.text}{by}"


class Home(Protocol):
    """What is needed of a flow's home (:class:`streamkeeper.flows.files.FlowHome`)."""

    @property
    def storage(self) -> Storage:
        """The state storage."""

    @property
    def pipeline(self) -> str:
        """The flow's pipeline."""

    @property
    def full_name(self) -> str:
        """``pipeline.flow``."""

    @property
    def names(self) -> Names:
        """The names that flows and pipelines have had."""


def note(
    home: Home,
    kind: Kind,
    text: str,
    occasion: object,
    *,
    by: str = "",
    at: float | None = None,
    generation: int | None = None,
    epoch: int | None = None,
) -> None:
    """Write an event of a flow, unless its occasion was noted before.

    This never raises: what happened, happened, and goes on. A failure is logged.

    :param occasion: identifies what happened among the events of this kind and flow.
    :param at: when, in seconds since 1970; now by default.
    """
    with harmless(kind, home.full_name):
        moment = time.time() if at is None else at
        event = Event("", moment, kind, (home.full_name,), text, by, generation, epoch)
        write(home.storage, home.names.folder(home.pipeline), event, occasion)


def write(storage: Storage, folder: str, event: Event, occasion: object) -> bool:
    """Write an event; return False if its occasion is among the new events already.

    :param folder: that of the pipeline: its first name.
    :param event: its id is made from its kind, flows, recovery and occasion.
    :raises StorageError: it cannot be written.
    """
    text = redact_text(event.text)
    digest = hashlib.sha256(json.dumps([event.recovery, *event.flows, str(occasion)]).encode()).hexdigest()
    whole = replace(
        event,
        id=f"{event.kind}-{digest[:20]}",
        at=round(event.at, 6),
        text=text if len(text) <= LONGEST else f"{text[:LONGEST]}…",
    )
    return storage.create(f"{_folder(folder)}/new/{whole.id}.json", _as_bytes(asdict(whole)))


@contextmanager
def harmless(kind: str, subject: str) -> Iterator[None]:
    """Log whatever goes wrong in the ``with`` block, which writes an event."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no flow and no recovery ends because its log cannot be written
        log.warning("The event %s of %s was not noted: %s", kind, subject, error)


def read(
    storage: Storage, pipeline: str, since: float | None = None, last: int | None = None
) -> tuple[Event, ...]:
    """Return the events of a pipeline, oldest first, each once. A damaged file is an event that names it.

    :param pipeline: any name that it ever had.
    :param since: only those at or after this time, in seconds since 1970.
    :param last: only so many of the newest.
    :raises StorageError: the storage does not answer.
    """
    events = _read(storage, names.read(storage).folder(pipeline))
    selected_events = [event for event in events if since is None or event.at >= since]
    return tuple(selected_events if last is None else selected_events[-last:] if last > 0 else ())


def of_flow(events: Sequence[Event], name_history: Names, flow: str) -> tuple[Event, ...]:
    """Return the events of one flow, under any name that it ever had.

    :param name_history: as :func:`streamkeeper.manifest.names.read` returns them.
    """
    present = name_history.present(flow)
    return tuple(event for event in events if present in {name_history.present(name) for name in event.flows})


def follow(
    storage: Storage,
    pipelines: Sequence[str],
    since: float | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Yield the events of some pipelines, each once, and then those that come; without an end.

    One that is found late, as of a writer whose clock is behind, is yielded when it is found.
    """
    yielded_ids: set[str] = set()
    while True:
        events_by_id = {event.id: event for name in pipelines for event in read(storage, name, since)}
        for event in sorted(events_by_id.values(), key=_order):
            if event.id not in yielded_ids:
                yield event
        yielded_ids |= events_by_id.keys()
        sleep(POLL_SECONDS)


def fold(storage: Storage, pipeline: str) -> int:
    """Fold new events of a pipeline into a segment if there are many; return how many were.

    It may be killed at any moment, and run twice at once: a segment is named by its content, and nothing is
    removed that it does not hold. A damaged file is left where it is.

    :raises StorageError: the storage does not answer.
    """
    folder = _folder(names.read(storage).folder(pipeline))
    fresh = storage.names(f"{folder}/new")
    if len(fresh) < FOLD:
        return 0
    new = {f"new/{name}": _load(storage, f"{folder}/new/{name}") for name in fresh}
    segments = {name: _load(storage, f"{folder}/{name}") for name in _segments(storage, folder)}
    if None in segments.values():
        return 0  # another fold is under way
    whole = {
        name: file_events
        for name, file_events in segments.items()
        if file_events is not None and not _torn(file_events)
    }
    full = {name: file_events for name, file_events in whole.items() if len(file_events) >= SEGMENT}
    parts = {name: file_events for name, file_events in whole.items() if name not in full}
    parts |= {
        name: file_events
        for name, file_events in new.items()
        if file_events is not None and not _torn(file_events)
    }
    stored_ids = {event.id for file_events in full.values() for event in file_events}
    events = _once(
        event for file_events in parts.values() for event in file_events if event.id not in stored_ids
    )
    if events:
        content = _as_bytes({"events": [asdict(event) for event in events]})
        name = f"{int(events[-1].at * 1000):013d}-{hashlib.sha256(content).hexdigest()[:16]}.json"
        storage.create(f"{folder}/{name}", content)
        parts.pop(name, None)
        full[name] = events
    for name in parts:
        storage.remove(f"{folder}/{name}")
    _remove_oldest(storage, folder, {name: len(file_events) for name, file_events in full.items()})
    return len(new)


def _remove_oldest(storage: Storage, folder: str, sizes: dict[str, int]) -> None:
    event_count = sum(sizes.values())
    for name in sorted(sizes):
        event_count -= sizes[name]
        if event_count < MIN_EVENTS:
            return
        storage.remove(f"{folder}/{name}")


def _read(storage: Storage, pipeline_folder: str) -> tuple[Event, ...]:
    folder = _folder(pipeline_folder)
    fresh = storage.names(f"{folder}/new")
    # One that is gone was folded: it is in a segment, and these are listed from now on.
    new = [
        file_events for name in fresh if (file_events := _load(storage, f"{folder}/new/{name}")) is not None
    ]
    for _ in range(_ROUNDS):
        listed = {name: _load(storage, f"{folder}/{name}") for name in _segments(storage, folder)}
        gone = [name for name, file_events in listed.items() if file_events is None]
        if not gone:
            break
        # One was folded into another between the listing and its reading; or it is listed and is no file.
    whole = [file_events for file_events in listed.values() if file_events is not None]
    lost = [(_not_there(storage, f"{folder}/{name}"),) for name in gone]
    return _once(event for file_events in (*whole, *lost, *new) for event in file_events)


def _segments(storage: Storage, folder: str) -> list[str]:
    return [name for name in storage.names(folder) if name != "new"]


_LAST = 253_402_300_800.0
"""Year 10000, in seconds since 1970."""
_ROUNDS = 20
"""Listings in which a segment may be gone when it is read; then it counts as one that cannot be read."""
_LOADED: dict[str, tuple[Event, ...]] = {}
"""Segments that this process has read, by their paths: they never change."""
_MOST_LOADED = 64


def _load(storage: Storage, name: str) -> tuple[Event, ...] | None:
    """Return the events of a file; None if it is gone."""
    path = storage.path(name)
    if path in _LOADED:
        return _LOADED[path]
    try:
        content = storage.read(name, MOST_READ)
        if content is None:
            return None
        value = parse(content)
        events = tuple(_event(item) for item in value.get("events", [value]))
    except (TypeError, ValueError, AttributeError, FileTooLarge) as error:
        return (_unreadable(storage, name, error),)
    if "/new/" not in name:
        if len(_LOADED) >= _MOST_LOADED:
            _LOADED.clear()
        _LOADED[path] = events
    return events


def _event(value: dict[str, Any]) -> Event:
    event = read_as(Event, {item.name: value[item.name] for item in fields(Event) if item.name in value})
    if not -_LAST < event.at < _LAST:
        raise ValueError(f"at: {event.at} s since 1970 is no time of an event")
    return event


def _unreadable(storage: Storage, name: str, error: Exception) -> Event:
    text = (
        f"{storage.path(name)} holds no events ({type(error).__name__}), so what it held is missing here."
        " Another process changed it: restore it from a copy, or remove it."
    )
    return Event(f"{Kind.UNREADABLE}-{name}", storage.modified(name) or 0.0, Kind.UNREADABLE, (), text)


def _not_there(storage: Storage, name: str) -> Event:
    return _unreadable(storage, name, FileNotFoundError("it is listed, and there is no such file"))


def _torn(events: Sequence[Event]) -> bool:
    return any(event.kind == Kind.UNREADABLE for event in events)


def _once(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events in their order, each once: the first that was noted, if it was noted again."""
    events_by_id: dict[str, Event] = {}
    for event in sorted(events, key=_order):
        events_by_id.setdefault(event.id, event)
    return tuple(events_by_id.values())


def _order(event: Event) -> tuple[float, str]:
    return event.at, event.id


def _folder(pipeline_folder: str) -> str:
    return f"{FOLDER}/{pipeline_folder}"


def _as_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
