"""Settings that a checkpoint pins, and that a new checkpoint would take from its own session.

Spark writes some settings into the header of each batch and restores them at each start, whatever the session
says: the state store, its partitions, and the policy for several watermarks (``OffsetSeqMetadata`` in Spark).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamkeeper.checkpoint.log_entries import PARTITIONS, WATERMARK_POLICY
from streamkeeper.declare.driver import OURS
from streamkeeper.errors import CheckpointError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import CommittedPosition

DEFAULTS: Mapping[str, str] = {
    "spark.sql.function.protobufExtensions.enabled": "false",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    WATERMARK_POLICY: "min",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
}
"""Spark's own values of what it pins (Spark 4.2.0; tests/spark/checkpoint/test_pins.py compares them with a
header that Spark wrote).
"""


def changes(flow: Flow, standing: CommittedPosition) -> Iterator[str]:
    """Return which pinned settings a new checkpoint would have otherwise: by what is declared, and Spark's
    defaults.
    """
    try:
        entry = standing.offsets()
        operators = standing.checkpoint.operators()
    except CheckpointError:
        return  # a plan that needs the offsets says what is wrong with them
    if entry is None:
        return
    number = standing.generation.number
    will = {**DEFAULTS, **flow.declaration.spark_conf, **OURS}
    pinned = {PARTITIONS: str(max(operator.partitions for operator in operators))} if operators else {}
    for name, was in sorted(
        {**{item: value for item, value in entry.conf.items() if item != PARTITIONS}, **pinned}.items()
    ):
        then = will.get(name)
        if then is not None and then.lower() != was.lower():
            yield f"Pinned: {name} was {was} in generation {number}; the next generation will use {then}."
    if operators and flow.declaration.spark_conf.get(WATERMARK_POLICY) == "max":
        yield (
            "Watermark: with the policy max, the fastest stream's watermark rules; rows of a stream that is"
            " further behind than its delay are dropped as late."
        )
