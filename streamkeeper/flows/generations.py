"""Generations: the numbered lives of a flow's checkpoint.

A generation is *decided* by one immutable file and *begun* by another. The decision says where it is to start
("after the last processed batch of generation 6"); the driver that begins it shuts the old generation out of
the sink, finds the position that this became, makes the checkpoint, and writes the start. Until the start is
written nothing of the generation is in the sink, so a driver that dies before may be followed by another that
begins anew, in a checkpoint folder of its own.

No recovery ever edits or removes an earlier generation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamkeeper.errors import RecoveryError, StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import read_json, to_json
from streamkeeper.times import now

FORMAT = 1

AFTER_LAST = "after-last"
EARLIEST = "earliest"
LATEST = "latest"
TIMESTAMP = "timestamp"
OFFSETS = "offsets"
GENERATION = "generation"
BATCH = "batch"
BESIDE = "beside"
"""Where a table that was built beside stands: such a generation is begun by its recovery, and by no
driver.
"""
ADOPTED = "adopted"
MODES = (AFTER_LAST, EARLIEST, LATEST, TIMESTAMP, OFFSETS, GENERATION)

REBUILT = "rebuilt"
EMPTY = "empty"
STATES = (REBUILT, EMPTY)
"""What a reset may ask for."""
COPIED = "copied"
"""The checkpoint before it, copied as far as its last batch, state and all: the same query goes on under
another id.
"""


@dataclass(frozen=True)
class StartAt:
    """Where a generation is to start reading.

    ``mode`` is one of :data:`MODES`, ``batch``, ``beside`` or ``adopted``. ``timestamp_ms`` (epoch
    milliseconds) belongs to ``timestamp``; ``offsets`` (by source name: that source's offset as Spark writes
    it, such as ``{"logOffset": 7}``) to ``offsets``. ``generation`` (asked for, never decided) means after
    the last batch of one; ``batch`` is after one batch of one. With ``offsets`` it is the one of whose batch
    a backup has kept them; without it a person gave them, as offsets of the one before. ``adopted`` goes on
    where a query stood that was none of ours: ``checkpoint`` is where its checkpoint is (path or URL),
    ``query_id`` its id, ``sources`` give the name that each source of that checkpoint has here.
    """

    mode: str
    timestamp_ms: int | None = None
    offsets: dict[str, Any] | None = None
    generation: int | None = None
    batch: int | None = None
    checkpoint: str | None = None
    query_id: str | None = None
    sources: dict[str, str] | None = None


@dataclass(frozen=True)
class Restart:
    """What is asked of a flow's next generation: where it starts, and what becomes of its state
    (:data:`REBUILT`, :data:`EMPTY`, :data:`COPIED`).
    """

    start: StartAt
    state: str


@dataclass(frozen=True)
class Generation:
    """What was decided: immutable once written.

    ``previous`` is the generation whose position (and, for ``rebuilt``, history) it starts from; None for a
    flow's first. ``state`` says what a stateful query starts with: ``rebuilt`` from history with the sink
    muted, ``empty``, or ``copied``. ``schemas`` are the schemas of sources that declare none, by source name,
    as far as they were inferred before.
    """

    number: int
    previous: int | None
    start: StartAt
    state: str
    query_id: str
    why: str
    by: str
    at: str
    fingerprint: str
    recovery: str | None = None
    schemas: dict[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Start:
    """How a generation began: written once, by the driver that began it.

    ``checkpoint`` is the name of its checkpoint folder in the state storage. ``seed_batch`` is the batch id
    that stands for everything before the generation, or None where it began from nothing. ``positions`` are
    the offsets after which it reads, by source name. ``evidence`` says how they were found: the last
    committed batch of the old checkpoint, the sink's last, and which of them ruled.
    """

    number: int
    checkpoint: str
    seed_batch: int | None
    positions: dict[str, Any]
    schemas: dict[str, str]
    operators: tuple[str, ...]
    state: str | None
    epoch: int
    at: str
    evidence: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def latest(home: FlowHome) -> Generation | None:
    """Read the highest generation: the one that runs or will; None if the flow never had one."""
    numbers = home.generations()
    return read(home, numbers[-1]) if numbers else None


def read(home: FlowHome, number: int) -> Generation | None:
    """Read one generation's decision.

    :raises StorageError: it is there, and written by a newer Streamkeeper, or damaged.
    """
    value = read_json(home.storage, home.generation(number))
    if value is None:
        return None
    _check_format(home.storage.path(home.generation(number)), value)
    try:
        return Generation(
            **{**value, "start": StartAt(**value["start"]), "accepted": tuple(value["accepted"])}
        )
    except (TypeError, KeyError) as error:
        raise StorageError(
            f"{home.storage.path(home.generation(number))} is no generation: {error}. Put a copy of it back."
        ) from error


def read_start(home: FlowHome, number: int) -> Start | None:
    """Read how a generation began; None if no driver began it yet.

    :raises StorageError: it is there, and written by a newer Streamkeeper, or damaged.
    """
    value = read_json(home.storage, home.start(number))
    if value is None:
        return None
    _check_format(home.storage.path(home.start(number)), value)
    try:
        return Start(**{**value, "operators": tuple(value["operators"])})
    except (TypeError, KeyError) as error:
        raise StorageError(
            f"{home.storage.path(home.start(number))} is no generation's start: {error}. Put a copy of it"
            " back."
        ) from error


def query_id_of(home: FlowHome, number: int) -> str:
    """Give the query id of a generation, whether its decision is still there or not."""
    decided = read(home, number)
    return home.query_id(number) if decided is None else decided.query_id


def first(home: FlowHome, fingerprint: str) -> Generation:
    """Give the decision of a flow's first generation: all that the sources still have."""
    return Generation(
        number=1,
        previous=None,
        start=StartAt(EARLIEST),
        state=REBUILT,
        query_id=home.query_id(1),
        why="first start of the flow",
        by="driver",
        at=now(),
        fingerprint=fingerprint,
    )


def after_takeover(home: FlowHome, before: Generation, fingerprint: str, why: str) -> Generation:
    """Give the decision of a driver that cannot go on with a generation, because another driver of it may
    still be there.
    """
    start = read_start(home, before.number)
    return Generation(
        number=before.number + 1,
        previous=before.number,
        start=StartAt(AFTER_LAST),
        state=COPIED,
        query_id=home.query_id(before.number + 1),
        why=why,
        by="driver",
        at=now(),
        fingerprint=fingerprint,
        schemas=start.schemas if start else {},
    )


def decide(home: FlowHome, generation: Generation) -> Generation:
    """Write a decision, unless the very same one is there already; a rerun of the recovery that wrote it
    finds it so.

    :raises RecoveryError: another decision has the number.
    """
    if home.storage.create(home.generation(generation.number), to_json(asdict(generation))):
        return generation
    found = read(home, generation.number)
    assert found is not None, "create said that it is there"
    if found.recovery is None or found.recovery != generation.recovery:
        raise RecoveryError(
            f"Generation {generation.number} of {home.full_name} was decided meanwhile by {found.by}"
            f" ({found.why}). Nothing was changed. Make the plan again from the generation that is there now."
        )
    return found


def begin(home: FlowHome, start: Start) -> Start:
    """Write how a generation began, and give the start that holds: an earlier one, if another driver was
    faster.
    """
    if home.storage.create(home.start(start.number), to_json(asdict(start))):
        return start
    found = read_start(home, start.number)
    assert found is not None, "create said that it is there"
    return found


def end(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """Write what a generation's checkpoint had committed *before* it was shut out of the sink, and give what
    holds: the first that was written.

    Once it is shut out, a driver of it that was thought gone may still commit batches to its checkpoint that
    the sink skipped in silence. Those were never written; whoever follows must not count them as done.
    """
    if home.storage.create(
        home.over(number), to_json({"last_commit": last_commit, "at": now(), "format": FORMAT})
    ):
        return last_commit
    return committed(home, number, last_commit)


def committed(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """Give the last commit of a generation that can be believed: ``last_commit``, its checkpoint's, unless it
    was shut out since.

    :raises StorageError: what was written when it was shut out is damaged.
    """
    return _last_commit(home, home.over(number), last_commit)


def _last_commit(home: FlowHome, name: str, otherwise: int | None) -> int | None:
    value = read_json(home.storage, name)
    if value is None:
        return otherwise
    _check_format(home.storage.path(name), value)
    found: int | None = value["last_commit"]
    return found


def end_adopted(home: FlowHome, number: int, last_commit: int | None) -> int | None:
    """As :func:`end`, of the query whose checkpoint a generation adopts: it is shut out before the generation
    begins.
    """
    name = home.adopted(number)
    home.storage.create(name, to_json({"last_commit": last_commit, "at": now(), "format": FORMAT}))
    return _last_commit(home, name, last_commit)


def is_over(home: FlowHome, number: int) -> bool:
    """Say whether a generation was shut out of its table, or is about to be: then no driver may write in it
    any more.
    """
    return home.storage.read(home.over(number)) is not None


def retire(home: FlowHome, number: int, recovery: str) -> None:
    """Write that a generation's checkpoint is removed, before it is: what is left of it by a kill counts as
    nothing then.
    """
    home.storage.create(home.gone(number), to_json({"recovery": recovery, "at": now(), "format": FORMAT}))


def is_gone(home: FlowHome, number: int) -> bool:
    """Say whether a generation's checkpoint was removed, or may be half removed."""
    return home.storage.read(home.gone(number)) is not None


def finish(home: FlowHome, number: int, last_commit: int | None) -> None:
    """Write that a once flow has read all there was in a generation; it is not run again until there is a
    next one.
    """
    home.storage.create(
        home.done(number), to_json({"last_commit": last_commit, "at": now(), "format": FORMAT})
    )


def finished(home: FlowHome) -> int | None:
    """Give the newest generation if a once flow is done in it; else None.

    :raises StorageError: the state folder cannot be read.
    """
    numbers = home.generations()
    return numbers[-1] if numbers and home.storage.read(home.done(numbers[-1])) is not None else None


def with_number(generation: Generation, home: FlowHome, number: int) -> Generation:
    """Give the decision under another number, with the query id that belongs to it."""
    return replace(generation, number=number, query_id=home.query_id(number))


def _check_format(path: str, value: dict[str, Any]) -> None:
    if value.get("format") != FORMAT:
        raise StorageError(
            f"{path} has format {value.get('format')!r}; this Streamkeeper reads {FORMAT}. Use the release"
            " that wrote it, or a newer one."
        )
