"""Batches that were planned and not committed: Spark 4.2.0 needs help to replay one on offset log v2."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from tests.worlds.flow_world import Flowbed


@pytest.fixture
def in_flight(bed: Flowbed) -> Flowbed:
    for number in range(1, 6):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    bed.forget_commit()
    return bed


@pytest.mark.long
def test_spark_alone_cannot_start_again_with_a_batch_in_flight_on_offset_log_v2(
    in_flight: Flowbed, spark: SparkSession
) -> None:
    """Pinned: once this passes no more, streamkeeper_jobs.stream.in_flight can go."""
    from streamkeeper_jobs.stream.data_frame import flow_frame

    writer = (
        flow_frame(spark, in_flight.flow(), {})
        .writeStream.format("noop")
        .option("checkpointLocation", in_flight.checkpoint(1).path())
    )
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"None\.get"):
        query.awaitTermination()


def test_a_batch_in_flight_is_replayed_once_and_the_flow_goes_on(in_flight: Flowbed) -> None:
    in_flight.arrive(6)
    assert in_flight.run() is Outcome.STOPPED
    in_flight.holds(in_flight.events)
    assert in_flight.checkpoint(1).last_commit() == in_flight.checkpoint(1).offset_batches()[-1]


def test_nothing_is_rewritten_where_no_batch_is_in_flight(bed: Flowbed) -> None:
    from streamkeeper_jobs.stream.in_flight import pin_partitions

    bed.arrive(1)
    bed.arrive(2)
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    assert pin_partitions(bed.home.storage, bed.start(1).checkpoint, "2") == []
    bed.forget_commit()
    assert pin_partitions(bed.home.storage, bed.start(1).checkpoint, "7") == [0, 1]
    pinned = [bed.checkpoint(1).offsets(batch).conf["spark.sql.shuffle.partitions"] for batch in (0, 1)]
    assert pinned == ["2", "2"], (
        "the number that the state was made with, not the session's: it goes for the state's, too"
    )
    assert pin_partitions(bed.home.storage, bed.start(1).checkpoint, "2") == []
