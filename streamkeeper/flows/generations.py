"""Generations: the numbered lives of a flow's checkpoint.

A generation is *decided* by one immutable file and *begun* by another. The decision has the start ("after the
last processed batch of generation 6"). The driver that begins the generation fences the old one in the sink,
resolves the start to a position, creates the checkpoint, and writes the start file. Until then nothing of the
generation is in the sink. So if the driver dies before, another one can begin again, in a checkpoint folder
of its own.

No recovery ever edits an earlier generation. Only ``clean_up`` removes any, once nothing needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from streamkeeper.declare.model import GivenState
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.storage import read_once, read_record, to_json
from streamkeeper.support.times import Moment, now

T = TypeVar("T")
FORMAT = 1


class StartMode(StrEnum):
    """Kind of a start: the position from which a generation reads."""

    AFTER_LAST = "after-last"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"
    GENERATION = "generation"
    """After the last batch of an earlier generation: may be requested, is never decided."""
    BATCH = "batch"
    SIDE_TABLE = "side-table"
    """After a side table. Its recovery begins such a generation; no driver does."""
    ADOPTED = "adopted"


AFTER_LAST, EARLIEST, LATEST = StartMode.AFTER_LAST, StartMode.EARLIEST, StartMode.LATEST
TIMESTAMP, OFFSETS, GENERATION = StartMode.TIMESTAMP, StartMode.OFFSETS, StartMode.GENERATION
BATCH, SIDE_TABLE, ADOPTED = StartMode.BATCH, StartMode.SIDE_TABLE, StartMode.ADOPTED
MODES = (AFTER_LAST, EARLIEST, LATEST, TIMESTAMP, OFFSETS, GENERATION)
"""Modes that a reset may request."""


class InitialState(StrEnum):
    """State with which a stateful query begins a generation."""

    REBUILT = "rebuilt"
    """Rebuilt from history, with the sink muted."""
    EMPTY = "empty"
    COPIED = "copied"
    """Copied with the checkpoint of the generation before; the query continues under another id."""


REBUILT, EMPTY, COPIED = InitialState.REBUILT, InitialState.EMPTY, InitialState.COPIED
STATES = (REBUILT, EMPTY)
"""States that a reset may request."""


@dataclass(frozen=True)
class StartAt:
    """Start of a generation: where it begins to read.

    ``timestamp_ms`` (epoch milliseconds) belongs to ``timestamp``. ``offsets`` belongs to ``offsets``, by
    source name: that source's offset as Spark writes it, such as ``{"logOffset": 7}``.
    ``generation`` (requested, never decided) means after the last batch of one; ``batch`` is after one of its
    batches.

    With mode ``offsets``, ``generation`` is the one whose offsets a backup kept, as of ``batch``. Without it
    a person gave them, as offsets of the generation before. ``adopted`` continues after a query from outside:
    ``checkpoint`` is the path or URL of its checkpoint, ``query_id`` its id, and ``sources`` maps each source
    of that checkpoint to its name here.
    """

    mode: StartMode
    timestamp_ms: int | None = None
    offsets: dict[str, Any] | None = None
    generation: int | None = None
    batch: int | None = None
    checkpoint: str | None = None
    query_id: str | None = None
    sources: dict[str, str] | None = None


@dataclass(frozen=True)
class Restart:
    """Start and state of a flow's next generation."""

    start: StartAt
    state: InitialState


INITIAL_STATE = "initial_state"
"""Key in a start's evidence: name, table, version and columns of the generation's initial state."""


def given_before(
    evidence: Mapping[str, Any], initial_state: GivenState, restart: Restart
) -> dict[str, Any] | None:
    """Return what a generation's start recorded of an initial state, if the next one begins with the same
    rows; None if it takes them as they are then.

    A rebuilt state begins with what the old one began with, and history comes after it. One that begins anew
    does not.
    """
    record: dict[str, Any] | None = evidence.get(INITIAL_STATE)
    is_fresh_start = restart.state == EMPTY or (restart.state == REBUILT and restart.start.mode == EARLIEST)
    return None if record is None or record["table"] != initial_state.table or is_fresh_start else record


@dataclass(frozen=True)
class Generation:
    """Decision of a generation, immutable once written.

    ``previous`` is the generation whose position (and, for ``rebuilt``, history) it starts from; None for a
    flow's first. ``schemas`` are by source name: schemas inferred earlier for sources that declare none.
    """

    number: int
    previous: int | None
    start: StartAt
    state: InitialState
    query_id: str
    reason: str
    by: str
    at: Moment
    fingerprint: str
    recovery: str | None = None
    schemas: dict[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Start:
    """Start file of a generation: written once, by the driver that began it.

    ``checkpoint`` is the name of its checkpoint folder in the state storage. ``seed_batch`` is the batch id
    that stands for everything before the generation, or None if it began from nothing. ``positions`` are the
    offsets after which it reads, by source name. ``evidence`` tells how they were found: the last committed
    batch of the old checkpoint, the sink's last, and which of the two counted.
    """

    number: int
    checkpoint: str
    seed_batch: int | None
    positions: dict[str, Any]
    schemas: dict[str, str]
    operators: tuple[str, ...]
    state: InitialState | None
    epoch: int
    at: Moment
    evidence: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class End:
    """Last commit of a generation, or of the query that it adopts, when it came to its end."""

    last_commit: int | None
    at: Moment
    format: int = FORMAT


def latest(home: FlowHome) -> Generation | None:
    """Read the highest generation, the one that runs or will run next; None if the flow never had one."""
    numbers = home.generations()
    return read(home, numbers[-1]) if numbers else None


def read(home: FlowHome, number: int) -> Generation | None:
    """Read the decision of a generation; None if there is none.

    :raises StorageError: the file is damaged, or written by a newer Streamkeeper.
    """
    return _read(home, home.generation(number), Generation, "a generation")


def decided(home: FlowHome) -> Iterator[Generation]:
    """Yield all decisions of a flow, the lowest generation's first; raises as :func:`read`."""
    decisions = (read(home, number) for number in home.generations())
    return (generation for generation in decisions if generation is not None)


def read_start(home: FlowHome, number: int) -> Start | None:
    """Read the start file of a generation; None if no driver began it yet.

    :raises StorageError: the file is damaged, or written by a newer Streamkeeper.
    """
    return _read(home, home.start(number), Start, "a generation's start")


def _read(home: FlowHome, name: str, kind: type[T], description: str) -> T | None:
    return read_record(home.storage, name, kind, description, "Restore it from a copy.", format=FORMAT)


def query_id_of(home: FlowHome, number: int) -> str:
    """Return the query id of a generation, even if its decision is gone."""
    decided = read(home, number)
    return home.query_id(number) if decided is None else decided.query_id


def first(home: FlowHome, fingerprint: str) -> Generation:
    """Return the decision of a flow's first generation: all data that the sources still have."""
    return Generation(
        number=1,
        previous=None,
        start=StartAt(EARLIEST),
        state=REBUILT,
        query_id=home.query_id(1),
        reason="first start of the flow",
        by="driver",
        at=now(),
        fingerprint=fingerprint,
    )


def after_takeover(home: FlowHome, before: Generation, fingerprint: str, reason: str) -> Generation:
    """Return the decision of a driver that takes over while the generation's former driver may be alive."""
    start = read_start(home, before.number)
    return Generation(
        number=before.number + 1,
        previous=before.number,
        start=StartAt(AFTER_LAST),
        state=COPIED,
        query_id=home.query_id(before.number + 1),
        reason=reason,
        by="driver",
        at=now(),
        fingerprint=fingerprint,
        schemas=start.schemas if start else {},
    )


def decide(home: FlowHome, generation: Generation) -> Generation:
    """Write a decision, and return it; return the existing one if the same recovery wrote it before.

    :raises RecoveryError: another decision has the number.
    """
    if home.storage.create(home.generation(generation.number), to_json(asdict(generation))):
        _note(home, generation)
        return generation
    earlier_decision = read(home, generation.number)
    assert earlier_decision is not None, "create said that it is there"
    if earlier_decision.recovery is None or earlier_decision.recovery != generation.recovery:
        raise RecoveryError(
            f"Generation {generation.number} of {home.full_name} was decided meanwhile by"
            f" {earlier_decision.by} ({earlier_decision.reason}). Nothing was changed. Plan again from"
            " that generation."
        )
    _note(home, earlier_decision)
    return earlier_decision


def _note(home: FlowHome, decided: Generation) -> None:
    text = f"generation {decided.number} is decided: {decided.reason}"
    number = decided.number
    events.note(home, Kind.GENERATION, text, number, by=decided.by, generation=number)


def begin(home: FlowHome, start: Start) -> Start:
    """Write the start file of a generation; return the existing one if another driver was first."""
    if home.storage.create(home.start(start.number), to_json(asdict(start))):
        return start
    first_start = read_start(home, start.number)
    assert first_start is not None, "create said that it is there"
    return first_start


def end(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """Write the last commit of a generation's checkpoint, *before* its fence; return the first written."""
    # After the fence, a driver that was thought gone may still commit batches to its checkpoint that the sink
    # skips silently. They were never written, so the next generation must not count them.
    home.storage.create(home.over(number), _end(last_commit))
    return committed(home, number, last_commit)


def committed(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """Return the last valid commit of a generation: the one recorded before its fence, otherwise
    ``last_commit``, its checkpoint's.

    :raises StorageError: the record is damaged.
    """
    return _last_commit(home, home.over(number), last_commit)


def _last_commit(home: FlowHome, name: str, otherwise: int | None) -> int | None:
    record = _read(home, name, End, "the end of a generation")
    return otherwise if record is None else record.last_commit


def _end(last_commit: int | None) -> bytes:
    return to_json(asdict(End(last_commit, now())))


def end_adopted(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """Write and return as :func:`end`, for the query of an adopted checkpoint, before it is fenced."""
    name = home.adopted(number)
    home.storage.create(name, _end(last_commit))
    return _last_commit(home, name, last_commit)


def is_over(home: FlowHome, number: int) -> bool:
    """Return whether a generation is fenced in its table or about to be: no driver may write in it."""
    return read_once(home.storage, home.over(number)) is not None


def retire(home: FlowHome, number: int, recovery: str) -> None:
    """Record that a generation's checkpoint is about to be removed."""
    # Recorded first: after a kill, the rest of a half-removed checkpoint no longer counts.
    home.storage.create(home.gone(number), to_json({"recovery": recovery, "at": now(), "format": FORMAT}))


def is_gone(home: FlowHome, number: int) -> bool:
    """Return whether a generation's checkpoint was removed, perhaps only in part."""
    return read_once(home.storage, home.gone(number)) is not None


def finish(home: FlowHome, number: int, last_commit: int | None) -> None:
    """Record that a once flow has read all its input in a generation: it runs again only in a next one."""
    home.storage.create(home.done(number), _end(last_commit))


def done_at(home: FlowHome, number: int) -> int | None:
    """Return the last commit of a once flow that has read all its input in a generation; None if it has not.

    :raises StorageError: the record is damaged.
    """
    return _last_commit(home, home.done(number), None)


def finished(home: FlowHome) -> int | None:
    """Return the newest generation if a once flow is done in it; otherwise None.

    :raises StorageError: the state folder cannot be read.
    """
    numbers = home.generations()
    return numbers[-1] if numbers and read_once(home.storage, home.done(numbers[-1])) is not None else None


def with_number(generation: Generation, home: FlowHome, number: int) -> Generation:
    """Return the decision under another number, with the query id of that number."""
    return replace(generation, number=number, query_id=home.query_id(number))
