"""What a plan says of ages and of compacted topics comes true, with Spark and with a real broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from streamkeeper.errors import SourceError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import AFTER_LAST, StartAt
from streamkeeper.manifest.environment import opened, opened_flow
from streamkeeper.recover.moves.next_generation import plan_move
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import FlowPlan, Refusal
from streamkeeper.sources.base.format import Lag
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.watch import behind
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.sources.source_world import DEDUPE, KafkaBed


def plan(bed: Flowbed) -> tuple[FlowPlan, tuple[Refusal, ...]]:
    return plan_move(bed.settings, bed.flow(), Move(StartAt(AFTER_LAST)))


def with_age(age: str) -> str:
    return pipeline(view="", files=20).replace(
        '"maxFilesPerTrigger": 20', f'"maxFilesPerTrigger": 20, "maxFileAge": "{age}"'
    )


def test_a_file_that_is_too_old_is_skipped_by_every_generation_and_counted(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(with_age("1h"))
    newest = bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    late, moment = bed.arrive(3, 4, 5), newest.stat().st_mtime - 7200
    os.utime(late, (moment, moment))
    (lost,) = [impact.lost for impact in plan(bed)[0].impacts]
    assert (lost.files, lost.rows, [item.impact for item in plan(bed)[1]]) == (1, 3, ["data-loss"])
    assert bed.run() is Outcome.STOPPED
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events[:2])
    bed.declare(with_age("3h"))
    assert plan(bed)[1] == ()
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)


def test_no_file_is_skipped_for_its_age_or_read_again_unless_an_age_is_declared(
    make_bed: Callable[..., Flowbed],
) -> None:
    """One file with a time to come would make Spark skip all others, and a week make it forget them."""
    bed = make_bed(pipeline(view="", files=20))
    for number, moment in ((1, 13_569_465_600), (2, 978_307_200), (3, 1_700_000_000)):  # 2400, 2001, 2023
        file = bed.arrive(number)
        os.utime(file, (moment, moment))
        assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    os.utime(file)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)


@pytest.mark.long
def test_a_compacted_topic_is_known_by_its_brokers_configuration(kafka: Callable[..., KafkaBed]) -> None:
    flow = kafka(view=DEDUPE)
    flow.arrive(1, 2)
    assert flow.bed.run() is Outcome.STOPPED
    source = opened(flow.bed.flow().pipeline.sources[0], flow.bed.settings)
    assert kafka_client.look_at(source).policies == {flow.topic: "delete"}
    assert plan(flow.bed)[1] == ()
    policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, flow.topic, incremental_configs=[policy])
    for future in flow.admin.incremental_alter_configs([topic]).values():
        future.result(30)
    assert kafka_client.look_at(source).compacted == (flow.topic,)
    planned, refused = plan(flow.bed)
    assert [item.impact for item in refused] == ["missing-history"]
    assert f"topic {flow.topic} is compacted" in str(planned.impacts[0].gone.rows_unknown)


def test_records_that_wait_are_counted_by_their_brokers_with_the_time_of_the_oldest(
    kafka: Callable[..., KafkaBed],
) -> None:
    flow = kafka()
    flow.arrive(1, 2)
    assert flow.bed.run() is Outcome.STOPPED
    source = opened(flow.bed.flow().pipeline.sources[0], flow.bed.settings)

    def lag() -> Lag:
        measured = behind.measure(
            flow.bed.home, flow.bed.flow(), lambda it: opened_flow(it, flow.bed.settings)
        )
        assert measured is not None
        return measured.sources["raw"]

    assert lag() == Lag(records=0, seconds=0.0)
    flow.arrive(4, partition=0, age=7200)
    flow.arrive(6, 8, partition=0, age=60)
    flow.arrive(3, partition=1, age=3600)
    flow.arrive(5, partition=1, age=9000)
    assert lag() == Lag(records=5, seconds=pytest.approx(7200, abs=60)), "the next to read of each partition"
    flow.expire(0, before=2)
    assert lag() == Lag(records=4, seconds=pytest.approx(3600, abs=60)), "what is gone does not wait"
    assert kafka_client.written_at(source, {flow.topic: {"0": 4}}) == {}, "the end has no record"
    gone = replace(source, options={**source.options, "kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(SourceError, match=r"127.0.0.1:1 does not answer within 1 s"):
        kafka_client.written_at(gone, {flow.topic: {"0": 0}}, seconds=1)
