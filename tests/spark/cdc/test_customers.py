"""The customers pipeline end to end: two flows, real drivers, one table, and the oracle."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds
from streamkeeper.flows.files import query_id
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from tests.worlds.flow_world import Driver
from tests.worlds.pipelines import edited
from tests.worlds.tables.customers_world import (
    INCREMENTAL,
    PIPELINE,
    SNAPSHOT,
    CustomersBed,
    delete,
    truncate,
    upsert,
    without_dedupe,
)

SNAPSHOT_BY_FILE = edited(
    PIPELINE, ('city STRING",\n)', 'city STRING",\n    options={"maxFilesPerTrigger": 1},\n)')
)


@pytest.fixture
def bed(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    return CustomersBed.make(tmp_path / "a bed", spark)


@pytest.mark.long
def test_changes_and_the_snapshot_make_one_table_whichever_comes_first(bed: CustomersBed) -> None:
    """A delete that came before the snapshot keeps its customer away; a truncate takes what the snapshot had,
    whenever it is read.
    """
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


@pytest.mark.long
def test_a_once_flow_is_not_done_before_there_is_anything_to_read(bed: CustomersBed) -> None:
    assert bed.run(SNAPSHOT) is Outcome.STOPPED
    assert generations.finished(bed.home(SNAPSHOT)) is None
    bed.take_snapshot(1)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    assert generations.finished(bed.home(SNAPSHOT)) == 1
    bed.is_exact()


@pytest.mark.long
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


@pytest.mark.long
def test_42k03_parks_the_incremental_flow_alone_and_its_reset_is_exact_while_the_snapshot_stays_done(
    bed: CustomersBed,
) -> None:
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
    assert delta_log.last_transaction(bed.table, first).fenced
    assert bed.run(SNAPSHOT) is Outcome.DONE
    assert bed.home(SNAPSHOT).generations() == [1]


@pytest.mark.long
def test_new_columns_of_a_flow_are_told_as_an_event(bed: CustomersBed) -> None:
    bed.change(upsert(1, 1))
    assert bed.run() is Outcome.STOPPED
    bed.declare(edited(PIPELINE, ("city STRING, operation", "city STRING, phone STRING, operation")))
    bed.change(upsert(2, 2))
    assert bed.run() is Outcome.STOPPED
    told = events.read(bed.home().storage, bed.home().pipeline)
    assert [event.text for event in told if event.kind == Kind.SCHEMA_CHANGED] == [
        "the table customers has new columns: phone"
    ]


@pytest.mark.long
def test_two_drivers_at_once_take_turns(bed: CustomersBed) -> None:
    """The snapshot comes in several batches, and changes come all the while: every batch of either waits for
    the other's.
    """
    bed.declare(SNAPSHOT_BY_FILE)
    for number in range(4):
        bed.take_snapshot(*range(10 * number, 10 * number + 10))
    bed.change(*(upsert(number, number + 1) for number in range(5)))
    with bed.driver(INCREMENTAL) as changes, bed.driver(SNAPSHOT) as snapshot:
        changes.until(lambda: bed.batch(INCREMENTAL) is not None)
        for number in range(4):
            bed.change(
                upsert(10 + number, 100 + number),
                delete(20 + number, 200 + number),
                upsert(20 + number, 150 + number),
            )
        assert snapshot.wait(400) == 0, snapshot.said()
        assert generations.finished(bed.home(SNAPSHOT)) == 1
        holds.put(bed.home(), holds.person("test"), "the test is over", "test")
        assert changes.wait(400) == 0, changes.said()
    holds.release(bed.home(), holds.person("test"))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    assert bed.locks.numbers()[-1] >= 6


@pytest.mark.long
def test_kill_9_before_the_commit_and_between_the_commit_and_the_checkpoint(bed: CustomersBed) -> None:
    """After each kill the next driver goes on with the very batch; the last time the flow is reset
    instead.
    """
    bed.take_snapshot(1, 2, 3, 4, 5, 6)
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.change(upsert(1, 5))
    assert bed.run() is Outcome.STOPPED
    bed.change(delete(1, 9), upsert(1, 7), delete(2, 3), upsert(7, 3))
    target = delta_log.latest_version(bed.table)
    with bed.driver() as driver:
        caught(driver, bed.runs)
        assert delta_log.latest_version(bed.table) == target, "the target was not written yet"
    assert bed.checkpoint().last_commit() == 0
    bed.change(upsert(2, 2), upsert(8, 1))
    with bed.driver() as driver:
        driver.until(lambda: bed.batch() == 2, 400)
        bed.is_exact()
        bed.change(delete(4, 10), upsert(4, 9), upsert(9, 1))
        caught(driver, bed.in_target)
    assert bed.checkpoint().last_commit() == 2, "the batch is in the target, and not in the checkpoint"
    with bed.driver() as driver:
        driver.until(lambda: bed.batch() == 3, 400)
        bed.is_exact()
        bed.change(delete(3, 10), upsert(3, 9), upsert(11, 1))
        caught(driver, bed.in_target)
    assert bed.checkpoint().last_commit() == 3
    bed.declare(without_dedupe())
    bed.reset()
    bed.change(upsert(3, 8), upsert(10, 1))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    assert (bed.start(2).evidence["batch"], bed.start(2).evidence["ruled_by"]) == (4, "sink")


def caught(driver: Driver, look: Callable[[], object]) -> None:
    """Kill a driver right after something that is looked at has changed."""
    before = look()
    driver.until(lambda: look() != before, 400, poll=0.001)
    driver.signal(signal.SIGSTOP)
    driver.kill()


@pytest.mark.long
def test_a_holder_of_the_turn_that_cannot_be_proven_dead_is_shut_out_and_goes_on_in_a_generation_of_its_own(
    bed: CustomersBed,
) -> None:
    """The incremental flow is stopped in mid-batch, with the lock, and said to be on another host. The
    snapshot flow waits for the lease's term, shuts it out and takes the lock. What the orphan still commits
    is refused; its next driver goes on in a copied generation.
    """
    bed.take_snapshot(1, 2, 3)
    bed.change(upsert(1, 5))
    assert bed.run() is Outcome.STOPPED
    bed.change(delete(2, 9), upsert(3, 7))
    with bed.driver() as orphan:
        before = bed.runs()
        orphan.until(lambda: bed.runs() != before, 400, poll=0.001)
        orphan.signal(signal.SIGSTOP)
        bed.say_it_is_on_another_host(INCREMENTAL)
        assert bed.run(SNAPSHOT) is Outcome.DONE
        assert generations.is_over(bed.home(), 1)
        version = delta_log.latest_version(bed.table)
        orphan.signal(signal.SIGCONT)
        assert orphan.wait(400) == Outcome.STOPPED, orphan.said()
    assert delta_log.latest_version(bed.table) == version, "it was refused"
    assert "fenced in its table" in orphan.said()
    bed.change(upsert(4, 1))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    assert bed.home().generations() == [1, 2]
    decided = generations.read(bed.home(), 2)
    assert decided is not None
    assert (decided.state, decided.by) == (generations.COPIED, "driver")
