"""Jobs that read Kafka, and jobs that merged changes by hand, become flows: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.storage import LocalStorage
from streamkeeper.support.amounts import UNKNOWN_IMPACT
from tests.oracle import all_rows, first_per
from tests.worlds.checkpoint_samples import confs
from tests.worlds.flow_world import NAME, SCHEMA
from tests.worlds.pipelines import edited
from tests.worlds.recover.old_jobs import PLAIN
from tests.worlds.sources.source_world import DEDUPE, KafkaBed
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, PIPELINE, SNAPSHOT, CustomersBed, delete, upsert

pytestmark = pytest.mark.long

Kafka = Callable[..., KafkaBed]
CHANGES = "customer_id INT, name STRING, email STRING, city STRING, operation STRING, sequenceNum BIGINT"


def old_kafka_job(source: KafkaBed, dedupe: bool) -> Path:
    """Run somebody's job over all that the topic has, and give its checkpoint."""
    bed = source.bed
    folder = bed.root / "old job" / "checkpoint"
    with confs(bed.spark, PLAIN):
        raw = bed.spark.readStream.format("kafka").option("kafka.bootstrap.servers", source.brokers)
        raw = (
            raw.option("subscribe", source.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 4)
        )
        events = (
            raw.load()
            .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("event"))
            .select("event.*")
        )
        writer = (events.dropDuplicates(["event_id"]) if dedupe else events).writeStream.format("delta")
        writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start(
            str(bed.table)
        ).awaitTermination()
    return folder


def adopt(at_work: Recoverer, flow: str, folder: Path, **values: Any) -> dict[str, Any]:
    """Carry an adoption out, every step killed at its end and run again; give the evidence of each."""
    return at_work.run(
        "adopt", "r1", killed=True, flow=flow, checkpoint=str(folder), old_job_is_stopped=True, **values
    )


@pytest.mark.parametrize("dedupe", [True, False], ids=["with state", "without state"])
def test_a_job_that_read_a_topic_goes_on_at_its_offsets(kafka: Kafka, dedupe: bool) -> None:
    source = kafka(view=DEDUPE if dedupe else "")
    source.arrive(1, 2, 3, 4, 5, 6, 7)
    source.arrive(2, 3, partition=0)
    folder = old_kafka_job(source, dedupe)
    source.arrive(1, 7, 8, 9)
    evidence = adopt(Recoverer.of(source.bed), NAME, folder)
    assert evidence["rehearse"]["operators"] == (["dedupe"] if dedupe else [])
    assert source.bed.run() is Outcome.STOPPED
    source.widen(3)
    source.arrive(9, 10, partition=2)
    assert source.bed.run() is Outcome.STOPPED
    events = source.bed.events
    source.bed.holds(first_per(events, ["event_id"]) if dedupe else all_rows(events))
    began = source.bed.start(1)
    assert began.positions == {"raw": {source.topic: {"0": 5, "1": 4}}}, (
        "7 events by their numbers, and two more in partition 0"
    )
    assert delta_log.last_transaction(
        str(source.bed.table), Checkpoint(LocalStorage(str(folder)), "").query_id()
    ).fenced


def old_merge_job(bed: CustomersBed, table: Path) -> Path:
    """Run somebody's job that merges the changes into a table of its own by hand; give its checkpoint."""

    def merge(batch: DataFrame, _: int) -> None:
        newest = (
            batch.groupBy("customer_id")
            .agg(F.max_by(F.struct("*"), "sequenceNum").alias("change"))
            .select("change.*")
        )
        columns = {name: f"c.{name}" for name in ("customer_id", "name", "email", "city")}
        into = (
            DeltaTable.forPath(bed.spark, str(table))
            .alias("t")
            .merge(newest.alias("c"), "t.customer_id = c.customer_id")
        )
        into = into.whenMatchedDelete("c.operation = 'DELETE'").whenMatchedUpdate(set=columns)
        into.whenNotMatchedInsert("c.operation <> 'DELETE'", values=columns).execute()

    folder = bed.root / "old job" / "checkpoint"
    plain = bed.spark.createDataFrame([], "customer_id INT, name STRING, email STRING, city STRING")
    plain.write.format("delta").mode("ignore").save(str(table))
    with confs(bed.spark, PLAIN):
        changes = bed.spark.readStream.schema(CHANGES).json(str(bed.root / "data" / "customers" / "cdc"))
        distinct = changes.where("operation IS NOT NULL").dropDuplicates(["customer_id", "sequenceNum"])
        writer = distinct.writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        writer.foreachBatch(merge).start().awaitTermination()
    return folder


def test_a_job_that_merged_by_hand_goes_on_as_auto_cdc_into_a_table_filled_from_its_own(
    tmp_path: Path, spark: SparkSession
) -> None:
    """What the old job made is the snapshot, and its checkpoint says which changes come after that."""
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    bed.change(upsert(1, 1), upsert(2, 1), upsert(3, 1))
    bed.change(upsert(1, 2), delete(3, 2))
    folder = old_merge_job(bed, tmp_path / "old")
    assert [
        row["customer_id"]
        for row in spark.read.format("delta").load(str(tmp_path / "old")).orderBy("customer_id").collect()
    ] == [1, 2]
    bed.declare(
        edited(
            PIPELINE,
            (
                'format="json",\n    path="{data}/customers/snapshot",\n'
                '    schema="customer_id INT, name STRING, email STRING, city STRING",',
                f'format="delta",\n    path="{tmp_path}/old",',
            ),
        )
    )
    assert bed.run(SNAPSHOT) is Outcome.DONE
    read = list(bed.events)
    bed.change(upsert(1, 2), upsert(2, 3), delete(1, 4), upsert(4, 1))
    evidence = adopt(
        Recoverer.of(bed.of()),
        f"customers.{INCREMENTAL}",
        folder,
        accept=[UNKNOWN_IMPACT],
    )
    assert evidence["rehearse"]["operators"] == ["dedupe"]
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    assert bed.start().seed_batch == 0, "both files were one batch"
    assert len(read_by(bed)) == 1 and len(read) == 5, "what the old job read is not read again"


def read_by(bed: CustomersBed) -> list[str]:
    """Give the files that the flow's own checkpoint has batches of, beyond those that came with it."""
    logs = Path(bed.checkpoint().path()).glob("sources/*/[0-9]*")
    lines = [json.loads(line) for file in logs for line in file.read_text().splitlines()[1:]]
    return [line["path"] for line in lines if line["batchId"] > bed.start().seed_batch]
