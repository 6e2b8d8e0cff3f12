"""Flows that go back: to a batch, with the table kept or put back, across generations; the table equals the
oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import COPIED, REBUILT
from streamkeeper.recover.plans.plan import Plan
from tests.oracle import counted, first_per
from tests.worlds.flow_world import NAME, Flowbed, event, heartbeat, pipeline, wait_until
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import SNAPSHOT, CustomersBed, delete, truncate, upsert

Make = Callable[..., Flowbed]
STATELESS = pipeline(view="", files=1)
DEDUPE = pipeline(files=1)


def go_back(bed: Flowbed, recovery: str = "r1", **values: Any) -> Plan:
    at_work = Recoverer.of(bed)
    made = at_work.plan("rewind", recovery, flow=bed.name, **values)
    assert made.refusals == (), made.refusals
    at_work.carry_out(made)
    return made


def run(bed: Flowbed) -> None:
    assert bed.run() is Outcome.STOPPED


def five_batches(bed: Flowbed) -> None:
    """One event a batch, and some of them come twice."""
    for numbers in ((1,), (2, 1), (3,), (4, 2), (5,)):
        bed.arrive(*numbers)
    run(bed)
    assert bed.checkpoint(1).last_commit() == 4


# --- the target is put back


def test_a_flow_that_goes_back_with_its_table_ends_with_the_same_table(make_bed: Make) -> None:
    bed = make_bed(DEDUPE)
    five_batches(bed)
    bed.holds(first_per(bed.events, ["event_id"]))
    made = go_back(bed, batch="1", target="restored")
    assert (made.flows[0].state, made.flows[0].impacts[0].repeated.nothing) == (COPIED, True)
    bed.holds(first_per(bed.events[:3], ["event_id"]))
    bed.arrive(6, 3)
    run(bed)
    expected = first_per(bed.events, ["event_id"])
    bed.holds(expected)
    assert (bed.start(2).seed_batch, bed.start(2).positions) == (1, {"events_raw": {"logOffset": 1}})
    # Twice, and this time into the generation before, by its number.
    go_back(bed, "r2", batch="1/3", target="restored")
    run(bed)
    bed.holds(expected)
    assert bed.start(3).evidence["generation"] == 1
    # And to a batch of the generation that a rewind made, which was undone meanwhile.
    go_back(bed, "r3", batch="2/2", target="restored")
    bed.arrive(7)
    run(bed)
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.long
def test_state_that_was_removed_is_rebuilt_as_it_was_at_the_batch(make_bed: Make) -> None:
    bed = make_bed(DEDUPE)
    five_batches(bed)
    folder = bed.checkpoint(1).name("state/0")
    for partition in bed.home.storage.names(folder):
        if partition.isdecimal():
            bed.home.storage.remove(f"{folder}/{partition}/1.delta")
    made = go_back(bed, batch="1", target="restored")
    assert made.flows[0].state == REBUILT
    assert made.flows[0].impacts[0].replayed.rows == 3
    bed.arrive(1, 6)
    run(bed)
    bed.holds(first_per(bed.events, ["event_id"]))


def test_a_driver_tells_of_no_batch_that_never_ran(
    make_bed: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = make_bed(STATELESS)
    five_batches(bed)
    go_back(bed, batch="4", target="restored")
    capsys.readouterr()
    with bed.running():
        wait_until(
            lambda: (beat := heartbeat(bed)) is not None and beat.generation == 2 and beat.triggers > 0
        )
        beat = heartbeat(bed)
        assert beat is not None
        assert (beat.batch, beat.rows) == (None, 0)
    assert "generation 2, batch" not in capsys.readouterr().out


# --- the target is kept


@pytest.mark.long
def test_a_table_that_is_kept_gets_what_was_counted_a_second_time(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    five_batches(bed)
    made = go_back(bed, batch="2", accept=["duplicates"])
    assert made.flows[0].impacts[0].repeated.rows == 3
    run(bed)
    bed.holds([*bed.events, event(4), event(2), event(5)])


@pytest.mark.long
def test_a_deduplicated_flow_goes_back_with_the_state_of_the_batch(make_bed: Make) -> None:
    """What the state knows at batch 2 stays out; what came later comes again, once."""
    bed = make_bed(DEDUPE)
    five_batches(bed)
    go_back(bed, batch="2", accept=["duplicates"])
    bed.arrive(1, 3, 5)
    run(bed)
    bed.holds([event(number) for number in (1, 2, 3, 4, 5, 4, 5)])


@pytest.mark.long
def test_another_declaration_goes_back_with_a_state_of_its_own(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    five_batches(bed)
    bed.declare(DEDUPE)
    made = go_back(bed, batch="1", target="restored")
    assert made.flows[0].state == REBUILT
    run(bed)
    bed.holds([event(1), event(2), event(1), event(3), event(4), event(5)])


def test_a_reset_from_an_earlier_generation_copies_its_end(make_bed: Make) -> None:
    bed = make_bed(DEDUPE)
    bed.arrive(1, 2)
    run(bed)
    bed.reset()
    bed.arrive(3)
    run(bed)
    at_work = Recoverer.of(bed)
    values = {"start": "generation", "generation": 1, "accept": ["duplicates"]}
    made = at_work.plan("reset_checkpoint", "r1", flow=NAME, **values)
    at_work.carry_out(made)
    assert made.flows[0].state == COPIED
    bed.arrive(1, 4)
    run(bed)
    bed.holds([event(number) for number in (1, 2, 3, 3, 4)])


# --- AUTO CDC


@pytest.fixture
def shop(tmp_path: Any, spark: SparkSession) -> CustomersBed:
    """Changes before and after the snapshot, which runs once."""
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    bed.take_snapshot(1, 2, 3)
    bed.change(upsert(4, 1), upsert(1, 2))
    assert bed.run() is Outcome.STOPPED
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.change(delete(2, 3), upsert(5, 4))
    assert bed.run() is Outcome.STOPPED
    bed.change(truncate(5), upsert(3, 6), delete(5, 7))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()
    return bed


@pytest.mark.long
def test_changes_that_are_read_again_into_a_table_by_key_change_nothing(shop: CustomersBed) -> None:
    made = go_back(shop.of(), batch="0")
    assert made.flows[0].impacts[0].repeated.rows == 5
    shop.change(upsert(6, 8), upsert(2, 1))
    assert shop.run() is Outcome.STOPPED
    shop.is_exact()


@pytest.mark.long
def test_a_table_by_key_goes_back_with_what_it_remembered(shop: CustomersBed) -> None:
    before = shop.remembered().count()
    made = go_back(shop.of(), batch="1", target="restored")
    assert [flow.next_generation for flow in made.flows] == [2, None]
    assert shop.remembered().count() == before - 2
    shop.is_exact([*shop.events[:4], *shop.snapshot])
    shop.change(upsert(5, 5), upsert(7, 9))
    assert shop.run() is Outcome.STOPPED
    shop.is_exact()


@pytest.mark.long
def test_a_flow_that_wrote_since_goes_along_or_the_plan_is_refused_with_its_name(shop: CustomersBed) -> None:
    asked = {"batch": "0", "target": "restored"}
    (refusal,) = Recoverer.of(shop.of()).draft("rewind", flow=shop.of().name, **asked).refusals
    assert f"customers.{SNAPSHOT} wrote 1 batches into customers" in refusal.message
    made = go_back(shop.of(), **asked, along=[f"customers.{SNAPSHOT}"])
    assert [flow.next_generation for flow in made.flows] == [2, 2]
    shop.is_exact(shop.events[:2])
    assert shop.run() is Outcome.STOPPED
    assert shop.run(SNAPSHOT) is Outcome.DONE
    shop.is_exact()
    assert counted(shop.rows(), ("customer_id",)) == counted(shop.expected(), ("customer_id",))
