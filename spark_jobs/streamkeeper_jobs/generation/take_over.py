"""Take-over from a driver that may still be alive: in a new generation, with a copy of the old checkpoint.

Two queries with one id on one checkpoint would each take the other's batches as done. So a driver whose lease
came without proof does not continue the generation that it finds: it decides the next one, fences the old one
in the sink, and copies its checkpoint as far as the sink has it. The fence makes the sink refuse what the
other driver still sends.
"""

from __future__ import annotations

from typing import Any

from streamkeeper.checkpoint import Checkpoint, CommitEntry, write_commit
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.errors import SinkDisagrees
from streamkeeper.flows import generations
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.observe.position import CommittedPosition
from streamkeeper_jobs.generation.connections import commit_planned, connects_anew
from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint
from streamkeeper_jobs.generation.seed import NewCheckpoint
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.in_flight import pin_partitions
from streamkeeper_jobs.stream.query import run_muted


def own_generation(job: Job, generation: Generation) -> Generation:
    """Return the generation that this driver may run: the given one, or the next if its old driver may live.

    The driver that began it, and every driver since, must be proven dead. A driver before these knows only an
    earlier generation, or fails to begin this one because its start record exists.
    """
    start = generations.read_start(job.home, generation.number)
    reason = _not_ours(job, generation, start) if start is not None else None
    if reason is None:
        return generation
    decided = generations.after_takeover(job.home, generation, job.flow.fingerprint, reason)
    say(
        f"Generation {generation.number} of {job.flow.full_name} is left to its old driver, and generation"
        f" {decided.number} follows it: {reason}."
    )
    job.watch.tell(generation=decided.number)
    return generations.decide(job.home, decided)


def _not_ours(job: Job, generation: Generation, start: Start) -> str | None:
    """Return why a generation that has begun must be left as it is; None if it may continue."""
    doubtful = job.lease.unproven
    if doubtful is not None and doubtful >= start.epoch:
        return f"lease epoch {doubtful} was taken over, and its driver may still run"
    if generations.is_over(job.home, generation.number):
        return "it was fenced in its table, because its driver held the write lock and may have been alive"
    return None


def copy_from(job: Job, new: NewCheckpoint, old_position: CommittedPosition) -> tuple[int, dict[str, Any]]:
    """Fill a checkpoint folder with a copy of the old one as far as the sink has it.

    Return its last batch, and the positions after that. A batch that is in the sink but not committed in the
    checkpoint is run again without output, as a restart would: that creates its state.

    :raises CheckpointError: the old checkpoint lacks what must be copied.
    :raises SinkDisagrees: the table lacks what the old checkpoint committed.
    :raises Stopped: an order ended it; another driver starts over, in another folder.
    """
    entry = old_position.offsets()
    assert entry is not None, "a generation without a batch has nothing to copy"
    if old_position.missing_in_sink is not None:
        raise SinkDisagrees(
            f"{old_position.checkpoint.path()} has committed {old_position.missing_in_sink}, which the table"
            f" at {job.table_path} lacks: it was replaced or restored from an older copy. Restore the newer"
            " table, or choose a start: reset_checkpoint from earliest (empty the table before, or rows"
            " may be duplicated), a timestamp or latest."
        )
    storage, folder = job.home.storage, new.folder
    copied = copy_checkpoint(
        old_position.checkpoint,
        entry.batch,
        folder,
        new.generation.query_id,
        job.watch.obey,
        storage,
        with_state=bool(connects_anew(job)),
    )
    if not copied.committed and connects_anew(job):
        commit_planned(Checkpoint(storage, folder), entry.batch)
    elif not copied.committed and new.operators:
        pin_partitions(storage, folder, str(job.spark.conf.get(PARTITIONS)))
        pin_state_partitions(job.spark, Checkpoint(storage, folder))
        run_muted(
            job.frame(new.schemas, checkpoint=folder),
            f"{job.flow.full_name} (state copied)",
            storage.path(folder),
            job.watch,
            job.flow.declaration.mode,
        )
    elif not copied.committed:
        storage.overwrite(
            f"{folder}/commits/{entry.batch}", write_commit(CommitEntry(entry.batch, 1, entry.watermark_ms))
        )
    positions = {source.name: entry.sources.get(source.name) for source in job.sources}
    return entry.batch, {name: offset for name, offset in positions.items() if offset is not None}
