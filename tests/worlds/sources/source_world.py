"""Beds whose flow reads Kafka or Delta: a topic or a table of its own for each test, and what was put into
it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

from tests.worlds.flow_world import SCHEMA, Flowbed, event, wait_until

DEDUPE = '.dropDuplicates(["event_id"])'
WITHIN = '.withWatermark("event_time", "1 hour").dropDuplicatesWithinWatermark(["event_id"])'
_NUMBERS = count(1)

KAFKA = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp

dp.create_source("raw", format="kafka", {parameters}\
options={{"kafka.bootstrap.servers": "{brokers}", {topics}, {options}}})
{more}

@dp.temporary_view(sources=["raw"])
def parsed(raw):
    return raw.select(F.from_json(F.col("value").cast("string"), "{schema}").alias("event"))\
.select("event.*"){view}

dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources={sources}, trigger="200 milliseconds")
def clean_events({inputs}):
    return {flow}
"""

DELTA = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp

dp.create_source("raw", format="delta", path="{{data}}/source", {parameters}options={{{options}}})
{more}

@dp.temporary_view(sources=["raw"])
def parsed(raw):
    return raw{view}

dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources={sources}, trigger="200 milliseconds")
def clean_events({inputs}):
    return {flow}
"""
_PARTS: dict[str, Any] = {
    "view": "",
    "parameters": "",
    "more": "",
    "sources": ("parsed",),
    "inputs": "events",
    "flow": "events",
}


def reading(template: str, text: Mapping[str, Any], **own: Any) -> str:
    """Return a pipeline file with the parts that a test gives; the others are those of all of its kind."""
    parts = {**_PARTS, **own}
    assert text.keys() <= parts.keys(), f"there is no {text.keys() - parts.keys()}"
    parts |= text
    return template.format(**{**parts, "sources": list(parts["sources"])})


FILES = f'dp.create_source("files", format="json", path="{{data}}/files", schema="{SCHEMA}")'
"""A source of files beside the other one."""
UNION = {
    "more": FILES,
    "sources": ("parsed", "files"),
    "inputs": "events, files",
    "flow": "events.unionByName(files)",
}


@dataclass
class KafkaBed:
    """A flow that reads topics; ``bed`` is the rest of it."""

    bed: Flowbed
    brokers: str
    topic: str = ""

    @classmethod
    def make(cls, root: Path, spark: SparkSession, brokers: str, **text: Any) -> KafkaBed:
        """Make the folders, a topic of two partitions, and the pipeline file."""
        made = cls(Flowbed.make(root, spark), brokers, f"orders-{next(_NUMBERS)}")
        made.create()
        made.declare(**text)
        return made

    @cached_property
    def admin(self) -> AdminClient:
        """A client that lives as long as the bed: what it was asked is given up where it is gone."""
        return AdminClient({"bootstrap.servers": self.brokers})

    def create(self, topic: str | None = None, partitions: int = 2) -> None:
        """Create a topic, and wait until the broker knows it everywhere."""
        name = topic or self.topic
        wait_until(lambda: name not in self.admin.list_topics(timeout=10).topics)
        for future in self.admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(30)
        wait_until(lambda: self._parts(name) == partitions)

    def widen(self, partitions: int) -> None:
        """Add partitions to the topic."""
        for future in self.admin.create_partitions([NewPartitions(self.topic, partitions)]).values():
            future.result(30)
        wait_until(lambda: self._parts(self.topic) == partitions)

    def delete(self) -> None:
        """Delete the topic."""
        for future in self.admin.delete_topics([self.topic]).values():
            future.result(30)
        wait_until(lambda: self._parts(self.topic) == 0)

    def expire(self, partition: int, before: int) -> None:
        """Let the first records of a partition be gone, as retention does."""
        for future in self.admin.delete_records([TopicPartition(self.topic, partition, before)]).values():
            future.result(30)

    def declare(self, **text: Any) -> None:
        """Write the pipeline file, with some of its parts."""
        topics, limit = f'"subscribe": "{self.topic}"', '"maxOffsetsPerTrigger": 4'
        self.bed.declare(
            reading(KAFKA, text, brokers=self.brokers, topics=topics, options=limit, schema=SCHEMA)
        )

    def arrive(
        self, *numbers: int, partition: int | None = None, topic: str | None = None, age: float = 0.0
    ) -> None:
        """Produce events, as written so many seconds ago, and wait until the broker has them; an event's
        partition follows from its number.
        """
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})
        failed: list[Any] = []

        def told(error: Any, _message: Any) -> None:
            if error:
                failed.append(error)

        for number in numbers:
            made = event(number)
            part = number % 2 if partition is None else partition
            producer.produce(
                topic or self.topic,
                json.dumps(made).encode(),
                partition=part,
                on_delivery=told,
                timestamp=round(1000 * (time.time() - age)),
            )
            self.bed.events.append(made)
        assert producer.flush(30) == 0 and not failed, failed

    def _parts(self, topic: str) -> int:
        found = self.admin.list_topics(timeout=10).topics.get(topic)
        return 0 if found is None or found.error is not None else len(found.partitions)


COLUMNS_OF_EVENTS = ("event_id", "int(user_id)", "int(n)", "timestamp(event_time) event_time")
"""What the source table has of an event."""


@dataclass
class DeltaBed:
    """A flow that reads a Delta table; ``bed`` is the rest of it, and ``columns`` what the table has of an
    event.
    """

    bed: Flowbed
    columns: Sequence[str] = COLUMNS_OF_EVENTS

    @classmethod
    def make(cls, root: Path, spark: SparkSession, **text: Any) -> DeltaBed:
        """Make the folders and the pipeline file; the table is made by the first commit."""
        made = cls(Flowbed.make(root, spark))
        made.declare(**text)
        return made

    @property
    def path(self) -> str:
        return str(self.bed.root / "data" / "source")

    @property
    def log(self) -> Path:
        return Path(self.path) / "_delta_log"

    def declare(self, **text: Any) -> None:
        """Write the pipeline file, with some of its parts."""
        self.bed.declare(reading(DELTA, text, options='"maxFilesPerTrigger": 1'))

    def arrive(self, *numbers: int, files: int = 1) -> None:
        """Append events to the table in one commit of so many files."""
        made = [event(number) for number in numbers]
        frame = self.bed.spark.createDataFrame(made).repartitionByRange(files, "n")
        frame.selectExpr(*self.columns).write.format("delta").mode("append").save(self.path)
        self.bed.events += made

    def map_columns(self) -> None:
        """Make the table, as one whose columns can be renamed, dropped and widened."""
        self.bed.spark.sql(
            f"CREATE TABLE delta.`{self.path}` (event_id STRING, user_id INT, n INT, event_time TIMESTAMP)"
            " USING delta TBLPROPERTIES"
            " ('delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true')"
        )

    def sql(self, statement: str) -> None:
        """Run a statement; ``{table}`` stands for the table."""
        self.bed.spark.sql(statement.format(table=f"delta.`{self.path}`"))
