"""A new checkpoint that starts at a position, without Spark having run there.

Measured with Spark 4.2 (tests/spark/generation): a checkpoint with ``metadata``, the processed files as
batch 0 of each files log, and ``offsets/0`` continues exactly. With ``commits/0`` as well, a stateless query
needs no run. A stateful query replays batch 0 once without output, which creates its state: empty if no row
is let through, else rebuilt from history. A long history is cut into several such batches
(streamkeeper_jobs.generation.replay).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint import CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.declare.model import Source
from streamkeeper.flows.generations import AFTER_LAST, BATCH, REBUILT, Generation
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.replay_steps import Bound, spread
from streamkeeper_jobs.generation.batches_of_old import BatchesOfOld, batches_of_old, check_accepted
from streamkeeper_jobs.generation.copy_checkpoint import copy_file, schema_logs
from streamkeeper_jobs.generation.replay import Replay, Step, carry_out
from streamkeeper_jobs.generation.source_history import check_history
from streamkeeper_jobs.generation.start_position import Origin
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.formats import Looks, format_in_job
from streamkeeper_jobs.sources.job_format import Planting
from streamkeeper_jobs.stream.batch_header import pin_state_partitions, session_header
from streamkeeper_jobs.stream.query import run_muted

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to be created.

    ``folder`` is a name in the state storage, still empty; ``operators`` are those of the new query.
    ``heeds_batches`` says whether its state depends on where batches end.
    """

    folder: str
    generation: Generation
    schemas: Mapping[str, str]
    operators: tuple[str, ...]
    heeds_batches: bool = False

    @property
    def rebuilds(self) -> bool:
        """Whether history is replayed into the new query's state.

        What lies before the declared start of a first generation is no history.
        """
        return (
            bool(self.operators) and self.generation.state == REBUILT and self.generation.previous is not None
        )


def create_checkpoint(
    job: Job, new: NewCheckpoint, origin: Origin, looks: Looks, old_position: CommittedPosition | None
) -> tuple[int | None, dict[str, Any]]:
    """Fill a checkpoint folder so that the flow starts at its origin.

    Return the batch that stands for everything before (None if nothing was processed before), and the
    positions.

    :param old_position: where the flow stood, whose batches are replayed one by one if the state depends on
        them.
    :raises RecoveryError: the state is to be rebuilt, and files of the history are gone.
    :raises Stopped: an order ended it; another driver starts over, in another folder.
    """
    storage, folder = job.home.storage, new.folder
    pin_state_partitions(job.spark, None)
    storage.overwrite(
        f"{folder}/metadata", json.dumps({"id": new.generation.query_id}, separators=(",", ":")).encode()
    )
    if new.rebuilds and origin.sources:
        check_history(job, new.generation, origin, looks)
    came = BatchesOfOld()
    if new.rebuilds and new.heeds_batches:
        came = batches_of_old(job, new.generation, origin, looks, old_position)
        check_accepted(job, new.generation, came, old_position, new.operators)
    made_of = hashlib.sha256(_initial_state_version(job))
    twice = any(format_in_job(source).twice for source in job.sources if source.name in origin.sources)
    ends = spread(_write_sources(job, new, origin, looks, made_of, came))
    steps = _steps_as_it_came(ends, came, twice) if came.steps else _steps(new, origin, ends, twice)
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
        watermark = step.watermark_ms or 0
        written = replace(entry, batch=batch, watermark_ms=watermark)
        storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(written))
        storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, watermark)))
    return len(steps) - 1, positions


def _initial_state_version(job: Job) -> bytes:
    """Return what distinguishes an initial state from one of another version of its table."""
    initial_state = job.flow.declaration.initial_state
    return (
        b"" if initial_state is None or initial_state.version is None else str(initial_state.version).encode()
    )


def _steps(new: NewCheckpoint, origin: Origin, ends: list[dict[str, Any]], twice: bool) -> tuple[Step, ...]:
    """Return the batches that stand for everything before; none if nothing was processed before.

    History is replayed under watermark 0, or some of it would be late. What the old watermark had emitted was
    emitted then: one more step emits it again without output. Some formats need their position twice as well
    (:attr:`streamkeeper_jobs.sources.job_format.JobFormat.twice`).
    """
    steps = tuple(Step(end, 0 if new.rebuilds else origin.watermark_ms) for end in ends)
    if steps and (twice or (new.rebuilds and origin.watermark_ms > 0)):
        return (*steps, Step(ends[-1], origin.watermark_ms, as_history=False))
    return steps


def _steps_as_it_came(ends: list[dict[str, Any]], came: BatchesOfOld, twice: bool) -> tuple[Step, ...]:
    """Return the batches of old, and before them what is older than those, in bounded steps."""
    first, last = came.steps[0], came.steps[-1]
    before = [] if came.whole else ends[:-1]
    older = (replace(first, positions=end, watermark_ms=0) for end in before)
    again = (replace(last, watermark_ms=None, as_history=False),) if twice else ()
    return (*older, *came.steps, *again)


def _reading(job: Job, new: NewCheckpoint, origin: Origin, looks: Looks) -> Job:
    """Return the job with its sources limited to what the replay needs.

    That is their history, or next to nothing if no row is let through.
    """

    def set_for_replay(source: Source) -> Source:
        position = origin.sources.get(source.name)
        if position is None:
            return source
        return format_in_job(source).for_replay(source, position, partial(looks.look, source), new.rebuilds)

    pipeline = job.flow.pipeline
    return replace(
        job,
        flow=replace(
            job.flow, pipeline=replace(pipeline, sources=tuple(map(set_for_replay, pipeline.sources)))
        ),
    )


def _run(job: Job, reading: Job, new: NewCheckpoint, step: Step) -> int:
    """Run the planned batch without output, which leaves its state behind; return how many rows it read."""
    frame = (reading if step.as_history else job).frame(new.schemas, not new.rebuilds, new.folder)
    return run_muted(
        frame,
        f"{job.flow.full_name} (state {new.generation.state})",
        job.home.storage.path(new.folder),
        job.watch,
        job.flow.declaration.mode,
    )


def _write_sources(  # noqa: PLR0917 - one caller
    job: Job, new: NewCheckpoint, origin: Origin, looks: Looks, made_of: Hash, came: BatchesOfOld
) -> dict[str, list[Any]]:
    """Write what each source keeps in the checkpoint; return the ends of its steps.

    The last end is the position after it.

    :param made_of: updated with what distinguishes this history from others beyond its positions.
    """
    ends: dict[str, list[Any]] = {}
    for source in job.sources:
        if source.name not in origin.sources:
            continue
        bound = Bound.of(job.spark.conf.get).of_source(source) if new.rebuilds else None
        first = came.steps[0].positions.get(source.name) if came.steps else None
        into = Planting(job, new.folder, source, bound, made_of, bool(came.steps), first)
        source_ends = format_in_job(source).write_position(
            into, origin.sources[source.name], partial(looks.look, source)
        )
        if source_ends:
            ends[source.name] = source_ends
    return ends


def keep_schema_logs(
    job: Job, generation: Generation, old_position: CommittedPosition | None, folder: str
) -> None:
    """Copy the schema logs of Delta sources, if the new generation continues from an old position."""
    if old_position is None or generation.start.mode not in (AFTER_LAST, BATCH):
        return
    for source in job.sources:
        for name in schema_logs(old_position.checkpoint, source.name) if source.track_schema else ():
            job.watch.obey()
            copy_file(old_position.checkpoint, name, job.home.storage, folder)
    job.home.storage.sync(folder)
