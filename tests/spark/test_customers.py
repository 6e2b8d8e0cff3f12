"""The customers pipeline end to end: two flows, real drivers, one table, and the oracle."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper import delta_log, generations, holds
from streamkeeper.home import query_id
from streamkeeper.outcomes import Outcome
from tests.spark.customersbed import INCREMENTAL, PIPELINE, SNAPSHOT, CustomersBed, delete, truncate, upsert, without_dedupe
from tests.spark.flowbed import wait_until


@pytest.fixture
def bed(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    return CustomersBed.make(tmp_path / "a bed", spark)


def test_changes_and_the_snapshot_make_one_table_whichever_comes_first(bed: CustomersBed) -> None:
    """A delete that came before the snapshot keeps its customer away; a truncate takes what the snapshot had, whenever it is read."""
    bed.take_snapshot(1, 2, 3, 4)
    bed.change(upsert(1, 5), delete(2, 6), upsert(5, 7))
    bed.change(upsert(1, 3), upsert(5, 7), delete(5, 2))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    bed.is_exact(bed.events)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.is_exact()
    assert {found["customer_id"] for found in bed.rows()} == {1, 3, 4, 5}
    bed.change(truncate(6), upsert(6, 8), upsert(7, 4))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    bed.is_exact()
    assert {found["customer_id"] for found in bed.rows()} == {5, 6}
    assert bed.run(SNAPSHOT) is Outcome.DONE, "it is done already, and starts nothing"
    assert bed.home(SNAPSHOT).epochs() == [1]
    bed.is_exact()


def test_a_once_flow_is_not_done_before_there_is_anything_to_read(bed: CustomersBed) -> None:
    assert bed.run(SNAPSHOT) is Outcome.STOPPED
    assert generations.finished(bed.home(SNAPSHOT)) is None
    bed.take_snapshot(1)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    assert generations.finished(bed.home(SNAPSHOT)) == 1
    bed.is_exact()


def test_a_reset_runs_a_once_flow_again(bed: CustomersBed) -> None:
    bed.take_snapshot(1)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.take_snapshot(2)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.is_exact(bed.snapshot[:1])
    bed.reset(SNAPSHOT)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.is_exact()
    assert generations.finished(bed.home(SNAPSHOT)) == 2


def test_42k03_parks_the_incremental_flow_alone_and_its_reset_is_exact_while_the_snapshot_stays_done(bed: CustomersBed) -> None:
    bed.take_snapshot(1, 2, 3)
    bed.change(upsert(1, 5), delete(2, 6))
    assert (bed.run(SNAPSHOT), bed.run(INCREMENTAL)) == (Outcome.DONE, Outcome.STOPPED)
    bed.declare(without_dedupe())
    bed.change(upsert(4, 7), delete(3, 8), upsert(4, 7))
    assert bed.run(INCREMENTAL) is Outcome.PARKED
    park = holds.parked(bed.home(INCREMENTAL))
    assert park is not None
    assert park.details["sql_state"] == "42K03"
    assert bed.home(SNAPSHOT).owners() == []
    bed.reset()
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    bed.is_exact()
    first = query_id(bed.home().full_name, 1)
    assert delta_log.last_transaction(bed.table, first).sealed
    assert delta_log.last_transaction(bed.tombstones, f"{first}/tombstones").sealed
    assert bed.run(SNAPSHOT) is Outcome.DONE
    assert bed.home(SNAPSHOT).generations() == [1]


def test_a_change_that_cannot_be_applied_parks_the_flow_and_a_corrected_view_lets_it_go_on(bed: CustomersBed) -> None:
    bed.change(upsert(1, 1))
    assert bed.run() is Outcome.STOPPED
    bed.change(upsert(2, 2), {**upsert(3, 3), "customer_id": None})
    assert bed.run() is Outcome.PARKED
    park = holds.parked(bed.home())
    assert park is not None
    assert park.details["classed"] == "needs correction"
    assert "customer_id" in park.details["message"]
    bed.is_exact(bed.events[:1])
    bed.declare(PIPELINE.replace("operation IS NOT NULL", "operation = 'TRUNCATE' OR customer_id IS NOT NULL"))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact(bed.events[:2])


def test_what_does_not_fit_its_source_parks_the_flow_with_its_place(bed: CustomersBed) -> None:
    bed.declare(PIPELINE.replace('sequence_by="sequenceNum"', 'sequence_by="seq"'))
    bed.change(upsert(1, 1))
    assert bed.run() is Outcome.PARKED
    park = holds.parked(bed.home())
    assert park is not None
    assert "customers.py, line" in park.details["message"]
    assert "names the column seq, which is not there" in park.details["message"]
    assert not Path(bed.table).exists(), "nothing was touched"


def test_two_drivers_at_once_take_turns(bed: CustomersBed) -> None:
    """The snapshot comes in many batches, and changes come all the while: every batch of either waits for the other's."""
    bed.declare(PIPELINE.replace('city STRING"\n)', 'city STRING", options={"maxFilesPerTrigger": 1}\n)'))
    for number in range(8):
        bed.take_snapshot(*range(10 * number, 10 * number + 10))
    bed.change(*(upsert(number, number + 1) for number in range(5)))
    with bed.driver(INCREMENTAL) as changes, bed.driver(SNAPSHOT) as snapshot:
        changes.until(lambda: bed.batch(INCREMENTAL) is not None)
        for number in range(12):
            bed.change(upsert(10 + number, 100 + number), delete(40 + number, 200 + number), upsert(40 + number, 150 + number))
            wait_until(lambda expected=number: (bed.batch(INCREMENTAL) or 0) > expected // 3)
        assert snapshot.wait() == 0, snapshot.said()
        assert generations.finished(bed.home(SNAPSHOT)) == 1
        holds.put(bed.home(), holds.person("test"), "the test is over", "test")
        assert changes.wait() == 0, changes.said()
    holds.release(bed.home(), holds.person("test"))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    assert bed.turns.numbers()[-1] >= 8


def test_both_drivers_are_killed_at_once_again_and_again(bed: CustomersBed) -> None:
    bed.declare(PIPELINE.replace('city STRING"\n)', 'city STRING", options={"maxFilesPerTrigger": 1}\n)'))
    for number in range(12):
        bed.take_snapshot(*range(5 * number, 5 * number + 5))
    for kill in range(3):
        first = 100 * (kill + 1)
        for number in range(6):
            bed.change(upsert(number, first + number), delete(number + 5, first + 50 + number), upsert(number + 5, first + 20 + number))
        done = [delta_log.latest_version(bed.table) or 0, *(len(bed.home(flow).epochs()) for flow in (INCREMENTAL, SNAPSHOT))]
        with ExitStack() as both:
            drivers = [both.enter_context(bed.driver(flow)) for flow in (INCREMENTAL, SNAPSHOT)]
            wait_until(lambda before=done[0]: (delta_log.latest_version(bed.table) or 0) >= before + 2)
            for driver in drivers:
                if driver.process.poll() is None:
                    driver.signal(signal.SIGKILL)
    assert (bed.run(SNAPSHOT), bed.run(INCREMENTAL)) == (Outcome.DONE, Outcome.STOPPED)
    bed.is_exact()
