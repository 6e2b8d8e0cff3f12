"""What the driver leans on inside Spark and Delta, pinned: an upgrade that moves one of these fails here
first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, window

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import EVOLUTION, PINNED
from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.files import query_id
from streamkeeper.storage import LocalStorage
from tests.worlds.flow_world import NAME, Flowbed, event, pipeline

ASKED = "spark.sql.shuffle.partitions"
Build = Callable[[DataFrame, DataFrame], DataFrame]


def test_each_commit_of_the_delta_sink_carries_the_query_id_and_the_batch(bed: Flowbed) -> None:
    for number in range(1, 6):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    found = [action for commit in commits(bed.table) for action in commit if "txn" in action]
    assert [(action["txn"]["appId"], action["txn"]["version"]) for action in found] == [
        (query_id(NAME, 1), batch) for batch in range(3)
    ]
    assert bed.checkpoint(1).query_id() == query_id(NAME, 1)
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)) == delta_log.Transactions(
        2, None, True
    )


def test_a_batch_that_the_sink_has_is_skipped_when_the_checkpoint_replays_it(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    rows, version = len(bed.rows()), delta_log.latest_version(str(bed.table))
    bed.forget_commit(0)
    assert bed.run() is Outcome.STOPPED
    assert bed.checkpoint(1).last_commit() == 0
    assert (len(bed.rows()), delta_log.latest_version(str(bed.table))) == (rows, version)


def test_the_fence_shuts_out_the_native_sinks_late_batch_and_no_other_query(bed: Flowbed) -> None:
    """The late batch is the bare query's: a driver would look first, and not start."""
    from streamkeeper_jobs.spark.delta_table import fence
    from streamkeeper_jobs.stream.data_frame import flow_frame
    from streamkeeper_jobs.stream.query import writer_of

    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    assert fence(bed.spark, str(bed.table), query_id(NAME, 1), lambda: None) == 0
    assert fence(bed.spark, str(bed.table), query_id(NAME, 1), lambda: None) == 0, (
        "fencing again finds the same"
    )
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).fenced
    bed.arrive(2)
    late = (
        writer_of(flow_frame(bed.spark, bed.flow(), {}), "late", bed.checkpoint(1).path(), None)
        .format("delta")
        .start(str(bed.table))
    )
    assert late.awaitTermination(120)
    assert bed.checkpoint(1).last_commit() == 1, "Delta skips silently"
    bed.holds(bed.events[:1])
    other = bed.spark.read.format("delta").load(str(bed.table))
    other.write.format("delta").mode("append").option("txnAppId", query_id(NAME, 2)).option(
        "txnVersion", "0"
    ).save(str(bed.table))
    assert len(bed.rows()) == 2


@pytest.mark.long
def test_what_a_fenced_query_wrote_last_is_found_in_the_tables_checkpoints_when_its_commits_are_gone(
    bed: Flowbed,
) -> None:
    from streamkeeper_jobs.spark.delta_table import fence

    for number in range(1, 4):
        bed.arrive(number)
        bed.arrive(number + 10)
        assert bed.run() is Outcome.STOPPED
    app_id = query_id(NAME, 1)
    nothing = bed.spark.read.format("delta").load(str(bed.table)).limit(0)
    nothing.write.format("delta").mode("append").option("txnAppId", "another").option("txnVersion", "0").save(
        str(bed.table)
    )
    log(bed.spark, bed.table).checkpoint()
    last = delta_log.latest_version(str(bed.table))
    for version in range(last):
        (bed.table / "_delta_log" / f"{version:020d}.json").unlink()
    bed.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert not delta_log.last_transaction(str(bed.table), app_id).complete
    assert fence(bed.spark, str(bed.table), app_id, lambda: None) == 2
    assert fence(bed.spark, str(bed.table), app_id, lambda: None) == 2, (
        "also after a driver that died between its fence and its record"
    )


def test_the_seeded_header_is_the_one_that_spark_writes(bed: Flowbed) -> None:
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    assert bed.start(2).seed_batch == 0
    by_spark, by_us = bed.checkpoint(1).offsets(0), bed.checkpoint(2).offsets(0)
    assert by_us.conf == {**by_spark.conf, ASKED: "2"}
    assert {**by_spark.conf, **PINNED} == by_spark.conf
    assert by_spark.conf.keys() - PINNED.keys() == {EVOLUTION}
    assert (by_us.version, by_us.header) == (by_spark.version, by_spark.header)
    assert (
        bed.checkpoint(1).read("metadata")
        == json.dumps({"id": query_id(NAME, 1)}, separators=(",", ":")).encode()
    )


def test_the_states_partitions_stay_what_they_were_when_the_session_asks_for_others(bed: Flowbed) -> None:
    bed.arrive(*range(20))
    assert bed.run() is Outcome.STOPPED
    bed.declare(
        pipeline().replace(
            '"200 milliseconds"', '"200 milliseconds", spark_conf={"spark.sql.shuffle.partitions": 5}'
        )
    )
    for more in (21, 22):
        bed.arrive(*range(more))
        assert bed.run() is Outcome.STOPPED
    assert bed.spark.conf.get(ASKED) == "5"
    assert [operator.partitions for operator in bed.checkpoint(1).operators()] == [2]
    bed.holds([event(number) for number in range(22)])


QUERIES: dict[str, tuple[Build, tuple[str, ...]]] = {
    "projection": (lambda a, b: a.select("value"), ()),
    "filter and union": (lambda a, b: a.where("value > 1").union(b), ()),
    "join with a static side": (
        lambda a, b: a.join(a.sparkSession.range(5), col("value") == col("id")).select("value"),
        (),
    ),
    "aggregation of the static side": (
        lambda a, b: a.join(a.sparkSession.range(5).groupBy("id").count(), col("value") == col("id")).select(
            "value"
        ),
        (),
    ),
    "deduplication": (lambda a, b: a.dropDuplicates(["value"]), ("dedupe",)),
    "distinct": (lambda a, b: a.select("value").distinct(), ("dedupe",)),
    "deduplication within watermark": (
        lambda a, b: a.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["value"]),
        ("dedupeWithinWatermark",),
    ),
    "aggregation": (
        lambda a, b: (
            a.withWatermark("timestamp", "1 minute").groupBy(window("timestamp", "1 minute")).count()
        ),
        ("stateStoreSave",),
    ),
    "stream-stream join": (
        lambda a, b: a.join(b.select(col("value").alias("other")), col("value") == col("other")),
        ("symmetricHashJoin",),
    ),
    "limit": (lambda a, b: a.limit(3), ("globalLimit",)),
    "two of them": (
        lambda a, b: a.dropDuplicates(["value"]).join(
            b.select(col("value").alias("other")), col("value") == col("other")
        ),
        ("dedupe", "symmetricHashJoin"),
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_plan_tells_the_state_that_the_checkpoint_will_keep(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    from streamkeeper_jobs.spark.stateful_operators import stateful_operators

    build, expected = QUERIES[name]
    streams = [
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).name(side).load()
        for side in ("left", "right")
    ]
    frame = build(*streams)
    assert stateful_operators(frame) == expected
    writer = (
        frame.where(lit(True))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = writer.trigger(once=True).start()
    assert query.awaitTermination(120)
    kept = Checkpoint(LocalStorage(str(tmp_path)), "checkpoint").operators()
    assert sorted(operator.name for operator in kept) == sorted(expected)


def commits(table: Path) -> list[list[dict[str, object]]]:
    """Every commit of a table's log, as its actions."""
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((table / "_delta_log").glob("*.json"))
    ]


def log(spark: SparkSession, table: Path):  # type: ignore[no-untyped-def]
    return spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
