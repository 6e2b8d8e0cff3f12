"""Flows that go back: to a batch, with the table kept or put back, across generations, killed in a step; the
table equals the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.errors import RecoveryError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.flows.generations import COPIED, REBUILT
from streamkeeper.manifest.manifest import read_manifest, write_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from streamkeeper.tables import past_versions
from tests.oracle import all_rows, counted, first_per
from tests.worlds.flow_world import NAME, Flowbed, event, heartbeat, pipeline, wait_until
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, truncate, upsert

Make = Callable[..., Flowbed]
STATELESS = pipeline(view="", files=1)
DEDUPE = pipeline(files=1)


class Killed(Exception):
    """Stands for a kill between two steps, or in the middle of one."""


def planned(settings: Settings, recovery: str = "r1", of: str = "rewind", **values: Any) -> Plan:
    """Plan a recovery and let it be approved."""
    write_manifest(settings)
    chosen = kind(of)
    request = chosen.parse(values, read_manifest(settings), "a test")
    made = engine.plan(settings, chosen, request, recovery)
    assert made.refusals == (), made.refusals
    engine.propose(settings, made)
    engine.approve(settings, made.pipeline, recovery, "a test")
    return made


def carry_out(spark: SparkSession, settings: Settings, plan: Plan, *steps: str) -> None:
    """Carry out steps of a recovery: all but the last, which waits for a driver, if none are named."""
    from streamkeeper_jobs.recover.steps import perform

    def in_spark(act: str, work: Work) -> dict[str, Any]:
        return perform(spark, act, work)

    for step in steps or plan.steps[:-1]:
        engine.carry_out(settings, plan.pipeline, plan.recovery_id, step, in_spark)


def go_back(bed: Flowbed | CustomersBed, recovery: str = "r1", **values: Any) -> Plan:
    made = planned(bed.settings, recovery, **{"flow": NAME, **values})
    carry_out(bed.spark, bed.settings, made)
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
    assert (made.flows[0].state, made.flows[0].prices[0].repeated.nothing) == (COPIED, True)
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


def test_state_that_was_removed_is_rebuilt_as_it_was_at_the_batch(make_bed: Make) -> None:
    bed = make_bed(DEDUPE)
    five_batches(bed)
    folder = bed.checkpoint(1).name("state/0")
    for partition in bed.home.storage.names(folder):
        if partition.isdecimal():
            bed.home.storage.remove(f"{folder}/{partition}/1.delta")
    made = go_back(bed, batch="1", target="restored")
    assert made.flows[0].state == REBUILT
    assert made.flows[0].prices[0].replayed.rows == 3
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
    made = planned(bed.settings, flow=NAME, batch="2", accept=["repeats"])
    assert made.flows[0].prices[0].repeated.rows == 3
    carry_out(bed.spark, bed.settings, made)
    run(bed)
    bed.holds([*bed.events, event(4), event(2), event(5)])


@pytest.mark.long
def test_a_deduplicated_flow_goes_back_with_the_state_of_the_batch(make_bed: Make) -> None:
    """What the state knows at batch 2 stays out; what came later comes again, once."""
    bed = make_bed(DEDUPE)
    five_batches(bed)
    go_back(bed, batch="2", accept=["repeats"])
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
    made = planned(
        bed.settings, of="reset_checkpoint", flow=NAME, start="generation", generation=1, accept=["repeats"]
    )
    carry_out(bed.spark, bed.settings, made)
    assert made.flows[0].state == COPIED
    bed.arrive(1, 4)
    run(bed)
    bed.holds([event(number) for number in (1, 2, 3, 3, 4)])


# --- killed


@pytest.mark.long
@pytest.mark.parametrize("kept", ["sealed", "put back"])
def test_a_step_that_was_killed_finds_what_it_did(
    make_bed: Make, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Killed after the flow was shut out, and after the table was put back; then every step is carried out
    again.
    """
    from streamkeeper_jobs.recover import rewind as rewind_job

    bed = make_bed(STATELESS)
    five_batches(bed)
    made = planned(bed.settings, flow=NAME, batch="2", target="restored")
    carry_out(bed.spark, bed.settings, made, "hold", "plan_again", "decide")

    real = rewind_job._restore

    def die(*given: Any) -> Any:
        if kept == "put back":
            real(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rewind_job, "put_back" if kept == "sealed" else "_restore", die)
        with pytest.raises(Killed):
            carry_out(bed.spark, bed.settings, made, "put_back")
    versions = past_versions.delta_log.latest_version(str(bed.table))
    carry_out(bed.spark, bed.settings, made)
    assert (past_versions.delta_log.latest_version(str(bed.table)) == versions) == (kept == "put back")
    assert bed.home.owners() == []
    run(bed)
    bed.holds(all_rows(bed.events))


@pytest.mark.long
def test_a_driver_that_dies_while_it_begins_is_followed_by_one_that_begins_the_same(
    make_bed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make_bed(DEDUPE)
    five_batches(bed)
    go_back(bed, batch="1", target="restored")
    real = generations.begin

    def die(*_: object) -> None:
        raise RecoveryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(generations, "begin", die)
        assert bed.run() is Outcome.PARKED
    assert generations.begin is real
    from streamkeeper.flows import holds

    holds.release(bed.home, holds.PARK)
    run(bed)
    bed.holds(first_per(bed.events, ["event_id"]))
    assert bed.start(2).seed_batch == 1


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


FLOW = f"customers.{INCREMENTAL}"


@pytest.mark.long
def test_a_clean_up_lets_a_table_forget_in_the_writers_turn(shop: CustomersBed) -> None:
    made = planned(shop.settings, of="clean_up", pipeline="customers", tombstone_days=1)
    moment = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat(timespec="seconds")
    later = replace(
        made,
        recovery_id="later",
        details={**made.details, "tombstones": [{"table": "customers", "before": moment}]},
    )
    engine.propose(shop.settings, later)
    engine.approve(shop.settings, "customers", "later", "a test")
    for found, forgotten in ((made, 0), (later, 3)):
        carry_out(shop.spark, shop.settings, found, *found.steps)
        told = engine.evidence_of(shop.settings, "customers", found.recovery_id, "forget_deletes")
        assert told == {"forgotten": {"customers": forgotten}, "left": {}}
    shop.is_exact()


@pytest.mark.long
def test_changes_that_are_read_again_into_a_table_by_key_change_nothing(shop: CustomersBed) -> None:
    made = go_back(shop, flow=FLOW, batch="0")
    assert made.flows[0].prices[0].repeated.rows == 5
    shop.change(upsert(6, 8), upsert(2, 1))
    assert shop.run() is Outcome.STOPPED
    shop.is_exact()


def test_a_table_by_key_goes_back_with_what_it_remembered(shop: CustomersBed) -> None:
    before = shop.remembered().count()
    made = go_back(shop, flow=FLOW, batch="1", target="restored")
    assert [flow.next_generation for flow in made.flows] == [2, None]
    assert shop.remembered().count() == before - 2
    shop.is_exact([*shop.events[:4], *shop.snapshot])
    shop.change(upsert(5, 5), upsert(7, 9))
    assert shop.run() is Outcome.STOPPED
    shop.is_exact()


@pytest.mark.long
def test_a_flow_that_wrote_since_goes_along_or_the_plan_is_refused_with_its_name(shop: CustomersBed) -> None:
    write_manifest(shop.settings)
    chosen = kind("rewind")
    asked = {"flow": FLOW, "batch": "0", "target": "restored"}
    request = chosen.parse(asked, read_manifest(shop.settings), "a test")
    (refusal,) = engine.plan(shop.settings, chosen, request, "r0").refusals
    assert f"customers.{SNAPSHOT} wrote 1 batches into customers" in refusal.message
    made = go_back(shop, **asked, along=[f"customers.{SNAPSHOT}"])
    assert [flow.next_generation for flow in made.flows] == [2, 2]
    shop.is_exact(shop.events[:2])
    assert shop.run() is Outcome.STOPPED
    assert shop.run(SNAPSHOT) is Outcome.DONE
    shop.is_exact()
    assert counted(shop.rows(), ("customer_id",)) == counted(shop.expected(), ("customer_id",))
