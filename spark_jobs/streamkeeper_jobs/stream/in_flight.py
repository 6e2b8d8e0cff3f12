"""A workaround that lets Spark 4.2.0 replay a batch that was planned and not committed.

Offset log v2 does not record ``spark.sql.shuffle.partitions``. As soon as a query starts, Spark 4.2.0
compares this setting of the batch in flight with that of the batch before
(``OfflineStateRepartitionUtils.isRepartitionBatch``, an ``Option.get`` of nothing). So a query that was
stopped between the two logs, by kill -9 or in good order, can never be started again:
``NoSuchElementException: None.get``. Written into both headers the number is equal, which is what Spark asks.
It then also sets the number of state partitions, whatever the session says, so it must be the number that the
state was made with. Later versions of Spark no longer ask.
"""

from __future__ import annotations

from dataclasses import replace

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.checkpoint.log_entries import PARTITIONS, write_offsets
from streamkeeper.storage import Storage


def made_with(checkpoint: Checkpoint) -> int:
    """Return the number of partitions that the state in a checkpoint has; 0 if there is no state."""
    return max((operator.partitions for operator in checkpoint.operators()), default=0)


def pin_partitions(storage: Storage, folder: str, partitions: str) -> list[int]:
    """Write the missing number of partitions into the headers of the batch in flight and the one before.

    Only the driver that has the lease may call this, before it starts the query. Return the batches that were
    rewritten; none if no batch is in flight. Each file is replaced whole, so after a kill it is enough to
    call this again.

    :param partitions: used for a query that has no state yet; else the number of partitions of its state is.
    :raises CheckpointError: a file of the offset log cannot be read.
    """
    checkpoint = Checkpoint(storage, folder)
    planned, committed = checkpoint.offset_batches(), checkpoint.last_commit()
    if not planned or planned[-1] == 0 or committed == planned[-1]:
        return []
    partitions = str(made_with(checkpoint) or partitions)
    batches = [batch for batch in (planned[-1] - 1, planned[-1]) if batch in planned]
    rewritten = []
    for entry in map(checkpoint.offsets, batches):
        if entry.version == 2 and PARTITIONS not in entry.conf:
            name = checkpoint.name(f"offsets/{entry.batch}")
            storage.remove(twin_of(name))
            storage.overwrite(
                name, write_offsets(replace(entry, conf={**entry.conf, PARTITIONS: partitions}))
            )
            rewritten.append(entry.batch)
    return rewritten
