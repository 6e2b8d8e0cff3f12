"""Settings in the header of a batch, and the one that Spark 4.2.0 omits from version 2 of the offset log.

Without ``spark.sql.shuffle.partitions`` there, Spark takes the number of state partitions from the session at
each start. With another number than the state was made with, it would look for keys in the wrong partition.
So the number is set from the checkpoint before each start. The other effect of the same gap is handled by
streamkeeper_jobs.stream.in_flight.
"""

from __future__ import annotations

import json
from dataclasses import replace

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.stream.in_flight import made_with

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"


def session_header(spark: SparkSession, entry: OffsetEntry) -> OffsetEntry:
    """Return an entry with this session's settings and time in its header.

    The header is the one that Spark itself would write, with the setting that Spark omits.
    """
    java = classes(spark)
    metadata = java("org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    header = json.loads(
        metadata.apply(0, java("java.lang.System").currentTimeMillis(), spark._jsparkSession.conf()).json()
    )
    conf = {name: value for name, value in header["conf"].items() if value is not None}
    return replace(
        entry,
        timestamp_ms=int(header["batchTimestampMs"]),
        conf={**conf, PARTITIONS: _shuffle_partitions(spark)},
    )


def pin_state_partitions(spark: SparkSession, checkpoint: Checkpoint | None) -> None:
    """Set the number of state partitions to the checkpoint's; for a new one, to the session's."""
    partitions = 0 if checkpoint is None else made_with(checkpoint)
    spark.conf.set(STATE_PARTITIONS, partitions or int(_shuffle_partitions(spark)))


def _shuffle_partitions(spark: SparkSession) -> str:
    return str(spark.conf.get(PARTITIONS))
