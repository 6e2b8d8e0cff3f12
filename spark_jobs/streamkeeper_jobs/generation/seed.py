"""Making a new checkpoint that starts at a position, without Spark having run there.

What was measured (FACTS-spark, "Starting a new checkpoint"): a checkpoint with ``metadata``, the processed
files as batch 0 of each files log, and ``offsets/0`` continues exactly. With ``commits/0`` as well no run is
needed, if the query keeps no state. A query that keeps state replays batch 0 once into nowhere, which makes
its state: empty if no row is let through, rebuilt from history if they are. A long history is cut into
several such batches (streamkeeper_jobs.generation.replay).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint import (
    CommitEntry,
    OffsetEntry,
    write_commit,
    write_initial_offsets,
    write_offsets,
)
from streamkeeper.declare.model import Source
from streamkeeper.flows.generations import AFTER_LAST, BATCH, REBUILT, Generation
from streamkeeper.flows.position import Standing
from streamkeeper.sources.replay_steps import Bound, cut_offsets, spread
from streamkeeper_jobs.generation.copy_checkpoint import copy_file, schema_logs
from streamkeeper_jobs.generation.replay import Replay, Step, carry_out
from streamkeeper_jobs.generation.source_history import check_history
from streamkeeper_jobs.generation.start_position import FilesOrigin, Origin, RateOrigin
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.files_log_writer import FilesLog, write_in_steps
from streamkeeper_jobs.sources.look import Looks
from streamkeeper_jobs.sources.start_delta import DeltaOrigin, delta_ends
from streamkeeper_jobs.sources.start_kafka import KafkaOrigin
from streamkeeper_jobs.stream.batch_header import pin_state_partitions, session_header
from streamkeeper_jobs.stream.query import run_muted
from streamkeeper_jobs.stream.readers import base_url

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to be made. ``folder`` is a name in the state storage, with nothing in it yet;
    ``operators`` are the new query's.
    """

    folder: str
    generation: Generation
    schemas: Mapping[str, str]
    operators: tuple[str, ...]

    @property
    def rebuilds(self) -> bool:
        """Whether history is replayed into the new query's state. What lies before the declared start of a
        first generation is none.
        """
        return (
            bool(self.operators) and self.generation.state == REBUILT and self.generation.previous is not None
        )


def plant(job: Job, new: NewCheckpoint, origin: Origin, looks: Looks) -> tuple[int | None, dict[str, Any]]:
    """Fill a checkpoint folder so that the flow starts at its origin; give the batch that stands for
    everything before, and the positions.

    No batch (None) stands for it where nothing was processed before.

    :raises RecoveryError: the state is to be rebuilt, and files of the history are gone.
    :raises Stopped: an order ended it; another driver starts anew, in another folder.
    """
    storage, folder = job.home.storage, new.folder
    pin_state_partitions(job.spark, None)
    storage.overwrite(
        f"{folder}/metadata", json.dumps({"id": new.generation.query_id}, separators=(",", ":")).encode()
    )
    if new.rebuilds and origin.sources:
        check_history(job, new.generation, origin, looks)
    made_of = hashlib.sha256()
    steps = _steps(new, origin, spread(_write_sources(job, new, origin, looks, made_of)))
    if not steps:
        return None, {}
    positions = dict(steps[-1].positions)
    entry = session_header(job.spark, OffsetEntry(0, 2, 0, 0, {}, positions, {"sourceMetadataInfo": {}}))
    if new.operators:
        reading = _reading(job, new, origin, looks)
        run = partial(_run, job, reading, new)
        carry_out(job, Replay(folder, new.generation, steps, entry, made_of.hexdigest(), run))
        return len(steps) - 1, positions
    for batch, step in enumerate(steps):
        written = replace(entry, batch=batch, watermark_ms=step.watermark_ms)
        storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(written))
        storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, step.watermark_ms)))
    return len(steps) - 1, positions


def _steps(new: NewCheckpoint, origin: Origin, ends: list[dict[str, Any]]) -> tuple[Step, ...]:
    """Give the batches that stand for everything before; none where nothing was processed before.

    History is replayed under watermark 0, or some of it would be late. What it had emitted by the old
    watermark was emitted then: one more step lets it be emitted into nowhere, so that it is not emitted
    again. A Delta source has its position twice, too: Spark asks it, at each start, for its last batch once
    more, from the batch before. Where there is none that would be the whole table, and fails if the version
    before the position cannot be put together any more.
    """
    steps = tuple(Step(end, 0 if new.rebuilds else origin.watermark_ms) for end in ends)
    reads_tables = any(isinstance(found, DeltaOrigin) for found in origin.sources.values())
    if steps and (reads_tables or (new.rebuilds and origin.watermark_ms > 0)):
        return (*steps, Step(ends[-1], origin.watermark_ms, as_history=False))
    return steps


def _reading(job: Job, new: NewCheckpoint, origin: Origin, looks: Looks) -> Job:
    """Give the job with its Delta sources reading what the replay needs: their history, or next to nothing
    where no row is let through.
    """

    def set_for_replay(source: Source) -> Source:
        found = origin.sources.get(source.name)
        if not isinstance(found, DeltaOrigin):
            return source
        history = looks.history(source)
        only = (
            found.replay_options(history)
            if new.rebuilds
            else {"startingVersion": str(found.version_before(history))}
        )
        return replace(source, options={**source.options, **only})

    pipeline = job.flow.pipeline
    return replace(
        job,
        flow=replace(
            job.flow, pipeline=replace(pipeline, sources=tuple(map(set_for_replay, pipeline.sources)))
        ),
    )


def _run(job: Job, reading: Job, new: NewCheckpoint, step: Step) -> int:
    """Run the one batch that is planned and not committed into nowhere, which leaves its state behind; give
    how many rows it read.
    """
    frame = (reading if step.as_history else job).frame(new.schemas, not new.rebuilds, new.folder)
    return run_muted(
        frame,
        f"{job.flow.full_name} (state {new.generation.state})",
        job.home.storage.path(new.folder),
        job.watch,
    )


def _write_sources(
    job: Job, new: NewCheckpoint, origin: Origin, looks: Looks, made_of: Hash
) -> dict[str, list[Any]]:
    """Write what each source keeps of its own; give the ends of its steps, the last of which is the position
    after it.

    :param made_of: gets what tells this history from others, as far as the positions do not.
    """
    storage, folder = job.home.storage, new.folder
    ends: dict[str, list[Any]] = {}
    for source in job.sources:
        bound = Bound.of(job.spark.conf.get).of_source(source) if new.rebuilds else None
        match origin.sources.get(source.name):
            case FilesOrigin(entries):
                log = FilesLog(
                    f"{folder}/sources/{source.name}", source, base_url(job.spark, source), entries
                )
                if found := write_in_steps(storage, log, bound, made_of):
                    ends[source.name] = found
            case RateOrigin(started, seconds):
                storage.overwrite(f"{folder}/sources/{source.name}/0", started)
                ends[source.name] = [seconds]
            case KafkaOrigin(offsets, initial, replay_from):
                first = replay_from if new.rebuilds and offsets is not None else initial
                storage.overwrite(f"{folder}/sources/{source.name}/0", write_initial_offsets(first))
                if offsets is not None:
                    ends[source.name] = cut_offsets(first, offsets, bound.records) if bound else [offsets]
            case DeltaOrigin(offset) as found:
                ends[source.name] = (
                    delta_ends(job.spark, source, found, looks.history(source), bound) if bound else [offset]
                )
            case None:
                pass
    return ends


def keep_schema_logs(job: Job, generation: Generation, where: Standing | None, folder: str) -> None:
    """Copy the logs of the schemas of Delta sources, where the new generation goes on where the old one
    stood.
    """
    if where is None or generation.start.mode not in (AFTER_LAST, BATCH):
        return
    for source in job.sources:
        for name in schema_logs(where.checkpoint, source.name) if source.track_schema else ():
            job.watch.obey()
            copy_file(where.checkpoint, name, job.home.storage, folder)
