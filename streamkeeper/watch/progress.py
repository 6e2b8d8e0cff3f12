"""Progress of a flow, judged by its checkpoint and its sources, never by the state of a task. No JVM, nothing
is changed.

A flow is silent while no batch is committed. That alone is no trouble: a flow without new input may be idle
forever. So only if nothing was committed since the last look does the monitor check for pending input. The
clock runs from the first look that found some. It is the storage's own clock
(:func:`streamkeeper.flows.files.storage_now`). A hold stops the clock: a flow that must not run is not
late.

The result of a look is kept for the next (:class:`Note`). A big folder is listed rarely: after a listing the
next one comes after a pause (:func:`streamkeeper.watch.pending_input.pause_after`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum

from streamkeeper.flows import leases
from streamkeeper.flows.files import LOOKED, FlowHome
from streamkeeper.flows.leases import Life
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe import status
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.base.format import Waiting
from streamkeeper.storage import Storage, one_look, read_json, read_record, to_json
from streamkeeper.support.times import describe_age
from streamkeeper.watch.alerts import TROUBLES, Alert
from streamkeeper.watch.pending_input import pause_after, what_waits


@dataclass(frozen=True)
class Position:
    """Position of a flow's last commit: its newest begun generation, and the batch. A seed batch does not
    count.

    ``rebuilt`` is the progress of a state rebuilt from history for a generation that has not begun yet.
    """

    generation: int | None = None
    batch: int | None = None
    rebuilt: str | None = None

    def __str__(self) -> str:
        return f"{self._batch()}; {self.rebuilt}" if self.rebuilt else self._batch()

    def _batch(self) -> str:
        if self.generation is None:
            return "no generation begun"
        return f"generation {self.generation}, " + (
            "no batch committed" if self.batch is None else f"batch {self.batch}"
        )


@dataclass(frozen=True)
class Note:
    """Result of the last look. Times are the storage's, in seconds: ``since`` is when pending input was first
    found, None if there is none.

    ``next_listing`` is when the sources may be listed again; ``late`` is whether input waited too long.
    """

    position: Position
    since: float | None = None
    next_listing: float = 0.0
    late: bool = False


class State(Enum):
    """Verdict of a look."""

    NEVER_STARTED = "never started"
    HELD = "held"
    NEW = "first look"
    MOVED_ON = "progressed since the last check"
    DONE = "done: it runs once and has read all its input"
    IDLE = "idle: nothing to read"
    WAITING = "input waits"
    NO_PROGRESS = "no progress"


@dataclass(frozen=True)
class Observation:
    """Facts of one look at a flow. ``waiting`` is None if the sources were not listed."""

    position: Position
    started: bool
    on_hold: bool
    waiting: Waiting | None
    done: bool = False


def judge(
    observation: Observation, before: Note | None, now: float, allowed: float | None
) -> tuple[State, Note]:
    """Return the verdict of one look, and the note to keep. A pure function.

    :param now: the storage's time, in seconds.
    :param allowed: seconds that input may wait without a commit; None for no limit.
    """
    fresh = Note(observation.position)
    if not observation.started:
        return State.NEVER_STARTED, fresh
    if observation.done:
        return State.DONE, fresh
    if observation.on_hold:
        return State.HELD, fresh
    if before is None or before.position != observation.position:
        return (State.NEW if before is None else State.MOVED_ON), fresh
    return _judge_silence(observation.waiting, before, now, allowed)


def _judge_silence(
    waiting: Waiting | None, before: Note, now: float, allowed: float | None
) -> tuple[State, Note]:
    """Return the verdict of a flow that committed nothing since the last look."""
    if waiting is None and before.since is None:
        return State.IDLE, before
    if waiting is not None and not waiting.pending:
        return State.IDLE, replace(before, since=None, late=False)
    since = now if before.since is None else before.since
    late = allowed is not None and now - since >= allowed
    return (State.NO_PROGRESS if late else State.WAITING), replace(before, since=since, late=late)


def needs_listing(position: Position, before: Note | None, now: float, allowed: float | None) -> bool:
    """Return whether the sources must be listed: until pending input is known, and before an alert."""
    if before is None or before.position != position or now < before.next_listing:
        return False
    return before.since is None or (not before.late and allowed is not None and now - before.since >= allowed)


@dataclass(frozen=True)
class Look:
    """One look at a flow: ``age`` is seconds since the last commit, ``silent`` since input first waited."""

    flow: str
    state: State
    position: Position
    age: float | None
    silent: float | None
    waits: str
    driver: str

    def to_json(self) -> dict[str, object]:
        """Return the look as a JSON object."""
        return {**asdict(self), "state": self.state.value, "position": str(self.position)}

    def __str__(self) -> str:
        age = "" if self.age is None else f", last commit {describe_age(self.age)} ago"
        waits = f"; {self.waits}" if self.waits else ""
        waits += f", for {describe_age(self.silent)}" if self.silent is not None and self.waits else ""
        return f"{self.flow}: {self.state.value} ({self.position}{age}; {self.driver}{waits})"


@one_look()
def look(home: FlowHome, flow: Flow, now: float, *, monotonic: Callable[[], float] = time.monotonic) -> Look:
    """Judge the progress of one flow, and keep the result.

    :param flow: with its sources opened as far as this process can.
    :param now: the storage's time, in seconds.
    :raises StreamkeeperError: a file of the flow, or a source, cannot be read.
    """
    allowed = flow.pipeline.no_progress_after
    observed = Observed(home)
    before, present = _read_note(home), position(observed)
    started, on_hold = _started(home), bool(home.owners())
    done = flow.declaration.once and observed.is_done
    waiting, cost = None, 0.0
    if started and not on_hold and not done and needs_listing(present, before, now, allowed):
        begun = monotonic()
        waiting = what_waits(observed, flow)
        cost = monotonic() - begun
    state, note = judge(Observation(present, started, on_hold, waiting, done), before, now, allowed)
    if waiting is not None:
        pause = pause_after(cost)
        note = replace(note, next_listing=now + pause if pause else 0.0)
    if note != before:
        home.storage.overwrite(home.progress, to_json(asdict(note)))
    silent = now - note.since if note.since is not None else None
    waits = waiting.description if waiting is not None else "input waits" if silent is not None else ""
    written = (
        None if present.batch is None else observed.committed_at
    )  # a seed is no commit of the generation
    age = None if written is None else max(0.0, now - written)
    return Look(flow.full_name, state, present, age, silent, waits, _driver(observed))


def note_look(storage: Storage, now: float) -> None:
    """Record that the monitor looked at all flows, at the storage's time in seconds.

    :raises StorageError: the state folder cannot be written.
    """
    storage.overwrite(LOOKED, to_json({"at": now}))


def looked_at(storage: Storage) -> float | None:
    """Return when the monitor last looked at all flows, in seconds since 1970; None if it never did.

    :raises StorageError: the state folder cannot be read.
    """
    at = (read_json(storage, LOOKED) or {}).get("at")
    return float(at) if isinstance(at, (int, float)) else None


def position(observed: Observed) -> Position:
    """Return a flow's position, and the progress of a rebuilt state.

    :raises StorageError: a generation's files are damaged.
    """
    if observed.begun is None:
        return Position()
    number = observed.begun[0].number
    return Position(number, observed.own_commit, status.progress_in(observed.heartbeat, number + 1))


def is_over(trouble: Alert, present: Position) -> bool:
    """Return whether a trouble is over because the flow committed a batch since its alert."""
    if trouble.kind not in TROUBLES or present.generation is None or present.batch is None:
        return False
    if trouble.generation is None or present.generation > trouble.generation:
        return True
    return present.generation == trouble.generation and (
        trouble.batch is None or present.batch > trouble.batch
    )


def _started(home: FlowHome) -> bool:
    """Return whether the flow was ever tried: a DAG that was never switched on is no trouble."""
    return bool(home.epochs()) or home.storage.read(home.supervisor) is not None


def _driver(observed: Observed) -> str:
    lease = observed.lease
    if lease is None:
        return "no driver yet"
    return (
        f"driver {leases.describe(lease)}"
        if observed.life in (Life.ALIVE, Life.UNKNOWN)
        else f"no driver: the last one, epoch {lease.epoch}, is gone"
    )


def waiting_since(home: FlowHome) -> float | None:
    """Return since when the monitor has found input that waits, in seconds since 1970; None if it found none.

    :raises StorageError: its note is damaged.
    """
    note = _read_note(home)
    return None if note is None else note.since


def _read_note(home: FlowHome) -> Note | None:
    way = "Remove it; the next check writes it again."
    return read_record(home.storage, home.progress, Note, "a monitor's note", way)
