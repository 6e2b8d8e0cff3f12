"""Making a new checkpoint that starts at a position, without Spark having run there.

What was measured (FACTS-spark, "Starting a new checkpoint"): a checkpoint with ``metadata``, the processed files as batch 0 of each
files log, and ``offsets/0`` continues exactly. With ``commits/0`` as well no run is needed, if the query keeps no state. A query that
keeps state replays batch 0 once into nowhere, which makes its state: empty if no row is let through, rebuilt from history if they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamkeeper.checkpoint import (
    CommitEntry,
    FileEntry,
    OffsetEntry,
    write_commit,
    write_files_log,
    write_initial_offsets,
    write_offsets,
)
from streamkeeper.declarations import Source
from streamkeeper.generations import AFTER_LAST, BATCH, REBUILT, Generation
from streamkeeper.standing import Standing
from streamkeeper.storage import LocalStorage, Storage
from streamkeeper_jobs.copying import copy_file, schema_logs
from streamkeeper_jobs.headers import pin_state_partitions, session_header
from streamkeeper_jobs.histories import check_history
from streamkeeper_jobs.job import Job
from streamkeeper_jobs.listing import Looks
from streamkeeper_jobs.origins import FilesOrigin, Origin, RateOrigin
from streamkeeper_jobs.origins_delta import DeltaOrigin
from streamkeeper_jobs.origins_kafka import KafkaOrigin
from streamkeeper_jobs.query import run_muted
from streamkeeper_jobs.sources import base_url


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to be made. ``folder`` is a name in the state storage, with nothing in it yet; ``operators`` are the new query's."""

    folder: str
    generation: Generation
    schemas: Mapping[str, str]
    operators: tuple[str, ...]

    @property
    def rebuilds(self) -> bool:
        """Whether history is replayed into the new query's state. What lies before the declared start of a first generation is none."""
        return bool(self.operators) and self.generation.state == REBUILT and self.generation.previous is not None


def plant(job: Job, new: NewCheckpoint, origin: Origin, looks: Looks) -> tuple[int | None, dict[str, Any]]:
    """Fill a checkpoint folder so that the flow starts at its origin; give the batch that stands for everything before, and the positions.

    No batch (None) stands for it where nothing was processed before.

    :raises RecoveryError: the state is to be rebuilt, and files of the history are gone.
    :raises Stopped: an order ended it; another driver starts anew, in another folder.
    """
    storage, folder = job.home.storage, new.folder
    pin_state_partitions(job.spark, None)
    storage.overwrite(f"{folder}/metadata", json.dumps({"id": new.generation.query_id}, separators=(",", ":")).encode())
    positions = _write_sources(job, new, origin)
    if not positions:
        return None, {}
    if new.rebuilds:
        check_history(job, new.generation, origin, looks)
    entry = session_header(
        job.spark, OffsetEntry(0, 2, 0 if new.rebuilds else origin.watermark_ms, 0, {}, positions, {"sourceMetadataInfo": {}})
    )
    storage.overwrite(f"{folder}/offsets/0", write_offsets(entry))
    if not new.operators:
        storage.overwrite(f"{folder}/commits/0", write_commit(CommitEntry(0, 1, origin.watermark_ms)))
    else:
        _replay(_reading(job, new, origin, looks), new)
    # What history had emitted by the old watermark was emitted then: let it be emitted into nowhere, so that it is not emitted again.
    emits_again = new.rebuilds and origin.watermark_ms > 0
    if not emits_again and not _reads_tables(origin):
        return 0, positions
    storage.overwrite(f"{folder}/offsets/1", write_offsets(replace(entry, batch=1, watermark_ms=origin.watermark_ms)))
    if new.operators:
        _replay(job, new)
    else:
        storage.overwrite(f"{folder}/commits/1", write_commit(CommitEntry(1, 1, origin.watermark_ms)))
    return 1, positions


def _reads_tables(origin: Origin) -> bool:
    """Whether a Delta source has a position.

    Spark asks such a source, at each start, for its last batch once more, from the batch before. Where there is none that would be the
    whole table, and fails if the version before the position cannot be put together any more; so the position is there twice.
    """
    return any(isinstance(found, DeltaOrigin) for found in origin.sources.values())


def _reading(job: Job, new: NewCheckpoint, origin: Origin, looks: Looks) -> Job:
    """Give the job with its Delta sources reading what the replay needs: their history, or next to nothing where no row is let through."""

    def set_for_replay(source: Source) -> Source:
        found = origin.sources.get(source.name)
        if not isinstance(found, DeltaOrigin):
            return source
        history = looks.history(source)
        only = found.replay_options(history) if new.rebuilds else {"startingVersion": str(found.version_before(history))}
        return replace(source, options={**source.options, **only})

    pipeline = job.flow.pipeline
    return replace(job, flow=replace(job.flow, pipeline=replace(pipeline, sources=tuple(map(set_for_replay, pipeline.sources)))))


def _replay(job: Job, new: NewCheckpoint) -> None:
    """Run the one batch that is planned and not committed into nowhere, which leaves its state behind."""
    name = f"{job.flow.full_name} (state {new.generation.state})"
    run_muted(job.frame(new.schemas, not new.rebuilds, new.folder), name, job.home.storage.path(new.folder), job.watch)


def _write_sources(job: Job, new: NewCheckpoint, origin: Origin) -> dict[str, Any]:
    """Write what each source keeps of its own; give the positions after it."""
    storage, folder = job.home.storage, new.folder
    positions: dict[str, Any] = {}
    for source in job.sources:
        match origin.sources.get(source.name):
            case FilesOrigin(entries):
                if _write_log(storage, f"{folder}/sources/{source.name}/0", _of_batch_0(entries(), base_url(job.spark, source))):
                    positions[source.name] = {"logOffset": 0}
            case RateOrigin(started, seconds):
                storage.overwrite(f"{folder}/sources/{source.name}/0", started)
                positions[source.name] = seconds
            case KafkaOrigin(offsets, initial, replay_from):
                first = replay_from if new.rebuilds and offsets is not None else initial
                storage.overwrite(f"{folder}/sources/{source.name}/0", write_initial_offsets(first))
                if offsets is not None:
                    positions[source.name] = offsets
            case DeltaOrigin(offset):
                positions[source.name] = offset
            case None:
                pass
    return positions


def keep_schema_logs(job: Job, generation: Generation, where: Standing | None, folder: str) -> None:
    """Copy the logs of the schemas of Delta sources, where the new generation goes on where the old one stood."""
    if where is None or generation.start.mode not in (AFTER_LAST, BATCH):
        return
    for source in job.sources:
        for name in schema_logs(where.checkpoint, source.name) if source.track_schema else ():
            job.watch.obey()
            copy_file(where.checkpoint, name, folder)


def _of_batch_0(entries: Iterable[FileEntry], base: str) -> Iterator[FileEntry]:
    """Give the files as batch 0; those outside of the source's folder (its path was changed) can never be found there again."""
    return (replace(entry, batch=0) for entry in entries if entry.path.startswith(base) or any(sign in base for sign in "*?{["))


def _write_log(storage: Storage, name: str, entries: Iterable[FileEntry]) -> int:
    """Write one file of a files log, piece by piece on a local disk; give how many files it lists. Nothing is written for none."""
    counted = _Counted(entries)
    if isinstance(storage, LocalStorage):
        target = Path(storage.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(write_files_log(counted))
    else:
        storage.overwrite(name, b"".join(write_files_log(counted)))
    if not counted.count:
        storage.remove(name)
    return counted.count


class _Counted:
    """Entries that are counted as they pass."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        self._entries, self.count = entries, 0

    def __iter__(self) -> Iterator[FileEntry]:
        for entry in self._entries:
            self.count += 1
            yield entry
