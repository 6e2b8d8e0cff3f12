"""What a flow stands on beside its declaration: whether table and sources are its checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Source
from streamkeeper.errors import CheckpointError, NewerCheckpoint, SourceError, StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, Generation, Start, StartAt
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe import position
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.settings import Settings
from streamkeeper.sources.base.format import LOOKED_AT_AGAIN, Before
from streamkeeper.sources.files.listing import is_rewritten, list_files
from streamkeeper.sources.kafka.options import fails_on_loss
from streamkeeper.sources.starts import starts_of
from streamkeeper.trial.verdict import Compatibility, Verdict

Look = Callable[[Source], Any]


def standing(
    settings: Settings, home: FlowHome, flow: Flow, begun: tuple[Generation, Start], look: Look
) -> Verdict:
    """Return the verdict on a flow's table and sources; what differs in its declaration is not looked at.

    :param flow: with its sources opened.
    :param begun: the newest generation that a driver began.
    :param look: takes the look at a source whose unread data can expire.
    """
    verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE)
    broken = replace(verdict, compatibility=Compatibility.INCOMPATIBLE, recovery="reset_checkpoint")
    generation, start = begun
    path = settings.table_path(flow.declaration.target)
    try:
        committed = position.look(home, path, generation, start)
        contradiction = _contradiction(committed, path)
        if contradiction is not None:
            return replace(broken, reasons=(contradiction,))
        notes = list(_unknown(committed, path))
        pins = committed.checkpoint.unknown_pins()
        notes += [] if pins is None else [f"The checkpoint {pins}."]
        for source in flow.sources:
            lost, source_notes = _source(source, start, committed.checkpoint, look)
            if lost:
                return replace(broken, reasons=(f"The source {source.name} cannot go on: {lost}.",))
            notes += source_notes
    except NewerCheckpoint as error:
        return replace(broken, recovery=None, reasons=(str(error),))
    except CheckpointError as error:
        return replace(broken, reasons=(str(error),))
    return replace(
        verdict,
        compatibility=Compatibility.RESULTS_DIFFER if notes else Compatibility.COMPATIBLE,
        reasons=tuple(notes),
    )


def _contradiction(committed: CommittedPosition, path: str) -> str | None:
    if committed.fenced:
        return f"The table at {path} is fenced against this generation: a later one wrote it."
    if committed.missing_in_sink is not None:
        return (
            f"The table at {path} lacks {committed.missing_in_sink} of this flow: it is another table, or was"
            " replaced or restored."
        )
    if committed.is_older_copy:
        return (
            f"The table at {path} has batches that the checkpoint never planned: the state is an older copy."
        )
    return None


def _unknown(committed: CommittedPosition, path: str) -> Iterator[str]:
    if not committed.sink_known:
        yield f"The log of {path} does not go back to the flow's last batch: whether it has it is not known."


def _source(source: Source, start: Start, checkpoint: Checkpoint, look: Look) -> tuple[str, list[str]]:
    """Return why a source cannot go on after what was read, or nothing; and what is to be noted."""
    last = checkpoint.last_commit()
    offset = None if last is None else checkpoint.offsets(last).sources.get(source.name)
    if offset is None:
        return "", []
    try:
        if source.reads_files:
            return "", list(_written_again(source, checkpoint))
        if not starts_of(source).expires:
            return "", []
        before = Before(checkpoint, start.evidence, source.name, offset, strict=False)
        resolved = starts_of(source).resolve(source, StartAt(AFTER_LAST), before, lambda: look(source))
    except (SourceError, StorageError) as error:
        return "", [f"The source {source.name} could not be looked at: {error}"]
    lost = resolved.blocked or (resolved.lost if fails_on_loss(source) and not resolved.may_pass else "")
    notes = (*resolved.notes, *((LOOKED_AT_AGAIN,) if resolved.may_pass else ()))
    return lost, [f"The source {source.name}: {note}." for note in notes]


def _written_again(source: Source, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield that files were written again since they were read: Spark knows files by their paths alone."""
    files = list_files(source)
    read = {
        plain_path(entry.path): entry.timestamp_ms for entry in checkpoint.files_log(source.name).entries()
    }
    again = [path for path, at in read.items() if path in files and is_rewritten(files[path], at)]
    if again:
        yield (
            f"The source {source.name} has files that were written again after they were read ({len(again)},"
            f" such as {again[0]}): Spark does not read them again."
        )
