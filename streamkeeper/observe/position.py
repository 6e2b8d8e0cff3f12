"""Committed position of a flow: the last batch of its generation, from the checkpoint and from the sink.

The last committed batch N of the checkpoint is in the sink. Batch N+1 may be too, since a driver can die
after the sink's commit and before the checkpoint's. So the position is ``offsets[max(last commit, last
transaction)]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry, StateOperator
from streamkeeper.checkpoint.implied_offsets import Ends, implied, newest_before
from streamkeeper.checkpoint.log_entries import gaps
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.delta.log import last_transaction
from streamkeeper.errors import CheckpointError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import EMPTY, Generation, Start, StartMode
from streamkeeper.storage import read_json

_GOES_ON = (StartMode.AFTER_LAST, StartMode.LATEST, StartMode.TIMESTAMP, StartMode.OFFSETS)
"""Starts of a generation that leave the table as the one before it has written it."""


@dataclass(frozen=True)
class CommittedPosition:
    """Committed position of one generation, from its checkpoint and the sink's log."""

    generation: Generation
    start: Start
    checkpoint: Checkpoint
    last_commit: int | None
    last_transaction: int | None
    fenced: bool
    sink_known: bool = True
    """Whether the sink's log reaches back to the last transaction; else the driver asks Spark."""
    sources: tuple[str, ...] = ()
    """Sources that the last driver of the generation read; none if nobody wrote them down."""
    home: FlowHome | None = None
    """Where the flow's drivers write what they have done; None for a query that is none of ours."""

    @property
    def batch(self) -> int | None:
        """Last batch that is certainly in the sink; None if none is committed anywhere."""
        batches = [batch for batch in (self.last_commit, self.last_transaction) if batch is not None]
        return max(batches) if batches else None

    @property
    def ruled_by(self) -> str:
        """Which of the two has the last batch: ``checkpoint`` or ``sink``."""
        return "sink" if self.batch != self.last_commit else "checkpoint"

    @property
    def is_older_copy(self) -> bool:
        """Whether the sink has batches that this checkpoint never planned: their rows are unknown."""
        planned = max((*self.checkpoint.offset_batches(), *self.checkpoint.commit_batches()), default=-1)
        return self.last_transaction is not None and self.last_transaction > planned

    @property
    def operators(self) -> tuple[StateOperator, ...]:
        """Stateful operators of the checkpoint; where it cannot tell, those that the generation began
        with.
        """
        try:
            return self.checkpoint.operators()
        except CheckpointError:
            return tuple(
                StateOperator(number, name, 0, ()) for number, name in enumerate(self.start.operators)
            )

    @property
    def is_removed(self) -> bool:
        """Whether the generation's checkpoint was removed, perhaps only in part."""
        return self.home is not None and generations.is_gone(self.home, self.generation.number)

    @property
    def missing_in_sink(self) -> str | None:
        """Batches, as text, that the checkpoint committed but the sink lacks; None for none, or unknown."""
        first = 0 if self.start.seed_batch is None else self.start.seed_batch + 1
        if self.last_transaction is not None:
            first = max(first, self.last_transaction + 1)
        if not self.sink_known or self.last_commit is None or self.last_commit < first:
            return None
        return f"batch {first}" if first == self.last_commit else f"batches {first} to {self.last_commit}"

    def offsets(self) -> OffsetEntry | None:
        """Read the offsets after which the next generation starts; None if the generation never committed.

        :raises CheckpointError: the batch is in the sink, but its offsets cannot be read; or the checkpoint
            lost its batches.
        """
        if self.batch is None:
            self._check_never_committed()
            return None
        try:
            return self.checkpoint.offsets(self.batch)
        except CheckpointError as error:
            return self._implied(self.batch, error)

    @property
    def is_implied(self) -> bool:
        """Whether the file of its offsets cannot be read, and the rest of the checkpoint implies them."""
        if self.batch is None:
            return False
        try:
            self.checkpoint.offsets(self.batch)
        except CheckpointError:
            return True
        return False

    def _implied(self, batch: int, damage: CheckpointError) -> OffsetEntry:
        seed = self.start.seed_batch
        began = Ends(-1, {}) if seed is None else Ends(seed, self.start.positions)
        try:
            if self.missing_in_sink is not None:
                raise CheckpointError(f"the table lacks {self.missing_in_sink}")
            recorded = recorded_ends(self.home, self.generation.number) if self.home else None
            return implied(self.checkpoint, batch, began, self.sources, recorded)
        except CheckpointError as doubt:
            problem = str(damage).partition(". Nothing was changed")[0]
            newest = newest_before(self.checkpoint, batch, began, self.sources)
            explicit = (
                f"explicit offsets, such as {newest} (the newest that are known; what was read after them is"
                " read again), "
            )
            raise CheckpointError(
                f"{problem}. Batch {batch} is the last that the {self.ruled_by} has, and its offsets are the"
                f" start of the next generation. What is left does not tell them for certain: {doubt}."
                f" Nothing was changed. Restore {self.checkpoint.path(f'offsets/{batch}')} from a copy; or"
                f" choose another start with reset_checkpoint: {explicit if newest else ''}a timestamp or"
                " earliest."
            ) from damage

    def earlier(self) -> Iterator[CommittedPosition]:
        """Yield where the generations before this one ended, whose rows the table has besides: the newest
        first, back to one that began otherwise than by going on, or whose checkpoint is gone.
        """
        return takewhile(lambda position: not position.is_removed, self._continued())

    def removed(self) -> Iterator[CommittedPosition]:
        """Yield the generations before this one whose rows the table has besides, and whose checkpoints are
        gone: where they ended is not known any more.
        """
        return (position for position in self._continued() if position.is_removed)

    def _continued(self) -> Iterator[CommittedPosition]:
        home, generation, start = self.home, self.generation, self.start
        while home is not None and generation.start.mode in _GOES_ON and generation.start.generation is None:
            number, batch = start.evidence.get("generation"), start.evidence.get("batch")
            if not isinstance(number, int) or not isinstance(batch, int):
                return
            between = (generations.read(home, other) for other in range(number + 1, generation.number))
            if any(other is not None and other.start.mode not in _GOES_ON for other in between):
                return  # it was decided, never begun, and its recovery may have emptied the table
            decided, begun = generations.read(home, number), generations.read_start(home, number)
            if decided is None or begun is None:
                return
            generation, start = decided, begun
            checkpoint = Checkpoint(home.storage, start.checkpoint)
            yield CommittedPosition(generation, start, checkpoint, batch, batch, fenced=True, home=home)

    def read_earlier(self, source: Source) -> Iterator[tuple[CommittedPosition, Any]]:
        """Yield where the earlier generations that read a source ended, and its offset there, the newest
        first: up to one in which it was another kind of source, or whose offsets cannot be read.
        """
        for position in self.earlier():
            try:
                entry = position.checkpoint.offsets(position.last_commit or 0)
            except CheckpointError:
                return
            offset = entry.sources.get(source.name)
            if offset is not None:
                if check_fits(source.format, offset) is not None:
                    return
                yield position, offset

    def returned(self, source: Source) -> tuple[CommittedPosition, Any] | None:
        """Return where the newest of the earlier generations that read a source ended, and its offset there;
        None if none is known to have read it.
        """
        return next(self.read_earlier(source), None)

    def kept_batches(self) -> range:
        """Return the batches up to the last whose offsets are kept, without a gap: all, if it begins with 0.

        What an empty state was begun with is none of them.
        """
        if self.batch is None:
            return range(0)
        seed = self.start.seed_batch
        least = 0 if seed is None or self.start.state != EMPTY else seed + 1
        planned = [number for number in self.checkpoint.offset_batches() if least <= number <= self.batch]
        after = max((gap.stop for gap in gaps(planned, least, self.batch + 1)), default=least)
        return range(after, self.batch + 1)

    def _check_never_committed(self) -> None:
        """Check that the generation never committed, rather than lost its batches.

        :raises CheckpointError: it must have committed.
        """
        lost = self.start.seed_batch is not None
        if lost or not self.sink_known:
            reason = (
                f"it was seeded with batch {self.start.seed_batch}"
                if lost
                else "the table's log does not go back far enough"
            )
            raise CheckpointError(
                f"{self.checkpoint.path()} has no committed batch, but {reason}: it was emptied. Nothing was"
                " changed. Restore it from a copy, or choose a start: earliest, a timestamp or explicit"
                " offsets."
            )

    def evidence(self) -> dict[str, Any]:
        """Return the facts read, for the ledger."""
        return {
            "generation": self.generation.number,
            "last_commit": self.last_commit,
            "last_transaction": self.last_transaction,
            "batch": self.batch,
            "ruled_by": self.ruled_by,
            "fenced": self.fenced,
            "sink_known": self.sink_known,
        }


def own_commits(checkpoint: Checkpoint, start: Start) -> list[int]:
    """Return the batches that a generation committed itself: the one that it was seeded with is none."""
    least = -1 if start.seed_batch is None else start.seed_batch
    return [batch for batch in checkpoint.commit_batches() if batch > least]


def look(home: FlowHome, table_path: str, generation: Generation, start: Start) -> CommittedPosition:
    """Return the position of a generation; nothing is changed.

    :raises CheckpointError: its checkpoint cannot be listed, or the sink's log cannot be read.
    """
    # The checkpoint first: a running driver commits in the sink first, so its next batch is no contradiction.
    position = of_checkpoint(home, generation, start)
    sink = last_transaction(table_path, generation.query_id)
    return replace(position, last_transaction=sink.version, fenced=sink.fenced, sink_known=sink.complete)


def of_checkpoint(
    home: FlowHome,
    generation: Generation,
    start: Start,
    last_transaction: int | None = None,
    fenced: bool = False,
) -> CommittedPosition:
    """Return the position of a generation from its checkpoint, and from what is known of the sink already.

    :raises CheckpointError: its checkpoint cannot be listed.
    """
    checkpoint, read = Checkpoint(home.storage, start.checkpoint), sources_of(home, generation.number)
    last = generations.committed(home, generation.number, checkpoint.last_commit())
    return CommittedPosition(
        generation, start, checkpoint, last, last_transaction, fenced, sources=read, home=home
    )


def sources_of(home: FlowHome, number: int) -> tuple[str, ...]:
    """Return the sources that the last driver of a generation read; none if nobody wrote them down."""
    sources = (read_json(home.storage, home.last_run(number)) or {}).get("sources")
    return tuple(sources) if isinstance(sources, dict) else ()


def recorded_ends(home: FlowHome, number: int) -> Ends | None:
    """Return what the last driver of a generation wrote down as read, and after which batch; None if it wrote
    nothing, or a later generation has.
    """
    ends = (read_json(home.storage, home.recent) or {}).get("ends")
    if not isinstance(ends, dict) or ends.get("generation") != number:
        return None
    batch, sources = ends.get("batch"), ends.get("sources")
    return Ends(batch, sources) if isinstance(batch, int) and isinstance(sources, dict) else None
