"""A rebuild without downtime, whatever the flow reads and keeps: Kafka, Delta, a table whose columns are
mapped by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.recover.moves import side_table
from tests.oracle import all_rows, first_per
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.sources.source_world import DEDUPE, DeltaBed, KafkaBed
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.rebuild import DONE, KIND, NAME, after_round, distinct, steps

pytestmark = pytest.mark.long


@pytest.fixture(params=["kafka", "delta"])
def source(request: pytest.FixtureRequest) -> KafkaBed | DeltaBed:
    made: KafkaBed | DeltaBed = request.getfixturevalue(request.param)(view=DEDUPE)
    return made


def refresh(
    at_work: Recoverer, patch: pytest.MonkeyPatch, meanwhile: Callable[[], object], **asked: Any
) -> dict[str, Any]:
    """Refresh beside, killed at the commit's very end; something happens after the first round of reading,
    and more before the hold.
    """
    assert at_work.plan(KIND, NAME, table="events.events", **asked).refusals == ()
    with patch.context() as patched:
        patched.setattr(side_table, "BEHIND", 0)
        after_round(1, meanwhile, patched)
        told: dict[str, Any] = steps(at_work, "lock", "build")["build"]
    steps(at_work, "hold", "plan_again")
    at_work.step_killed_at_its_end(NAME, "put_in_place")
    steps(at_work, *DONE)
    return told


def test_from_kafka_and_from_delta_while_more_arrives(
    source: KafkaBed | DeltaBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declaration changed, so the new table has other rows; the old flow goes on while it is built, and
    what both read comes once.
    """
    bed = source.bed
    source.arrive(1, 2, 3, 4, 5)
    source.arrive(3, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed))
    source.declare(view=f'{DEDUPE}.where("n > 1")')

    def goes_on() -> None:
        source.arrive(6, 7, 8)
        assert bed.run() is Outcome.STOPPED
        bed.holds(distinct(bed))
        source.arrive(8, 9)

    told = refresh(Recoverer.of(bed), monkeypatch, goes_on)
    assert told["rounds"] == 3
    bed.holds(distinct(bed, above=1))
    source.arrive(9, 10, 1)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed, above=1))
    assert bed.start(2).checkpoint.rpartition("/")[2].startswith("rebuild-"), (
        "it continues where the table was built"
    )


def test_a_kafka_topic_that_is_widened_meanwhile(
    kafka: Callable[..., KafkaBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kafka()
    source.arrive(1, 2, 3)
    assert source.bed.run() is Outcome.STOPPED

    def widen() -> None:
        source.widen(3)
        source.arrive(4, 5, partition=2)

    refresh(Recoverer.of(source.bed), monkeypatch, widen)
    source.arrive(6, 7, partition=2)
    assert source.bed.run() is Outcome.STOPPED
    source.bed.holds(all_rows(source.bed.events))


def test_columns_mapped_by_name_stay_so_after_one_was_renamed_and_one_dropped(
    bed: Flowbed, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's fields have other names in its files; the files that are put in place were written under
    the same mapping.
    """
    bed.arrive(1, 2, 3)
    assert bed.run() is Outcome.STOPPED
    table = f"delta.`{bed.table}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN spare STRING")
    spark.sql(f"ALTER TABLE {table} DROP COLUMN spare")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN n TO number")
    bed.declare(pipeline(flow='events.withColumnRenamed("n", "number")'))
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    refresh(Recoverer.of(bed), monkeypatch, lambda: bed.arrive(4, 5))
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    wanted = [(event["event_id"], event["n"]) for event in first_per(bed.events, ["event_id"])]
    found = spark.read.format("delta").load(str(bed.table)).select("event_id", "number").collect()
    assert sorted(tuple(row) for row in found) == sorted(wanted)
    properties = spark.sql(f"DESCRIBE DETAIL {table}").first()["properties"]  # type: ignore[index]
    assert properties["delta.columnMapping.mode"] == "name"
