"""What Spark and Delta really raise where a Kafka topic or a Delta table fails a query that runs, and how
each is classed.

A flow's own driver finds most of it before it starts its query (test_kafka_source.py, test_delta_source.py);
here is what comes in between.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from streamkeeper.drivers.failures import Failure, FailureClass, classify
from tests.worlds import checkpoint_samples as samples
from tests.worlds.sources.source_world import DeltaBed, KafkaBed

pytestmark = pytest.mark.long

Kafka = Callable[..., KafkaBed]
Delta = Callable[..., DeltaBed]


def drain(flow: KafkaBed | DeltaBed, frame: DataFrame) -> None:
    samples.drain(frame, flow.bed.root / "checkpoint")


def failure_of(provoke: Callable[[], None]) -> Failure:
    from streamkeeper_jobs.spark.exceptions import causes_of

    with pytest.raises(Exception) as raised:
        provoke()
    return classify(causes_of(raised.value))


def records(flow: KafkaBed) -> DataFrame:
    reader = (
        flow.bed.spark.readStream.name("raw").format("kafka").option("kafka.bootstrap.servers", flow.brokers)
    )
    return reader.option("subscribe", flow.topic).option("startingOffsets", "earliest").load()


def expired(flow: KafkaBed) -> None:
    flow.arrive(4, 6, 8)
    flow.expire(0, 3)


def made_anew(flow: KafkaBed) -> None:
    flow.delete()
    flow.create()
    flow.arrive(3)


def widened_and_expired(flow: KafkaBed) -> None:
    flow.widen(3)
    flow.arrive(10, 11, partition=2)
    flow.expire(2, 1)


@pytest.mark.parametrize(
    ("happens", "classed"),
    [
        (expired, FailureClass.TRANSIENT),
        (made_anew, FailureClass.TRANSIENT),
        (widened_and_expired, FailureClass.NEEDS_RECOVERY),
    ],
)
def test_what_kafka_lost_needs_a_recovery_or_the_look_of_the_next_driver(
    kafka: Kafka, happens: Callable[[KafkaBed], None], classed: FailureClass
) -> None:
    flow = kafka()
    flow.arrive(1, 2)
    drain(flow, records(flow).select("value"))
    happens(flow)
    failure = failure_of(lambda: drain(flow, records(flow).select("value")))
    assert (failure.condition or "").startswith("KAFKA_DATA_LOSS"), failure
    recovery = "reset_checkpoint" if classed is FailureClass.NEEDS_RECOVERY else None
    assert (failure.classed, failure.recovery) == (classed, recovery)


def test_a_declared_start_that_leaves_a_partition_out_needs_a_correction(kafka: Kafka) -> None:
    flow = kafka()
    flow.arrive(1, 2)
    flow.declare(parameters=f"start={{{flow.topic!r}: {{'0': 1}}}}, ")
    flow.bed.run()
    park = flow.bed.park().details
    assert (park["classed"], park["recovery"]) == ("needs correction", None), park
