"""Past positions of a flow: a batch of one of its generations, after which a new generation can begin.

A position is found by its batch, by a time, or as a generation's end. Batches that Spark removed since
(``minBatchesToRetain``) are not available, and the error lists those that are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.checkpoint.state_versions import missing_state, replaced_state
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import (
    BATCH,
    COPIED,
    EMPTY,
    REBUILT,
    Generation,
    InitialState,
    Start,
    StartAt,
)
from streamkeeper.observe import position as standing
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.support.times import ms_in_iso

OTHER_WAYS = (
    "reset_checkpoint starts from earliest, a timestamp or explicit offsets; restore_table restores a backup"
)


@dataclass(frozen=True)
class Place:
    """Position after ``batch`` of a generation. ``found_by`` is how it was found, as text."""

    generation: Generation
    start: Start
    checkpoint: Checkpoint
    batch: int
    found_by: str

    @property
    def start_at(self) -> StartAt:
        """Start of a generation that begins there."""
        return StartAt(BATCH, generation=self.generation.number, batch=self.batch)

    @property
    def standing(self) -> CommittedPosition:
        """Position of the generation when this batch was its last, and in the sink."""
        return CommittedPosition(
            self.generation, self.start, self.checkpoint, self.batch, self.batch, fenced=True
        )

    @property
    def version(self) -> int:
        """Version of its state; one less if only the sink committed the batch, which then runs again."""
        return self.batch + 1 if self.batch in self.checkpoint.commit_batches() else self.batch

    def lacking_state(self) -> str | None:
        """Return the first file lacking for a copy of its state, or replaced by an older one, or None."""
        return missing_state(self.checkpoint, self.version) or replaced_state(self.checkpoint, self.version)

    def offsets(self) -> OffsetEntry:
        """Read the end position of its batch in each source.

        :raises CheckpointError: the file is cut off or garbage.
        """
        return self.checkpoint.offsets(self.batch)

    def positions(self) -> dict[str, Any]:
        """Read the end position of its batch by source name.

        :raises CheckpointError: the file is cut off or garbage.
        """
        return self.offsets().sources

    def __str__(self) -> str:
        return f"batch {self.batch} of generation {self.generation.number}"


def at_batch(home: FlowHome, table_path: str, number: int, batch: int) -> Place:
    """Return the position after a batch of a generation.

    :param table_path: the flow's table; its log has the last batch.
    :raises RequestError: the generation, or the batch, does not exist, or not any more.
    :raises CheckpointError: the generation's checkpoint, or the table's log, cannot be read.
    """
    position = _standing(home, table_path, number)
    last, first = position.batch, position.start.seed_batch
    if last is None or batch > last:
        ended = "it committed none" if last is None else f"its last is {last}"
        raise RequestError(
            f"Generation {number} of {home.full_name} has no batch {batch} in the table: {ended}."
            f" {_offer(home, position)}"
        )
    if first is not None and batch < first:
        raise RequestError(
            f"Batch {batch} of generation {number} of {home.full_name} stands for everything before the"
            f" generation, which started from {position.generation.start.mode} with batch {first}. Name a"
            f" batch of an earlier generation. {_offer(home, position)}"
        )
    if batch not in position.checkpoint.offset_batches():
        raise RequestError(
            f"Batch {batch} of generation {number} of {home.full_name} is no longer available: Spark"
            " removed it from the checkpoint (spark.sql.streaming.minBatchesToRetain; a flow declares"
            f" rewind_window to keep more). {_offer(home, position)}"
        )
    return Place(position.generation, position.start, position.checkpoint, batch, "as asked for")


def at_end(home: FlowHome, table_path: str, number: int) -> Place:
    """Return the position after the last batch of a generation that is in the table and was never undone.

    :raises RequestError: there is no such generation, or it committed nothing.
    :raises CheckpointError: its checkpoint, or the table's log, cannot be read.
    """
    position = _standing(home, table_path, number)
    if position.batch is None:
        raise RequestError(
            f"Generation {number} of {home.full_name} committed no batch after which a rewind could start."
            f" {_alternatives(home)}"
        )
    place = at_batch(home, table_path, number, position.batch)
    return Place(
        place.generation, place.start, place.checkpoint, place.batch, f"the last of generation {number}"
    )


def at_moment(home: FlowHome, table_path: str, moment_ms: int) -> Place:
    """Return the position after the last batch committed at a time (epoch milliseconds) or before, in any
    generation.

    Times are those of the checkpoints' commit files, by their storage's clock; or, where these were copied
    and have another time, those in the checkpoint (:class:`_Times`). A generation's beginning has the time in
    its start file.

    :raises RequestError: nothing was committed yet at that time, or it is not available any more.
    :raises CheckpointError: a checkpoint, or the table's log, cannot be read.
    """
    moment = ms_in_iso(moment_ms)
    for number in reversed(begun(home)):
        start = generations.read_start(home, number)
        assert start is not None, "it was listed as begun"
        checkpoint = Checkpoint(home.storage, start.checkpoint)
        own = standing.own_commits(checkpoint, start)
        times = _Times(checkpoint, own)
        for batch in reversed(own):
            written = times.committed_ms(batch)
            if written is not None and written <= moment_ms:
                place = at_batch(home, table_path, number, batch)
                description = f"the last at or before {moment}: {times.source} {ms_in_iso(written)}"
                return Place(place.generation, place.start, place.checkpoint, batch, description)
        if datetime.fromisoformat(start.at).timestamp() * 1000 > moment_ms:
            continue
        if start.seed_batch is not None and start.seed_batch + 1 == next(iter(own), start.seed_batch + 1):
            place = at_batch(home, table_path, number, start.seed_batch)
            description = (
                f"the generation began at {start.at}, and committed nothing of its own until {moment}"
            )
            return Place(place.generation, place.start, place.checkpoint, start.seed_batch, description)
        reason = (
            "had committed nothing"
            if own and own[0] == 0
            else "had committed batches that Spark removed since"
        )
        raise RequestError(
            f"At {moment} generation {number} of {home.full_name} {reason}. {_alternatives(home)}"
        )
    raise RequestError(
        f"At {moment} {home.full_name} had no generation that is still kept. {_alternatives(home)}"
    )


class _Times:
    """When the batches of a generation were committed.

    A commit's file is written before the next batch is planned, whose time is in the offset log. If it has a
    later time, the folder was copied or restored, and its files have the times of that. Then a batch counts
    as committed when the next one was planned; the last, when it was planned itself.
    """

    def __init__(self, checkpoint: Checkpoint, own: Sequence[int]) -> None:
        self._checkpoint, self._planned = checkpoint, set(checkpoint.offset_batches())
        self._copied = any(map(self._is_late, dict.fromkeys((*own[:1], *own[-2:]))))
        self.source = (
            "the files were copied since; the checkpoint's own times say that it was committed by"
            if self._copied
            else "its commit was written at"
        )

    def committed_ms(self, batch: int) -> float | None:
        """Return when a batch was committed, in epoch milliseconds; None if its commit is gone."""
        if self._copied:
            return self._checkpoint.offsets(batch + 1 if batch + 1 in self._planned else batch).timestamp_ms
        written = self._checkpoint.committed_at(batch)
        return None if written is None else written * 1000

    def _is_late(self, batch: int) -> bool:
        if batch + 1 not in self._planned:
            return False
        written = self._checkpoint.committed_at(batch)
        after = self._checkpoint.offsets(batch + 1).timestamp_ms
        return written is not None and written * 1000 - after > _SKEW_MS


_SKEW_MS = 300_000
"""Milliseconds by which the clocks of a driver and of its checkpoint's store may differ."""


def begun(home: FlowHome) -> list[int]:
    """Return the generations that began and still have their checkpoint, ascending."""
    starts = ((number, generations.read_start(home, number)) for number in home.generations())
    return [number for number, start in starts if start is not None and _is_there(home, number, start)]


def state_from(place: Place, fingerprint: str, requested_state: InitialState) -> tuple[InitialState, str]:
    """Return the state with which a query begins at a position, and the reason.

    It is ``copied`` only if that very state still exists, and the declaration has not changed since.

    :param fingerprint: fingerprint of the flow's current declaration.
    :param requested_state: ``empty`` if that was requested. Any other value: the state is copied, or rebuilt
        from history to be the same.
    """
    if requested_state == EMPTY:
        return EMPTY, "as asked for"
    if place.generation.fingerprint != fingerprint:
        return (
            REBUILT,
            (
                f"the declaration changed since generation {place.generation.number} was decided, so its"
                " state may not fit"
            ),
        )
    lacking = place.lacking_state()
    if lacking is not None:
        return REBUILT, f"the state of {place} was removed or replaced since ({lacking})"
    return (
        COPIED,
        (
            f"the checkpoint of generation {place.generation.number} still has everything of batch"
            f" {place.batch}"
        ),
    )


def _standing(home: FlowHome, table_path: str, number: int) -> CommittedPosition:
    generation, start = generations.read(home, number), generations.read_start(home, number)
    if generation is None or start is None:
        problem = "has no generation" if generation is None else "never began generation"
        raise RequestError(f"{home.full_name} {problem} {number}. {_alternatives(home)}")
    position = standing.look(home, table_path, generation, start)
    if not _is_there(home, number, start):
        raise RequestError(
            f"The checkpoint of generation {number} of {home.full_name} was removed: clean_up does that."
            f" {_alternatives(home)}"
        )
    if position.is_older_copy:
        raise CheckpointError(
            f"The table at {table_path} has batch {position.last_transaction} of generation {number} of"
            f" {home.full_name}, which {position.checkpoint.path()} never planned: it is an older copy."
            f" Restore the newer one. {OTHER_WAYS}."
        )
    return position


def _is_there(home: FlowHome, number: int, start: Start) -> bool:
    return not generations.is_gone(home, number) and Checkpoint(home.storage, start.checkpoint).exists()


def _offer(home: FlowHome, position: CommittedPosition) -> str:
    """Return a sentence with the available batches of a generation, and the alternatives."""
    least = -1 if position.start.seed_batch is None else position.start.seed_batch
    most = -1 if position.batch is None else position.batch
    available_batches = [batch for batch in position.checkpoint.offset_batches() if least <= batch <= most]
    if not available_batches:
        return _alternatives(home)
    oldest, newest = available_batches[0], available_batches[-1]
    return f"Its oldest available batch is {oldest}, the newest {newest}. {_alternatives(home)}"


def _alternatives(home: FlowHome) -> str:
    numbers = ", ".join(map(str, begun(home))) or "none"
    return (
        f"Generations to which a rewind can return: {numbers} (streamkeeper inspect {home.full_name}). Else"
        f" {OTHER_WAYS}."
    )
