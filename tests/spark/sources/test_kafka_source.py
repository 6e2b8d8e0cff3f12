"""Flows that read Kafka: exact from topic to table, and reset to exactly where they were decided to start. A
real broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import (
    AFTER_LAST,
    TIMESTAMP,
    StartAt,
)
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import event
from tests.worlds.sources.source_world import DEDUPE, UNION, KafkaBed
from tests.worlds.suites import long_after

Make = Callable[..., KafkaBed]


def run(kafka: KafkaBed) -> None:
    assert kafka.bed.run() is Outcome.STOPPED


def test_every_record_is_written_once_over_several_batches_and_starts(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(*range(1, 12))
    run(flow)
    flow.arrive(*range(12, 16))
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
    checkpoint = flow.bed.checkpoint(1)
    offsets = checkpoint.offsets(checkpoint.offset_batches()[-1])
    assert (offsets.version, offsets.sources) == (2, {"raw": {flow.topic: {"0": 7, "1": 8}}})
    assert checkpoint.initial_offsets("raw") == {flow.topic: {"0": 0, "1": 0}}
    assert flow.bed.start(1).evidence["topics"]["raw"].keys() == {flow.topic}


def test_after_the_last_processed_loses_nothing_and_repeats_nothing(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(*range(1, 8))
    run(flow)
    flow.declare(view='.where("n > 0")')
    flow.bed.reset()
    flow.arrive(8, 9)
    run(flow)
    flow.arrive(10)
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
    assert flow.bed.start(2).positions == {"raw": {flow.topic: {"0": 3, "1": 4}}}


@pytest.mark.long
def test_a_timestamp_reads_the_records_written_at_it_or_later(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(1, 2)
    run(flow)
    moment = int(time.time() * 1000) + 1
    while time.time() * 1000 <= moment:
        pass
    flow.arrive(3, 5)
    run(flow)
    flow.bed.reset(StartAt(TIMESTAMP, timestamp_ms=moment))
    run(flow)
    flow.bed.holds([*flow.bed.events, event(3), event(5)])
    assert flow.bed.start(2).positions == {"raw": {flow.topic: {"0": 1, "1": 1}}}


@pytest.mark.parametrize("view", long_after(1, ["", DEDUPE]), ids=["stateless", "stateful"])
def test_records_that_expired_unread_park_the_flow_until_their_loss_is_accepted(
    kafka: Make, view: str
) -> None:
    flow = kafka(view=view)
    flow.arrive(2, 4)
    run(flow)
    flow.arrive(6, 8, 10)
    flow.expire(0, 4)
    assert flow.bed.run() is Outcome.PARKED
    park = flow.bed.park().details
    assert "was read up to 2, and holds nothing before 4 any more" in park["message"]
    assert park["recovery"] == "reset_checkpoint"
    flow.bed.reset()
    assert flow.bed.run() is Outcome.PARKED, "a reset that accepted nothing does not skip them either"
    flow.bed.reset(previous=1, accepted=("data-loss", "missing-history"))
    run(flow)
    flow.bed.holds([event(2), event(4), event(10)])


def test_a_loss_that_the_source_declares_to_bear_is_said_and_stops_nothing(
    kafka: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = kafka(options='"failOnDataLoss": False')
    flow.arrive(2)
    run(flow)
    flow.arrive(4, 6, 8)
    flow.expire(0, 3)
    run(flow)
    assert "/0 was read up to 1, and holds nothing before 3 any more" in capsys.readouterr().out
    flow.bed.reset()
    flow.arrive(10)
    run(flow)
    flow.bed.holds([event(2), event(8), event(10)])


@pytest.mark.long
def test_a_topic_that_was_made_anew_is_found_though_it_has_grown_past_the_old_position(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(1, 2, 3, 4)
    run(flow)
    flow.delete()
    flow.create()
    flow.arrive(*range(11, 21))
    assert flow.bed.run() is Outcome.PARKED
    assert "was deleted and recreated (its id was" in flow.bed.park().details["message"]
    flow.bed.reset(accepted=("data-loss",))
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))


@pytest.mark.long
def test_a_union_with_files_goes_on_in_both(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(1, 2, 3)
    run(flow)
    flow.bed.arrive(10, 11, folder="files")
    flow.declare(**UNION)
    flow.bed.reset()
    flow.arrive(4)
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
    flow.declare(**{**UNION, "flow": UNION["flow"] + DEDUPE})
    flow.bed.reset()
    flow.arrive(1, 5)
    flow.bed.arrive(10, 12, folder="files")
    run(flow)
    flow.bed.holds(first_per(flow.bed.events, ["event_id"]))


@pytest.mark.parametrize(
    ("start", "expected"),
    long_after(
        1, [("'latest'", [3, 4]), ("'earliest'", [1, 2, 3, 4]), ("{topic: {'0': 1, '1': -2}}", [1, 3, 4])]
    ),
    ids=["latest", "earliest", "offsets"],
)
@pytest.mark.parametrize("view", long_after(1, ["", DEDUPE]), ids=["stateless", "stateful"])
def test_the_first_generation_starts_where_its_source_says(
    kafka: Make, start: str, expected: list[int], view: str
) -> None:
    flow = kafka()
    flow.arrive(1, 2)
    flow.declare(view=view, parameters=f"start={start.replace('topic', repr(flow.topic))}, ")
    run(flow)
    flow.arrive(3, 4)
    run(flow)
    flow.bed.holds([event(number) for number in expected])


@pytest.mark.long
def test_what_came_after_a_first_generation_that_committed_nothing_is_not_left_out(kafka: Make) -> None:
    flow = kafka()
    flow.arrive(1)
    flow.declare(parameters="start='latest', ")
    run(flow)
    flow.arrive(2, 3)
    flow.bed.reset(StartAt(AFTER_LAST))
    run(flow)
    flow.bed.holds([event(2), event(3)])


@pytest.mark.parametrize(
    "topics",
    long_after(1, ['"subscribePattern": "{topic}.*"', '"assign": "{{\\"{topic}\\": [0, 1]}}"']),
    ids=["by a pattern", "by partitions"],
)
def test_topics_may_be_given_in_other_ways(kafka: Make, topics: str) -> None:
    flow = kafka()
    flow.declare(topics=topics.format(topic=flow.topic))
    flow.arrive(1, 2)
    run(flow)
    flow.bed.reset()
    flow.arrive(3)
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))


@pytest.mark.long
def test_a_topic_that_matches_a_pattern_only_later_is_read_from_its_beginning(kafka: Make) -> None:
    flow = kafka()
    flow.declare(topics=f'"subscribePattern": "{flow.topic}.*"')
    flow.arrive(1)
    run(flow)
    flow.create(f"{flow.topic}-more")
    flow.arrive(2, 3, topic=f"{flow.topic}-more")
    flow.bed.reset()
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))


def test_the_broker_comes_from_the_environment_of_the_driver(
    kafka: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = kafka()
    flow.declare(brokers="{env:ORDERS_BROKERS}")
    flow.arrive(1)
    assert flow.bed.run() is Outcome.FAILED, "without it the driver tries again, and parks nothing"
    monkeypatch.setenv("ORDERS_BROKERS", flow.brokers)
    run(flow)
    flow.bed.holds([event(1)])


@pytest.mark.long
def test_a_topic_that_is_not_there_yet_is_tried_again(kafka: Make) -> None:
    flow = kafka()
    flow.declare(topics=f'"subscribe": "{flow.topic}-later"')
    assert flow.bed.run() is Outcome.FAILED
    flow.create(f"{flow.topic}-later")
    flow.arrive(1, topic=f"{flow.topic}-later")
    run(flow)
    flow.bed.holds([event(1)])


@pytest.mark.long
def test_a_topic_that_is_read_again_goes_on_where_an_earlier_generation_ended(kafka: Make) -> None:
    flow = kafka()
    alone, other = f'"subscribe": "{flow.topic}"', f"{flow.topic}-other"
    both = f'"subscribe": "{flow.topic},{other}"'
    flow.create(other, 1)
    flow.declare(topics=both)
    flow.arrive(1, 2)
    flow.arrive(3, partition=0, topic=other)
    run(flow)
    flow.declare(topics=alone)
    flow.bed.reset()
    flow.arrive(4)
    run(flow)
    flow.declare(topics=both)
    flow.arrive(5, partition=0, topic=other)
    assert flow.bed.run() is Outcome.PARKED
    assert f"reads {other} again, which an earlier generation" in flow.bed.park().details["message"]
    flow.bed.reset()
    run(flow)
    flow.bed.holds(all_rows(flow.bed.events))
