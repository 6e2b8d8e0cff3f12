"""Streaming readers of a table: what removed rows mean for each, and the oldest version it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_never

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.cdc_spec import COMMIT_VERSION
from streamkeeper.declare.model import AutoCdcFlow, Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.delta.history import History, version_at
from streamkeeper.delta.summary import columns_of
from streamkeeper.errors import CheckpointError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start, StartMode
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.adopted_checkpoint import open_adopted
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage


def readers(settings: Settings, manifest: Manifest, path: str) -> Iterator[tuple[Flow, Source]]:
    """Yield every flow that reads the table at a path or URL as a Delta source, with that source."""
    for flow in manifest.flows():
        for declared in flow.sources:
            source = opened_if_possible(declared, settings)
            if source.kind.table and source.path is not None and plain_path(source.path) == plain_path(path):
                yield flow, source


@dataclass(frozen=True)
class ReaderEffects:
    """What happens to the readers of a table when its rows are removed and written again: a sentence for each
    reader in ``all``, and again in ``losses`` for each whose own table may lack rows afterwards.
    """

    all: tuple[str, ...]
    losses: tuple[str, ...]


def effects_on_readers(settings: Settings, manifest: Manifest, path: str) -> ReaderEffects:
    """Return what happens to each reader of a table when rows are removed and written again."""
    effects = [
        (f"{flow.full_name} {_effect_on(flow, source)}", _may_lose(flow, source))
        for flow, source in readers(settings, manifest, path)
    ]
    losses = tuple(sentence for sentence, loses in effects if loses)
    return ReaderEffects(tuple(sentence for sentence, _ in effects), losses)


def _effect_on(flow: Flow, source: Source) -> str:
    on = {name.lower() for name, value in source.options.items() if value.lower() == "true"}
    if source.reads_change_feed:
        feed = "gets every row as deleted, and the rows written again as inserted"
        if _may_lose(flow, source):
            return (
                f"{feed}, by one commit, and is not declared with change_feed=True: rows whose delete and"
                " insert have the same sequence are lost to its table"
            )
        spec = flow.declaration.spec
        return f"{feed}: its table is right again afterwards" if spec and spec.change_feed else feed
    if on & {"skipchangecommits", "ignorechanges", "ignoredeletes"}:
        return "does not see the deletes, and gets the rows written again as duplicates"
    return "fails at the commit that removes rows and is parked: it then needs a reset or a full refresh"


def _may_lose(flow: Flow, source: Source) -> bool:
    """Return whether a reader applies a change feed in an order that may put a row's delete after what
    replaces the row, for all that its declaration says. A column of the table ranks nothing: a row that is
    written again has the value that it had.
    """
    if not source.reads_change_feed or not isinstance(flow.declaration, AutoCdcFlow):
        return False
    spec = flow.declaration.spec
    names = [name.lower() for name in spec.sequence_by]
    ranked = names[:1] == [COMMIT_VERSION] and bool({*names[1:]} - columns_of(str(source.path)))
    return not ranked and spec.apply_as_deletes is not None


@dataclass(frozen=True)
class Need:
    """Version whose files, and all later ones, a reader still needs; ``reason`` names it, and says why."""

    version: int
    reason: str


def needs_of(storage: Storage, flow: Flow, source: Source, history: History) -> Iterator[Need]:
    """Yield the versions that a flow still needs of the table behind ``source``.

    There is none if the flow is up to date or has not begun. There is none either if its position is that of
    another kind of source: it cannot continue from that.

    :raises CheckpointError: its position, or the start of its next generation, cannot be determined.
    :raises SourceError: the commits at the time of that start were cleaned up.
    """
    reader = _Reader(FlowHome(storage, flow.pipeline.name, flow.name), flow, source, history)
    observed = Observed(reader.home)
    begun, newest = observed.begun, observed.newest
    if begun is not None:
        current_version = reader.version(reader.generation_offset(begun[1]))
        if current_version is not None:
            yield Need(current_version, f"{flow.full_name} reads it and is at version {current_version}.")
    if newest is not None and (begun is None or newest.number > begun[0].number):
        begins = reader.begins(newest)
        if begins is not None and begins <= history.newest:
            description = (
                f"generation {newest.number} of it, decided and not started yet, starts at version {begins}"
            )
            yield Need(begins, f"{flow.full_name} reads it, and {description}.")


@dataclass(frozen=True)
class _Reader:
    """Reader of a table, and the source by which it reads."""

    home: FlowHome
    flow: Flow
    source: Source
    history: History

    def version(self, offset: Any) -> int | None:
        """Return the version to be read after an offset, or being read; None if no existing one is needed."""
        if offset is None or misfit_of(self.source.format, offset) is not None:
            return None
        version = int(offset["reservoirVersion"])
        return version if version <= self.history.newest else None

    def generation_offset(self, start: Start) -> Any:
        """Return the offset of a begun generation, including one within the table's first snapshot."""
        checkpoint = Checkpoint(self.home.storage, start.checkpoint)
        last = generations.committed(self.home, start.number, checkpoint.last_commit())
        if last is None:
            # The first batch may run for long. Until its commit, only its offset shows which snapshot it
            # reads.
            last = next(iter(checkpoint.offset_batches()), None)
        return None if last is None else self._offset(checkpoint, last)

    def begins(self, decided: Generation) -> int | None:
        """Return the starting version of a pending generation; None if it needs no existing version.

        :raises CheckpointError: it cannot be determined from here.
        """
        start = decided.start
        match start.mode:
            case StartMode.EARLIEST | StartMode.LATEST:
                # Both read only the table at the time when the generation begins, or later commits.
                return None
            case StartMode.TIMESTAMP:
                assert start.timestamp_ms is not None, "a decision by timestamp has one"
                return version_at(self.history, start.timestamp_ms)
            case StartMode.OFFSETS:
                return self.version((start.offsets or {}).get(self.source.name))
            case StartMode.BATCH:
                assert start.generation is not None and start.batch is not None, "it names a batch"
                return self.version(self._offset(self._checkpoint(start.generation), start.batch))
            case StartMode.ADOPTED:
                adopted = open_adopted(start)
                last = adopted.last_commit()
                return None if last is None else self.version(self._offset(adopted, last))
            case StartMode.AFTER_LAST if decided.previous is not None:
                return self._after(decided.previous)
            case StartMode.AFTER_LAST | StartMode.SIDE_TABLE | StartMode.GENERATION as mode:
                raise CheckpointError(
                    f"Where generation {decided.number} of {self.flow.full_name} begins to read ({mode}) is"
                    " unknown before it has started. Let its flow run, or continue its recovery."
                )
            case _:
                assert_never(start.mode)

    def _after(self, number: int) -> int | None:
        """Return the version after a generation; for one that never began, its starting version."""
        begun = generations.read_start(self.home, number)
        if begun is not None:
            return self.version(self.generation_offset(begun))
        decided = generations.read(self.home, number)
        if decided is None:
            raise CheckpointError(
                f"{self.home.storage.path(self.home.generation(number))} is gone. Restore it from a copy."
            )
        return self.begins(decided)

    def _checkpoint(self, number: int) -> Checkpoint:
        start = generations.read_start(self.home, number)
        if start is None:
            raise CheckpointError(
                f"Generation {number} of {self.flow.full_name} never started, or its start file no longer"
                " exists."
            )
        return Checkpoint(self.home.storage, start.checkpoint)

    def _offset(self, checkpoint: Checkpoint, batch: int) -> Any:
        """Read the end offset of a batch in the source."""
        return checkpoint.offsets(batch).sources.get(self.source.name)
