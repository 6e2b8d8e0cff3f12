"""Small real queries, each leaving a checkpoint of one kind. The Spark tests and
tests/core/checkpoint/record.py run the same ones.

Every sample takes a session and an empty folder, reads from ``folder/in``, and gives the path of the
checkpoint that Spark wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from tests.worlds.state_stores import PROVIDER, ROCKS, STATE_FORMAT

SCHEMA = "event_id INT, customer STRING, at TIMESTAMP"
NAMED = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


@contextmanager
def confs(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set session confs for a while."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def write_events(folder: Path, files: int, first: int = 0) -> None:
    """Write JSON files of three events, one of them a repetition."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + files):
        rows = [
            {"event_id": max(number + step, 0), "customer": f"c{number % 3}", "at": "2026-01-01T00:00:00"}
            for step in (-1, 0, 0)
        ]
        temporary = folder / f".{number:04d}"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.rename(folder / f"{number:04d}.json")


def drain(frame: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    """Run a query over all that is there, into nothing."""
    query = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def read_json(spark: SparkSession, path: Path, name: str | None = None, per_batch: int = 1) -> DataFrame:
    """Read a folder of JSON files as a stream."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch)
    return (reader.name(name) if name else reader).json(str(path))


def files_stateless(spark: SparkSession, folder: Path) -> Path:
    """13 files in 13 batches: the files log has been compacted once."""
    write_events(folder / "in", 13)
    drain(read_json(spark, folder / "in"), folder / "checkpoint")
    return folder / "checkpoint"


def files_dedup(spark: SparkSession, folder: Path) -> Path:
    """dropDuplicates without a watermark, on the default state store."""
    write_events(folder / "in", 3)
    drain(read_json(spark, folder / "in").dropDuplicates(["event_id"]), folder / "checkpoint")
    return folder / "checkpoint"


def files_aggregation(spark: SparkSession, folder: Path) -> Path:
    """An aggregation under a watermark."""
    write_events(folder / "in", 2)
    frame = (
        read_json(spark, folder / "in").withWatermark("at", "10 minutes").groupBy("customer", "at").count()
    )
    drain(frame, folder / "checkpoint", "update")
    return folder / "checkpoint"


def rocksdb_dedup(spark: SparkSession, folder: Path) -> Path:
    """dropDuplicates on RocksDB, whose checkpoint format 2 puts state ids into the commits."""
    write_events(folder / "in", 2)
    with confs(spark, {PROVIDER: ROCKS, STATE_FORMAT: "2"}):
        drain(read_json(spark, folder / "in").dropDuplicates(["event_id"]), folder / "checkpoint")
    return folder / "checkpoint"


def union_positional(spark: SparkSession, folder: Path) -> Path:
    """Two files sources told apart by position; the second is empty at first, so that one offset is none."""
    write_events(folder / "in" / "a", 2)
    (folder / "in" / "b").mkdir(parents=True)
    frame = read_json(spark, folder / "in" / "a").union(read_json(spark, folder / "in" / "b"))
    drain(frame, folder / "checkpoint")
    return folder / "checkpoint"


def union_named(spark: SparkSession, folder: Path) -> Path:
    """Two named files sources on offset log v2, with dropDuplicates."""
    write_events(folder / "in" / "a", 2)
    write_events(folder / "in" / "b", 1, first=50)
    with confs(spark, NAMED):
        frame = read_json(spark, folder / "in" / "a", "web_events").union(
            read_json(spark, folder / "in" / "b", "shop_events")
        )
        drain(frame.dropDuplicates(["event_id"]), folder / "checkpoint")
    return folder / "checkpoint"


def join_virtual(spark: SparkSession, folder: Path) -> Path:
    """A join whose state is of format 3: the operator's metadata are of version 2, in another place."""
    write_events(folder / "in" / "a", 2)
    write_events(folder / "in" / "b", 2)
    with confs(spark, {PROVIDER: ROCKS, "spark.sql.streaming.join.stateFormatVersion": "3"}):
        left = read_json(spark, folder / "in" / "a")
        right = read_json(spark, folder / "in" / "b").selectExpr("event_id AS other")
        drain(left.join(right, left.event_id == right.other), folder / "checkpoint")
    return folder / "checkpoint"


def rate(spark: SparkSession, folder: Path) -> Path:
    """Spark's rate source, until it has committed two batches."""
    frame = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        while not (folder / "checkpoint" / "commits" / "1").exists():
            assert query.isActive, query.exception()
            query.awaitTermination(0.2)
    finally:
        query.stop()
    return folder / "checkpoint"


def delta(spark: SparkSession, folder: Path) -> Path:
    """A Delta table of two appends, read to its end."""
    table = str(folder / "in" / "table")
    for first in (0, 10):
        spark.range(first, first + 10).coalesce(1).write.format("delta").mode("append").save(table)
    drain(spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(table), folder / "checkpoint")
    return folder / "checkpoint"


def kafka(spark: SparkSession, folder: Path, servers: str) -> Path:
    """A topic of two partitions that got three and one records, read from its start to its end."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic("orders", num_partitions=2, replication_factor=1)]).values():
        future.result(timeout=30)
    producer = Producer({"bootstrap.servers": servers})
    for number, partition in enumerate((0, 0, 0, 1)):
        producer.produce("orders", str(number).encode(), partition=partition)
    assert producer.flush(30) == 0
    options = {"kafka.bootstrap.servers": servers, "subscribe": "orders", "startingOffsets": "earliest"}
    drain(spark.readStream.format("kafka").options(**options).load(), folder / "checkpoint")
    return folder / "checkpoint"


SAMPLES: dict[str, Callable[[SparkSession, Path], Path]] = {
    sample.__name__: sample
    for sample in (
        files_stateless,
        files_dedup,
        files_aggregation,
        rocksdb_dedup,
        union_positional,
        union_named,
        join_virtual,
        rate,
        delta,
    )
}
