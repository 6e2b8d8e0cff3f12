"""Who else has to do with a table that is emptied or put back: flows that read it as a stream, and who wrote
it and is no flow of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import DELTA, Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.delta.history import History, version_at
from streamkeeper.errors import CheckpointError
from streamkeeper.flows import generations
from streamkeeper.flows.adopted_checkpoint import open_adopted
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import (
    ADOPTED,
    AFTER_LAST,
    BATCH,
    EARLIEST,
    LATEST,
    OFFSETS,
    TIMESTAMP,
    Generation,
    Start,
)
from streamkeeper.flows.position import last_begun
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage


def readers(settings: Settings, manifest: Manifest, path: str) -> Iterator[tuple[Flow, Source]]:
    """Give every flow that reads the table at a path or URL as a Delta source, with that source."""
    for flow in manifest.flows():
        for declared in flow.pipeline.sources_of(flow.declaration):
            source = opened_if_possible(declared, settings)
            if (
                source.format == DELTA
                and source.path is not None
                and plain_path(source.path) == plain_path(path)
            ):
                yield flow, source


def what_it_feels(source: Source) -> str:
    """Say what becomes of a reader when rows of its table are removed and written again, by how it reads
    them.
    """
    options = {name.lower(): value.lower() for name, value in source.options.items()}
    if "true" in (options.get("readchangefeed"), options.get("readchangedata")):
        return "gets every row as deleted, and what is written again as inserted"
    if "true" in (
        options.get("skipchangecommits"),
        options.get("ignorechanges"),
        options.get("ignoredeletes"),
    ):
        return "does not see the rows go, and gets what is written again a second time"
    return (
        "fails at the commit that removes rows, and is parked: it needs a reset or a full refresh of its own"
    )


def what_readers_feel(settings: Settings, manifest: Manifest, path: str) -> list[str]:
    """Give what each flow that reads a table will feel, in words."""
    return [f"{flow.full_name} {what_it_feels(source)}" for flow, source in readers(settings, manifest, path)]


@dataclass(frozen=True)
class Need:
    """A version whose files a reader still needs, and those after it; ``why`` says who and why."""

    version: int
    why: str


def needs_of(storage: Storage, flow: Flow, source: Source, history: History) -> Iterator[Need]:
    """Give what a flow still needs of the table that it reads as ``source``: nothing where it is up to date,
    has not begun, or stands in a source of another kind, from which it cannot go on.

    :raises CheckpointError: where it stands, or is to begin, cannot be known.
    :raises SourceError: the commits of the moment that it is to begin at were cleaned up.
    """
    reader = _Reader(FlowHome(storage, flow.pipeline.name, flow.name), flow, source, history)
    begun, newest = last_begun(reader.home), generations.latest(reader.home)
    if begun is not None:
        stands = reader.version(reader.stands(begun[1]))
        if stands is not None:
            yield Need(stands, f"{flow.full_name} reads it and stands at version {stands}.")
    if newest is not None and (begun is None or newest.number > begun[0].number):
        begins = reader.begins(newest)
        if begins is not None and begins <= history.newest:
            said = f"generation {newest.number} of it, decided and not begun yet, begins at version {begins}"
            yield Need(begins, f"{flow.full_name} reads it, and {said}.")


@dataclass(frozen=True)
class _Reader:
    """A flow that reads a table, and the source by which it does."""

    home: FlowHome
    flow: Flow
    source: Source
    history: History

    def version(self, offset: Any) -> int | None:
        """Give the version that is read next after an offset, or was being read; None where nothing that is
        there already is needed.
        """
        if offset is None or misfit_of(self.source.format, offset) is not None:
            return None
        found = int(offset["reservoirVersion"])
        return found if found <= self.history.newest else None

    def stands(self, start: Start) -> Any:
        """Give the offset at which a generation that was begun stands, the table's first snapshot included:
        its first batch may be under way for long, and without a commit it alone says which one it reads.
        """
        checkpoint = Checkpoint(self.home.storage, start.checkpoint)
        last = generations.committed(self.home, start.number, checkpoint.last_commit())
        if last is None:
            last = next(iter(checkpoint.offset_batches()), None)
        return None if last is None else self._offset(checkpoint, last)

    def begins(self, decided: Generation) -> int | None:
        """Give the version at which a generation begins that is decided and not begun; None where it needs
        nothing that is there already.

        :raises CheckpointError: that cannot be known from here.
        """
        start = decided.start
        match start.mode:
            case mode if mode in (
                EARLIEST,
                LATEST,
            ):  # the table as it is when the generation begins, or what comes then
                return None
            case mode if mode == TIMESTAMP and start.timestamp_ms is not None:
                return version_at(self.history, start.timestamp_ms)
            case mode if mode == OFFSETS:
                return self.version((start.offsets or {}).get(self.source.name))
            case mode if mode == BATCH and start.generation is not None and start.batch is not None:
                return self.version(self._offset(self._checkpoint(start.generation), start.batch))
            case mode if mode == ADOPTED:
                adopted = open_adopted(start)
                last = adopted.last_commit()
                return None if last is None else self.version(self._offset(adopted, last))
            case mode if mode == AFTER_LAST and decided.previous is not None:
                return self._after(decided.previous)
            case mode:
                raise CheckpointError(
                    f"Where generation {decided.number} of {self.flow.full_name} begins to read ({mode})"
                    " cannot be known before it has begun. Let its flow run, or run its recovery on."
                )

    def _after(self, number: int) -> int | None:
        """Give the version that follows a generation; one that never began is where it was to begin."""
        begun = generations.read_start(self.home, number)
        if begun is not None:
            return self.version(self.stands(begun))
        decided = generations.read(self.home, number)
        if decided is None:
            raise CheckpointError(
                f"{self.home.storage.path(self.home.generation(number))} is gone. Put it back from a copy."
            )
        return self.begins(decided)

    def _checkpoint(self, number: int) -> Checkpoint:
        start = generations.read_start(self.home, number)
        if start is None:
            raise CheckpointError(
                f"Generation {number} of {self.flow.full_name} never began, or what says so is gone."
            )
        return Checkpoint(self.home.storage, start.checkpoint)

    def _offset(self, checkpoint: Checkpoint, batch: int) -> Any:
        """Read where a batch ends in the source: by its name, or in a log without names by its number."""
        offsets = checkpoint.offsets(batch).sources
        order = str(
            [source.name for source in self.flow.pipeline.sources_of(self.flow.declaration)].index(
                self.source.name
            )
        )
        return offsets.get(self.source.name if self.source.name in offsets or order not in offsets else order)
