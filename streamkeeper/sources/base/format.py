"""The protocol of a format of source, the same for a plan and for a driver.

Both hand :meth:`SourceFormat.resolve` the same start. They differ in the look alone, which a plan takes with
Python clients and a driver with Spark's. So a plan counts from the very position that its driver will start
from.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import CheckpointError, RequestError, SourceError, StorageError
from streamkeeper.flows.generations import EARLIEST, EMPTY, REBUILT, Restart, StartAt, StartMode
from streamkeeper.observe.past_positions import Place
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, in_words, unknown
from streamkeeper.support.times import ms_in_iso

L = TypeVar("L")
P = TypeVar("P")

LOOKS_AGAIN = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between the looks of a driver at a source of which what is lost may be there again: a minute."""
LOOKED_AT_AGAIN = (
    f"the driver looks again for {sum(LOOKS_AGAIN):g} s before it begins there: if an end went back for"
    " seconds only, as at a change of the leader, nothing is lost, and nothing duplicated"
)
UNREADABLE = unknown("the checkpoint's offsets cannot be read")
"""Amount of rows between two positions, one of which is unknown."""


@dataclass(frozen=True)
class Before:
    """What the generation before has read of a source: up to ``offset``, or nothing (None).

    ``checkpoint`` is None if there was no generation before; ``evidence`` is that of its start, and ``key``
    the source's name in the checkpoint.
    """

    checkpoint: Checkpoint | None
    evidence: Mapping[str, Any]
    key: str
    offset: Any
    strict: bool = True
    """Whether damage of the first offsets is an error. A plan reports it elsewhere."""
    earlier: Callable[[], Iterable[tuple[CommittedPosition, Any]]] = tuple
    """Where the generations before that one ended which read the source, and its offset there."""

    @classmethod
    def of(
        cls, standing: CommittedPosition | None, source: Source, offset: Any, strict: bool = True
    ) -> Before:
        """Return what a generation, if there was one, has read of a source; of one that it did not read, what
        the newest earlier generation that did has read.
        """
        if standing is None:
            return cls(None, {}, source.name, offset, strict)
        returned = standing.returned(source) if offset is None else None
        if returned is not None:
            standing, offset = returned
        earlier = partial(standing.read_earlier, source)
        return cls(standing.checkpoint, standing.start.evidence, source.name, offset, strict, earlier)

    def initial(self) -> Any | None:
        """Return the first offsets ever read, as the checkpoint keeps them; None if it has none.

        :raises CheckpointError: they are damaged.
        """
        if self.checkpoint is None or self.key not in self.checkpoint.sources():
            return None
        try:
            return self.checkpoint.initial_offsets(self.key)
        except CheckpointError:
            if self.strict:
                raise
            return None

    def ids(self, source: Source) -> Mapping[str, str]:
        """Return the ids of a source's topics when that generation began, as far as they are known."""
        return topic_ids(self.evidence, source)


def topic_ids(evidence: Mapping[str, Any], source: Source) -> Mapping[str, str]:
    """Return the ids of a source's topics that the start of a generation recorded."""
    ids: Mapping[str, Mapping[str, str]] = evidence.get("topics", {})
    return ids.get(source.name, {})


@dataclass(frozen=True)
class Resolved(Generic[P]):
    """The position of a start in one source; None if it is read from its beginning, which needs none.

    ``notes`` say what changed in the source. ``lost`` is the reason why unread data is gone, which must be
    accepted; ``blocked`` why the source cannot be read from there, whatever is accepted; ``wrong`` why a
    requested offset is none of the source's. They are empty where nothing is to be said. With ``may_pass``,
    what is lost may be there again in a moment: a driver looks again before it believes that. ``returned``
    are parts of the source that earlier generations read and the last one did not: the position goes on
    there, and a restart of that generation would read them from their beginning.
    """

    position: P | None = None
    notes: tuple[str, ...] = ()
    lost: str = ""
    blocked: str = ""
    wrong: str = ""
    may_pass: bool = False
    returned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A reset of one source, to be impactd.

    ``position`` are the old checkpoint's offsets by source, None if they cannot be read; ``offset`` is that
    of this source. ``position_text`` is the old position in words. ``stateful`` tells whether the query as
    declared now keeps state, None if that is unknown.
    """

    source: Source
    standing: CommittedPosition
    position: dict[str, Any] | None
    offset: Any
    restart: Restart
    stateful: bool | None
    position_text: str

    @property
    def start(self) -> StartAt:
        """The start of the new generation."""
        return self.restart.start

    @property
    def moment(self) -> str:
        """The time of a start by timestamp, in words."""
        return ms_in_iso(self.start.timestamp_ms or 0)

    @property
    def rebuilds(self) -> bool:
        """Whether a state is rebuilt from history, if the query keeps any."""
        return (
            self.restart.state != EMPTY and self.stateful is not False and self.restart.start.mode != EARLIEST
        )

    @property
    def before(self) -> Before:
        """What was read of the source, as :meth:`SourceFormat.resolve` takes it."""
        return Before.of(self.standing, self.source, self.offset, strict=False)

    def words(self, after_last: str, everything: str, later: str, timed: str) -> str:
        """Return in words where the start begins to read, in the words of a format.

        :param after_last: where a start after the last batch does; ``everything`` is what there is from the
            beginning on, ``later`` what comes, and ``timed`` what has the time of a start by timestamp.
        """
        match self.start.mode:
            case StartMode.AFTER_LAST:
                return after_last
            case StartMode.EARLIEST:
                return f"the beginning: {everything}"
            case StartMode.LATEST:
                return f"only {later} after the new generation has begun"
            case StartMode.TIMESTAMP:
                return f"{timed} at or after {self.moment}"
        return describe((self.start.offsets or {})[self.source.name])

    def unreadable(self) -> SourceImpact:
        """Return the impact where the old offsets cannot be read, and nothing else tells what was read."""
        mode = self.start.mode
        lost = NONE if mode == EARLIEST else UNREADABLE
        return self.impact(f"start {mode}", lost=lost, repeated=UNREADABLE)

    def impact(self, then: str, **parts: Any) -> SourceImpact:
        """Return an impact of this case."""
        return SourceImpact(self.source.name, self.position_text, then, **parts)


@dataclass(frozen=True)
class SourceMove:
    """A flow's move from its present position to an earlier one, ``place``.

    ``position`` are its present offsets by source, None if they cannot be read. ``state`` is what the new
    generation begins with; ``stateful`` whether the query keeps any, None if that is unknown. With
    ``restored`` the table is restored to the same place.
    """

    standing: CommittedPosition
    position: Mapping[str, Any] | None
    place: Place
    state: str
    stateful: bool | None
    restored: bool = False

    @property
    def rebuilds(self) -> bool:
        """Whether a state is rebuilt from history, if the query keeps any."""
        return self.state == REBUILT and self.stateful is not False

    def offset(self, source: Source) -> Any:
        """Return the present offset of a source; None if nothing was read, or it is unknown."""
        return None if self.position is None else self.position.get(source.name)

    def then(self, source: Source) -> Any:
        """Return the offset of a source at the earlier place; None if nothing had been read."""
        return self.place.positions().get(source.name)


@dataclass(frozen=True)
class Lag:
    """What of a source waits, that no committed batch has read; each None where it is unknown.

    ``seconds`` is the age of the oldest input that waits, by this machine's clock. All that is known is 0
    where nothing waits. ``reason`` says why something is unknown that others of its format tell. ``skipped``
    is how many files are never read as they are now; ``skipped_reason`` names one, and the reason.
    """

    records: int | None = None
    files: int | None = None
    bytes: int | None = None
    versions: int | None = None
    seconds: float | None = None
    reason: str = ""
    skipped: int = 0
    skipped_reason: str = ""

    @property
    def unknown(self) -> bool:
        """Whether nothing is known of what waits."""
        return replace(self, reason="", skipped=0, skipped_reason="") == Lag()


@dataclass(frozen=True)
class Waiting:
    """Whether there is pending input, with a description, also of input that could not be checked."""

    pending: bool
    description: str = ""


@dataclass(frozen=True)
class Reading:
    """What is read, as far as known; ``notes`` say of when that is, and what may come besides or lack."""

    amount: Amount
    notes: tuple[str, ...] = ()


def not_inspected(source: Source, error: SourceError) -> Waiting:
    """Return that a source cannot be inspected: this counts as input, for a driver can hardly read it."""
    return Waiting(
        True, f"the source {source.name} cannot be inspected, so it can probably not be read either: {error}"
    )


def age_of(written_ms: float) -> float:
    """Return the seconds since a moment (epoch ms); 0 for one to come, as clocks differ."""
    return max(0.0, time.time() - written_ms / 1000)


def not_begun(source: Source) -> Lag:
    """Return the lag of a source of which nothing was read, and which is not read from its beginning."""
    return Lag(reason=f"nothing was read yet, and {source.name} is declared to start at {source.start}")


def not_listed(error: StorageError) -> RequestError:
    """Return the error of a backfill whose source cannot be listed."""
    return RequestError(f"What is to be read cannot be listed: {error}")


class SourceFormat(ABC, Generic[L, P]):
    """Starts in a format of source: ``L`` is a look at what a source holds now, ``P`` a position in it.

    A driver imports it, so it needs no package beyond the standard library.
    """

    expires = False
    """Whether unread data can go while the flow stands still, which a driver checks at each start."""

    def resolve(self, source: Source, start: StartAt, before: Before, look: Callable[[], L]) -> Resolved[P]:
        """Return the position of a start in a source; the one place that plan and driver ask.

        :param look: takes the look at the source; called only if the start needs it.
        :raises CheckpointError: the old checkpoint lacks what the start needs.
        :raises SourceError: the source cannot be looked at now.
        """
        match start.mode:
            case StartMode.AFTER_LAST | StartMode.BATCH:
                return self.after(source, before, look)
            case StartMode.EARLIEST:
                return Resolved(self.beginning(look))
            case StartMode.LATEST:
                return Resolved(self.end(before, look))
            case StartMode.TIMESTAMP:
                assert start.timestamp_ms is not None, "a start by timestamp has one"
                return Resolved(self.moment(before, look, start.timestamp_ms))
            case StartMode.OFFSETS:
                offset = (start.offsets or {})[source.name]
                if offset is None:  # nothing of it was read
                    return Resolved(self.beginning(look))
                return self.at(source, before, look, offset)
            case StartMode.GENERATION | StartMode.SIDE_TABLE | StartMode.ADOPTED:
                raise ValueError(f"a generation is begun otherwise than by its sources: {start.mode}")

    def goes_back(self, start: Any, end: Any) -> bool:
        """Return whether a planned batch ends before it starts, which no batch can read."""
        return False

    def gone_unread(self, source: Source, checkpoint: Checkpoint, after: Any) -> Resolved[P]:
        """Return as ``lost`` what a checkpoint lists for its next batch and is gone: Spark passes over that.

        :param after: the offset after which that batch begins; None if nothing was read.
        :raises CheckpointError: a list of the checkpoint is damaged.
        """
        return Resolved()

    @abstractmethod
    def after(self, source: Source, before: Before, look: Callable[[], L]) -> Resolved[P]:
        """Continue after what was read; if nothing was, at the declared start."""

    @abstractmethod
    def end(self, before: Before, look: Callable[[], L]) -> P | None:
        """Start with what comes from now on."""

    @abstractmethod
    def moment(self, before: Before, look: Callable[[], L], moment_ms: int) -> P | None:
        """Start with what was written at a time (epoch ms) or later."""

    @abstractmethod
    def at(self, source: Source, before: Before, look: Callable[[], L], offset: Any) -> Resolved[P]:
        """Start at an explicit offset, of the shape of this format's."""

    def beginning(self, look: Callable[[], L]) -> P | None:
        """Read all that is there. None, the default: Spark does so without a position."""
        return None

    def declared(self, source: Source, look: Callable[[], L]) -> P | None:
        """Start a first generation where its source is declared to start; None for its beginning."""
        return None

    def chunks(self, size: int) -> Mapping[str, str]:
        """Return the reader options with which a bounded read takes so much a batch, leaving nothing out."""
        return {"maxFilesPerTrigger": str(size)}

    def reader_options(self, source: Source) -> Mapping[str, str]:
        """Return further options of Spark's reader, for a query whose checkpoint has no position."""
        return {}

    def is_there(self, source: Source) -> bool | None:
        """Return whether a stream can be opened; None if Spark's file system has to look for the path."""
        return True if source.path is None else None


class PlannedFormat(SourceFormat[L, P]):
    """A format of source as a plan and the monitor ask for it. It may use clients that no driver has."""

    def look(self, source: Source) -> L:
        """Return what an opened source holds now, read without a JVM; asked where unread data can expire.

        :raises SourceError: it does not answer, or is not there.
        :raises StorageError: its folder cannot be listed.
        """
        raise NotImplementedError(f"unread data of {source.format} does not expire")

    @abstractmethod
    def impact(self, case: Case) -> SourceImpact:
        """Return the impact of a reset.

        :raises RequestError: the requested position is none of the source's.
        """

    @abstractmethod
    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        """Return the impact of a move to an earlier place.

        :param impact: what the start after that place costs by itself.
        """

    @abstractmethod
    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        """Return whether a source has input after an offset."""

    def lag(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
        """Return how much input a source has after an offset; asked of every flow each minute.

        :raises StreamkeeperError: the source cannot be asked, or the checkpoint's offsets cannot be read.
        """
        return Lag(reason=f"{source.format} does not tell how much waits")

    def reading(self, source: Source, start: Any, ends: Any) -> Reading:
        """Return how much a bounded read of a source gets; only sources with a history are asked.

        :param start: the offsets to read from, if the format has any; None for all that is held.
        :param ends: the offsets to read up to; where there is none, to the end.
        :raises RequestError: there is nothing to read.
        """
        raise NotImplementedError(f"{source.format} keeps no history")

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        """Return why a source of a foreign checkpoint is another than this one; None if nothing says so."""
        return None


def read_again(impact: SourceImpact, amount: Amount, restored: bool) -> SourceImpact:
    """Add what is read again: duplicates if the table is kept, no impact if it is restored to before them."""
    if not restored or amount.nothing:
        return replace(impact, repeated=amount)
    note = f"{in_words(amount)} are read and written again, into the restored table"
    return replace(impact, repeated=NONE, notes=(*impact.notes, note))
