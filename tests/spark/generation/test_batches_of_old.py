"""A state that depends on where batches end is rebuilt in the batches that it was made in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import BATCH, StartAt
from streamkeeper.sources.replay_steps import BATCHES
from streamkeeper.support.amounts import UNKNOWN_IMPACT
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.sources.source_world import DeltaBed, KafkaBed

WITHIN = '.withWatermark("event_time", "1 minute").dropDuplicatesWithinWatermark(["user_id"])'
BEFORE = (0, 120, 125, 147)
"""Events of the users 0, 1, 6 and 0, a batch each: the last comes when its user is forgotten."""
AFTER = 161
"""One more of user 0, within a minute of the one before."""
MAKERS = [
    "files",
    pytest.param("delta", marks=pytest.mark.long),
    pytest.param("feed", marks=pytest.mark.long),
    pytest.param("kafka", marks=pytest.mark.long),
]


@pytest.fixture(params=MAKERS)
def world(request: pytest.FixtureRequest) -> Any:
    """A flow that reads one event a batch: its bed, and how events arrive."""
    if request.param == "files":
        bed = request.getfixturevalue("make_bed")(pipeline(view=WITHIN, files=1))
        return bed, bed.arrive
    if request.param == "kafka":
        topic: KafkaBed = request.getfixturevalue("kafka")(view=WITHIN, options='"maxOffsetsPerTrigger": 1')
        return topic.bed, lambda number: topic.arrive(number, partition=0)
    feed = ', "readChangeFeed": True' if request.param == "feed" else ""
    table: DeltaBed = request.getfixturevalue("delta")(
        view='.select("event_id", "user_id", "n", "event_time")' + WITHIN,
        options=f'"maxFilesPerTrigger": 1{feed}',
    )
    table.arrive(*BEFORE[:1])
    if feed:
        table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    return table.bed, lambda number: None if number == BEFORE[0] else table.arrive(number)


@pytest.fixture
def last_batch_alone(spark: SparkSession) -> Iterator[None]:
    """Let no batch be known but the last."""
    spark.conf.set(BATCHES, "1")
    yield
    spark.conf.unset(BATCHES)


def run(bed: Flowbed) -> None:
    assert bed.run() is Outcome.STOPPED


def holds(bed: Flowbed, *numbers: int) -> None:
    assert sorted(row["n"] for row in bed.rows()) == sorted(numbers)


def test_a_key_is_forgotten_when_it_was_and_not_before(world: tuple[Flowbed, Callable[[int], Any]]) -> None:
    bed, arrive = world
    for number in BEFORE:
        arrive(number)
    run(bed)
    holds(bed, *BEFORE)
    bed.reset()
    arrive(AFTER)
    run(bed)
    holds(bed, *BEFORE)
    old, new = bed.checkpoint(1), bed.checkpoint(2)
    last = bed.start(2).seed_batch
    assert last is not None
    for batch in range(len(old.offset_batches())):
        assert new.offsets(batch).watermark_ms == old.offsets(batch).watermark_ms
        assert new.offsets(batch).sources == old.offsets(batch).sources
    bed.reset()
    arrive(AFTER + 7)
    run(bed)
    holds(bed, *BEFORE)


@pytest.mark.long
def test_a_rewind_and_a_changed_declaration_rebuild_it_so_too(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(pipeline(view=WITHIN, files=1))
    for number in (*BEFORE, AFTER):
        bed.arrive(number)
    run(bed)
    end = next(
        batch
        for batch in bed.checkpoint(1).offset_batches()
        if bed.checkpoint(1).offsets(batch).sources == {"events_raw": {"logOffset": len(BEFORE) - 1}}
    )
    bed.reset(StartAt(BATCH, generation=1, batch=end))
    run(bed)
    holds(bed, *BEFORE)
    bed.declare(pipeline(view='.where("n > -1")' + WITHIN, files=1))
    bed.reset()
    bed.arrive(AFTER + 7)
    run(bed)
    holds(bed, *BEFORE)


@pytest.mark.long
@pytest.mark.usefixtures("last_batch_alone")
def test_where_the_batches_are_not_known_the_impact_must_be_accepted(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(pipeline(view=WITHIN, files=1))
    for number in BEFORE:
        bed.arrive(number)
    run(bed)
    bed.reset()
    bed.arrive(AFTER)
    assert bed.run() is Outcome.PARKED
    assert "only the last 1 of the batches that it came in are known" in bed.park().reason
    bed.reset(accepted=(UNKNOWN_IMPACT,))
    run(bed)
    holds(bed, *BEFORE)  # the last batch alone decides here, and it is known
