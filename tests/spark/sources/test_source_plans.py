"""Plans for flows that read Kafka and Delta, against a real broker and real tables: what they say comes
true.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.errors import SourceError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import EARLIEST, LATEST, OFFSETS, TIMESTAMP, StartAt
from streamkeeper.manifest.environment import opened
from streamkeeper.recover.moves.next_generation import plan_move
from streamkeeper.recover.plans.move import Move
from streamkeeper.sources.delta.statistics import amount_at, rows_of
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.support.amounts import SourceImpact
from tests.oracle import all_rows
from tests.worlds.flow_world import NAME, Flowbed
from tests.worlds.sources.source_world import DEDUPE, DeltaBed, KafkaBed
from tests.worlds.tables.backup_world import Recoverer

Kafka = Callable[..., KafkaBed]
Delta = Callable[..., DeltaBed]


def impact(bed: Flowbed, start: StartAt | str = "after-last", state: str = "rebuilt") -> SourceImpact:
    wanted = StartAt(start) if isinstance(start, str) else start
    planned, _ = plan_move(bed.settings, bed.flow(), Move(wanted, state))
    return planned.impacts[0]


@pytest.mark.long
def test_the_probe_without_a_jvm_sees_what_the_driver_sees(kafka: Kafka, spark: SparkSession) -> None:
    from streamkeeper_jobs.spark import kafka_topics

    flow = kafka()
    flow.arrive(1, 2, 4)
    flow.expire(0, 1)
    source = opened(flow.bed.flow().pipeline.sources[0], flow.bed.settings)
    found = kafka_client.look_at(source)
    assert found == kafka_topics.look_at(spark, source)
    assert (found.earliest, found.latest) == ({flow.topic: {"0": 1, "1": 0}}, {flow.topic: {"0": 2, "1": 1}})
    for moment in (0, int(time.time() * 1000) + 3_600_000):
        assert kafka_client.at_time(source, moment) == kafka_topics.at_time(spark, source, moment)
    flow.delete()
    with pytest.raises(SourceError, match=f"the topic {flow.topic} is not there"):
        kafka_client.look_at(source)
    with pytest.raises(SourceError, match="UnknownTopicOrPartition"):
        kafka_topics.look_at(spark, source)


def test_a_plan_for_kafka_counts_what_then_comes_or_does_not(kafka: Kafka) -> None:
    flow = kafka(view=DEDUPE)
    flow.arrive(*range(1, 7))
    assert flow.bed.run() is Outcome.STOPPED
    flow.arrive(7, 8)
    found = impact(flow.bed)
    assert (found.lost.rows, found.repeated.rows, found.replayed.rows) == (0, 0, 6)
    assert "at most 2 unread records will be read" in found.notes
    assert impact(flow.bed, LATEST).lost.rows == 2
    assert impact(flow.bed, EARLIEST).repeated.rows == 6
    assert impact(flow.bed, StartAt(TIMESTAMP, timestamp_ms=0)).repeated.rows == 6
    assert (
        impact(flow.bed, StartAt(OFFSETS, offsets={"raw": {flow.topic: {"0": 1, "1": -1}}})).repeated.rows
        == 2
    )
    assert impact(flow.bed, StartAt(OFFSETS, offsets={"raw": {flow.topic: {"0": 3, "1": -1}}})).lost.rows == 1


def test_a_plan_for_delta_counts_what_then_comes_or_does_not(delta: Delta) -> None:
    flow = delta(view=DEDUPE)
    flow.arrive(1, 2, 3)
    flow.arrive(4)
    assert flow.bed.run() is Outcome.STOPPED
    flow.arrive(5, 6)
    found = impact(flow.bed)
    assert (found.lost.rows, found.repeated.rows, found.replayed.rows) == (0, 0, 4)
    assert "unread versions up to 2 will be read: 2 rows in 1 files" in found.notes
    assert impact(flow.bed, LATEST).lost.rows == 2
    assert impact(flow.bed, EARLIEST).repeated.rows == 4
    assert impact(flow.bed, StartAt(TIMESTAMP, timestamp_ms=0)).repeated.rows == 4


@pytest.mark.long
@pytest.mark.parametrize("vectors", ["true", "false"], ids=["with deletion vectors", "without"])
def test_deleted_rows_are_not_counted(delta: Delta, vectors: str) -> None:
    flow = delta()
    flow.bed.spark.sql(
        f"CREATE TABLE delta.`{flow.path}` (n INT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' ="
        f" '{vectors}')"
    )
    flow.sql("INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1), (2), (3)")
    flow.sql("DELETE FROM {table} WHERE n = 1")
    assert rows_of(flow.path) == 2
    assert rows_of(flow.path, 1) == 3
    next(Path(flow.path, "_delta_log").glob("*2.crc")).unlink()
    assert amount_at(flow.path).at_most == (vectors == "true"), (
        "nobody says how many rows the vector takes away"
    )


@pytest.mark.long
@pytest.mark.parametrize("of", ["delta", "kafka"])
def test_a_flow_whose_last_offsets_are_gone_goes_on_where_its_driver_says_that_it_stood(
    of: str, request: pytest.FixtureRequest
) -> None:
    flow: DeltaBed | KafkaBed = request.getfixturevalue(of)()
    for numbers in ((1, 2), (3, 4)):
        flow.arrive(*numbers)
        assert flow.bed.run() is Outcome.STOPPED
    checkpoint = flow.bed.checkpoint(1)
    name = checkpoint.name(f"offsets/{checkpoint.last_commit()}")
    for file in (name, twin_of(name)):
        flow.bed.home.storage.remove(file)
    flow.arrive(5, 6)
    assert flow.bed.run() is Outcome.PARKED
    assert flow.bed.park().details["recovery"] == "reset_checkpoint"
    Recoverer.of(flow.bed).run("reset_checkpoint", "r1", flow=NAME)
    assert flow.bed.run() is Outcome.STOPPED
    flow.bed.holds(all_rows(flow.bed.events))
