"""A checkpoint made ready for sources whose rows come by a connection, which each driver makes anew.

Spark 4.2 starts a socket's query again at its old offset, though the lines of the new connection are counted
from 0: it ends it with "Offsets committed out of order", and leaves lines out in silence. So a batch goes
first that ends before the connection's first line. What was planned and not committed had lines that nobody
can give again (docs/decisions/0062).
"""

from __future__ import annotations

import time
from dataclasses import replace

from streamkeeper.checkpoint import Checkpoint, CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.errors import RecoveryError
from streamkeeper.sources.socket import BEFORE_ALL
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.delta_table import last_written
from streamkeeper_jobs.spark.log import say


def connects_anew(job: Job) -> list[str]:
    """Return the names of the sources whose rows come by a connection."""
    return sorted(source.name for source in job.sources if source.kind.connection)


def begin_connections(job: Job, checkpoint: Checkpoint, query_id: str) -> None:
    """Let the sources that connect anew begin at their connection's first row: by a batch up to there, which
    reads none of their rows.

    That is the batch in flight; or one more, if none is in flight, or the sink has it: then it is committed,
    since its state was written before. Only the driver that has the lease may call this, before it starts the
    query. Each file is replaced whole, so after a kill it is enough to call this again.

    :raises CheckpointError: a file of the checkpoint cannot be read.
    :raises RecoveryError: the state of the batch in flight cannot be committed.
    """
    connection_sources, planned = connects_anew(job), checkpoint.offset_batches()
    if not connection_sources or not planned:
        return
    last, done = planned[-1], checkpoint.last_commit() == planned[-1]
    if not done and last_written(job.spark, job.table_path, query_id) == last:
        commit_planned(checkpoint, last)
        done = True
    before = last if done else last - 1
    if before in planned:
        # Spark opens a source, and connects, for a batch that ends elsewhere than the one before it.
        entry = checkpoint.offsets(before)
        _set(
            checkpoint,
            entry,
            {name: 0 for name in connection_sources if entry.sources.get(name) == BEFORE_ALL},
        )
    entry = checkpoint.offsets(last)
    if done:
        watermark, at = checkpoint.commit(last).next_watermark_ms, int(1000 * time.time())
        entry = replace(entry, batch=last + 1, watermark_ms=watermark, timestamp_ms=at)
    elif any(entry.sources.get(name, BEFORE_ALL) != BEFORE_ALL for name in connection_sources):
        say(
            f"Batch {last} of {job.flow.full_name} was under way: what it had read of"
            f" {', '.join(connection_sources)} is lost, since nobody can give it again."
        )
    _set(checkpoint, entry, dict.fromkeys(connection_sources, BEFORE_ALL), always=done)


def commit_planned(checkpoint: Checkpoint, batch: int) -> None:
    """Commit a batch that the sink has: Spark had written its state before.

    :raises RecoveryError: its states have ids, which only Spark's own commit would name.
    """
    before = checkpoint.commit_batches()[-1:]
    if before and checkpoint.commit(before[0]).state_unique_ids is not None:
        raise RecoveryError(
            f"Batch {batch} of {checkpoint.path()} is in the table, and the ids of its state are not known"
            " (spark.sql.streaming.stateStore.checkpointFormatVersion is 2). It cannot be read again, since"
            " its rows came by a connection. Nothing was changed. Reset the flow (reset_checkpoint), and"
            " leave that setting out."
        )
    watermark = checkpoint.offsets(batch).watermark_ms
    checkpoint.storage.overwrite(
        checkpoint.name(f"commits/{batch}"), write_commit(CommitEntry(batch, 1, watermark))
    )


def _set(checkpoint: Checkpoint, entry: OffsetEntry, offsets: dict[str, int], always: bool = False) -> None:
    """Write an entry of the offset log with other offsets of some of its sources, unless it has them."""
    own_offsets = {name: offset for name, offset in offsets.items() if name in entry.sources}
    now = replace(entry, sources={**entry.sources, **own_offsets})
    if always or now != entry:
        name = checkpoint.name(f"offsets/{entry.batch}")
        checkpoint.storage.remove(twin_of(name))
        checkpoint.storage.overwrite(name, write_offsets(now))
