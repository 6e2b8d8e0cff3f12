"""Settings that a checkpoint pins, and that a new checkpoint would take from its own session.

Spark writes some settings into the header of each batch and restores them at each start, whatever the session
says: the state store, its partitions, and the policy for several watermarks (``OffsetSeqMetadata`` in Spark).
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.checkpoint.log_entries import PARTITIONS, PINNED, WATERMARK_POLICY
from streamkeeper.declare.driver import OURS
from streamkeeper.errors import CheckpointError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import CommittedPosition


def changes(flow: Flow, standing: CommittedPosition) -> Iterator[str]:
    """Return the pinned settings that a new checkpoint would have otherwise, as declared or by default."""
    try:
        entry = standing.offsets()
        operators = standing.checkpoint.operators()
    except CheckpointError:
        return  # a plan that needs the offsets says what is wrong with them
    if entry is None:
        return
    number = standing.generation.number
    will = {**PINNED, **flow.declaration.spark_conf, **OURS}
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
