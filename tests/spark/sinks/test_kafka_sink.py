"""A sink of Kafka: a batch that came twice is told by its headers, and rows of a key keep their order."""

from __future__ import annotations

import json
from collections import defaultdict
from uuid import uuid4

import pytest
from pyspark.sql.types import StructType
from streamkeeper_jobs.sinks import each_batch, kafka_sink

from streamkeeper.declare.model import KAFKA_SINK, Location, Table
from streamkeeper.errors import DeclarationError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import EARLIEST, EMPTY, StartAt
from streamkeeper.readers import drop_repeats
from streamkeeper.support.amounts import DUPLICATES
from tests.worlds.drivers import cut_off
from tests.worlds.flow_world import NAME, Flowbed
from tests.worlds.flows.sinks import in_topic, into_topic, make_topic, topic_holds
from tests.worlds.tables.backup_world import Recoverer


@pytest.fixture
def options(bed: Flowbed, brokers: str) -> dict[str, str]:
    """A flow into a topic of its own; options of Spark's reader of it."""
    made = make_topic(brokers)
    bed.declare(into_topic(made))
    return made


def test_a_batch_that_came_twice_is_dropped_by_its_readers_and_counted_by_the_plan(
    bed: Flowbed, at_work: Recoverer, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.arrive(1, 2)
    bed.arrive(3, 4, 4)  # equal rows are not repeats
    with monkeypatch.context() as patch:
        cut_off(each_batch, "_note", 2, patch, after=False)
        assert bed.run() is Outcome.FAILED
    assert at_work.impacts("reset_checkpoint", flow=NAME) == [DUPLICATES]
    assert bed.run() is Outcome.STOPPED
    assert at_work.impacts("reset_checkpoint", flow=NAME) == []
    rows = in_topic(bed, options)
    topic_holds(rows, [*bed.events, *bed.events[2:]])
    topic_holds(drop_repeats(rows), bed.events)
    bed.reset(StartAt(EARLIEST), state=EMPTY)
    assert bed.run() is Outcome.STOPPED
    topic_holds(drop_repeats(in_topic(bed, options)), [*bed.events, *bed.events])


@pytest.mark.long
def test_a_stream_drops_repeats_and_lets_rows_of_others_pass(
    bed: Flowbed, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.arrive(1, 2, 2)
    with monkeypatch.context() as patch:
        cut_off(each_batch, "_note", 1, patch, after=False)
        assert bed.run() is Outcome.FAILED
    assert bed.run() is Outcome.STOPPED
    foreign = bed.spark.createDataFrame([(json.dumps(bed.events[0]),)] * 2, "value string")
    foreign.write.format("kafka").options(**{**options, "topic": options["subscribe"]}).save()
    stream = drop_repeats(bed.spark.readStream.format("kafka").options(**options).name("out").load())
    name = f"seen_{uuid4().hex}"
    stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    topic_holds(bed.spark.table(name), [*bed.events, bed.events[0], bed.events[0]])


def test_rows_of_a_key_keep_their_order(bed: Flowbed, options: dict[str, str]) -> None:
    bed.arrive(*range(500))
    assert bed.run() is Outcome.STOPPED
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in in_topic(bed, options).orderBy("partition", "offset").collect():
        by_key[bytes(row.key).decode()].append(json.loads(bytes(row.value))["n"])
    assert len(by_key) == 7
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("key STRING", {"topic": "t"}, "gets no column value, only key"),
        (
            "value STRING, n INT",
            {"topic": "t"},
            "gets the column n, which Kafka has not, and it would be lost",
        ),
        ("value INT", {"topic": "t"}, "gets value as int. Allowed is string or binary: cast it"),
        ("value STRING", {}, "has neither a topic nor a column topic"),
        ("value STRING, topic STRING", {"topic": "t"}, "has both a topic and a column topic"),
    ],
)
def test_rows_that_kafka_cannot_take_are_refused(columns: str, options: dict[str, str], said: str) -> None:
    table = Table("out", None, options, (), Location("p.py", 2), sink=KAFKA_SINK)
    with pytest.raises(DeclarationError, match=f"p.py, line 2: the Kafka sink out {said}"):
        kafka_sink.check_rows(table, StructType.fromDDL(columns))
