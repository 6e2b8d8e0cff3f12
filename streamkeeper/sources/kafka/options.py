"""How a Kafka source is read: the options for Spark's reader and for an admin client, and what its options
say of topics.
"""

from __future__ import annotations

import json
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.source_options import moment_ms

PREFIX = "kafka."
STRATEGY = "startingOffsetsByTimestampStrategy"


def start_options(source: Source) -> dict[str, str]:
    """Give the options that let Spark start a Kafka source where it is declared to start, if no checkpoint
    says where.

    Spark's own default is ``latest``, which would leave out what is there.
    """
    start = source.start
    if not isinstance(start, str):
        return {"startingOffsets": json.dumps(start)}
    if start.startswith("timestamp:"):
        return {"startingTimestamp": str(moment_ms(start.partition(":")[2])), STRATEGY: "latest"}
    return {"startingOffsets": start}


def admin_options(source: Source, seconds: float) -> dict[str, str]:
    """Give the options of a client that asks what topics hold, as Kafka's Java clients name them; it waits so
    many seconds at most.
    """
    given = {
        key[len(PREFIX) :]: value for key, value in source.options.items() if key.lower().startswith(PREFIX)
    }
    waits = str(int(seconds * 1000))
    return {"request.timeout.ms": waits, "default.api.timeout.ms": waits, **given}


def assigned(source: Source) -> dict[str, list[int]]:
    """Give the partitions that a source assigns, by topic; nothing where it subscribes."""
    text = source.option("assign")
    value: dict[str, Any] = json.loads(text) if text else {}
    return {topic: sorted(parts) for topic, parts in value.items()}


def plain_id(text: str) -> str:
    """Give a topic's id as Kafka's Java clients write it; others use other signs for the same."""
    return text.replace("+", "-").replace("/", "_").rstrip("=")


def fails_on_loss(source: Source) -> bool:
    """Whether a source is to fail where records are gone that it has not read, as it does unless it is
    declared otherwise.
    """
    return source.option("failOnDataLoss", "true").strip().lower() != "false"
