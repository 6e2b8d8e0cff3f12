"""Options of a Kafka source for Spark's reader and for an admin client, and its topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.source_options import moment_ms

PREFIX = "kafka."
INTERVAL = "fetchOffset.retryIntervalMs"
STRATEGY = "startingOffsetsByTimestampStrategy"


def start_options(source: Source) -> dict[str, str]:
    """Return the options with which Spark starts a Kafka source as declared, if no checkpoint has a position.

    Spark's own default is ``latest``, which would skip the records that are there.
    """
    start = source.start
    if not isinstance(start, str):
        return {"startingOffsets": json.dumps(start)}
    if start.startswith("timestamp:"):
        return {"startingTimestamp": str(moment_ms(start.partition(":")[2])), STRATEGY: "latest"}
    return {"startingOffsets": start}


def patience(source: Source) -> dict[str, str]:
    """Return how long Spark's reader waits where the end of a topic went back, if it bears losses.

    It then takes the lower end for its position after 3 looks, and would read again what comes back after
    the 2 s that they take. A source that bears none fails there, and its driver looks again.
    """
    if fails_on_loss(source) or source.option(INTERVAL):
        return {}
    return {INTERVAL: "30000"}


def admin_options(source: Source, seconds: float) -> dict[str, str]:
    """Return the options of an admin client, as Kafka's Java clients name them.

    :param seconds: that it waits at most.
    """
    declared = {
        key[len(PREFIX) :]: value for key, value in source.options.items() if key.lower().startswith(PREFIX)
    }
    waits = str(int(seconds * 1000))
    return {"request.timeout.ms": waits, "default.api.timeout.ms": waits, **declared}


def assigned(source: Source) -> dict[str, list[int]]:
    """Return the partitions that a source assigns, by topic; empty if it subscribes."""
    text = source.option("assign")
    value: dict[str, Any] = json.loads(text) if text else {}
    return {topic: sorted(parts) for topic, parts in value.items()}


def plain_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of topics as Kafka's Java clients write them; other clients encode them differently.

    A broker without topic ids, as before Kafka 2.8, answers with 0, which is none.
    """
    plain = {topic: text.replace("+", "-").replace("/", "_").rstrip("=") for topic, text in ids.items()}
    return {topic: text for topic, text in plain.items() if text.strip("A")}


def fails_on_loss(source: Source) -> bool:
    """Return whether a source fails if unread records are gone, which is the default."""
    return source.option("failOnDataLoss", "true").strip().lower() != "false"
