"""Flows that write sinks, and what a plain reader finds there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from tests.oracle import counted
from tests.worlds.flow_world import COLUMNS, SCHEMA, Flowbed

Rows = Callable[[], list[dict[str, Any]]]

_FLOW = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{data}/events", schema="@schema",
                 options={"maxFilesPerTrigger": 1})
@sink

@dp.append_flow(name="clean_events", target="events", sources=["events_raw"], trigger="200 milliseconds")
def clean_events(events):
    return events@query
"""
_FUNCTION = """
@dp.foreach_batch_sink()
def events(batch, batch_id, transaction):
    assert batch_id == transaction.version
    batch.write.format("delta").mode("append").options(**transaction.options).save("@copies")
"""
_AS_JSON = '.select(F.col("user_id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))'


def into(sink: str, query: str = "") -> str:
    """Return the text of a pipeline whose flow writes a sink; ``sink`` declares it under the name events."""
    return _FLOW.replace("@schema", SCHEMA).replace("@sink", sink).replace("@query", query)


def into_files(format: str, folder: str = "out", root: str = "{data}") -> str:
    return into(f'dp.create_sink("events", "{format}", {{"path": "{root}/{folder}"}})')


def into_function(bed: Flowbed, root: str | None = None) -> str:
    """Return the text of a flow whose function copies each batch into a Delta table, ``copies`` in the bed's
    folder or in another one.
    """
    return into(_FUNCTION.replace("@copies", f"{root or bed.root}/copies"))


def make_topic(brokers: str) -> dict[str, str]:
    """Make a topic; return the options of Spark's reader of it."""
    topic = f"out-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    return {
        "kafka.bootstrap.servers": brokers,
        "subscribe": topic,
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }


def into_topic(options: Mapping[str, str]) -> str:
    where = {
        "kafka.bootstrap.servers": options["kafka.bootstrap.servers"],
        "topic": options["subscribe"],
    }
    return into(f'dp.create_sink("events", "kafka", {where})', _AS_JSON)


def in_topic(bed: Flowbed, options: Mapping[str, str]) -> DataFrame:
    """Return all records of a topic, at rest."""
    return bed.spark.read.format("kafka").options(**options).load()


def events_of(records: DataFrame) -> list[dict[str, Any]]:
    """Return the events that records hold."""
    return [json.loads(row.value) for row in records.selectExpr("CAST(value AS STRING) value").collect()]


def topic_holds(records: DataFrame, wanted: list[dict[str, Any]]) -> None:
    """Assert that records are the events; but for their times, which Spark writes in its own way."""
    columns = [name for name in COLUMNS if name != "event_time"]
    assert counted(events_of(records), columns) == counted(wanted, columns)


def in_files(bed: Flowbed, format: str, folder: str = "out") -> list[dict[str, Any]]:
    """Return what a reader finds that knows Spark's log."""
    rows = bed.spark.read.schema(SCHEMA).format(format).load(str(bed.root / "data" / folder))
    return [row.asDict() for row in rows.collect()]


def in_copies(bed: Flowbed) -> list[dict[str, Any]]:
    """Return what the function of :func:`into_function` has written."""
    rows = bed.spark.read.format("delta").load(str(bed.root / "copies"))
    return [row.asDict() for row in rows.collect()]
