"""Resets that must change nothing, by Airflow's API: a rejection, a locked table. And one by the clock."""

from __future__ import annotations

import pytest

from streamkeeper.flows import holds, ledger
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.tables import recovery_lock
from tests.end_to_end.world import ENDING, RESET, World

pytestmark = pytest.mark.long

NAME = "requests"
FLOW, SCHEDULE = f"{NAME}.clean_events", f"schedule__{NAME}__yearly"

SKIPPED_BY_REJECTION = {
    "hold",
    "plan_again",
    "approve_again",
    "decide",
    "verify_tables",
    "release",
    "once_flows",
    "run_again",
    "verify_progress",
}


@pytest.fixture(autouse=True)
def standing(world: World) -> None:
    """Every test here starts from a flow that runs and is held by nobody."""
    world.await_flow("running")


def test_a_rejected_plan_leaves_nothing_but_its_ledger(world: World) -> None:
    before = world.footprint()
    run = world.api.trigger(RESET, world.form(reason="only looking"))
    world.api.wait_for_task(RESET, run, "approve", ("awaiting_input",), ENDING)
    world.api.answer(RESET, run, "approve", "Reject", ENDING)
    assert world.api.wait_for_run(RESET, run, ENDING) == "success"
    skipped = {name for name, task in world.api.tasks(RESET, run).items() if task["state"] == "skipped"}
    assert skipped >= SKIPPED_BY_REJECTION
    recovery = world.api.xcom(RESET, run, "plan")["recovery"]
    assert world.footprint() == {**before, "recoveries": [*before["recoveries"], recovery]}


def test_a_table_that_another_recovery_works_on_is_left_to_it(world: World) -> None:
    recovery_lock.take(world.home.storage, NAME, NAME, "someone-else")
    try:
        before = world.footprint()
        said = world.refusal_of(RESET, world.api.trigger(RESET, world.form(approval=False)))
        assert "The recovery someone-else has locked the table requests" in said
        assert world.footprint() == before
    finally:
        recovery_lock.give_back(world.home.storage, NAME, NAME, "someone-else")


def test_a_scheduled_recovery_runs_with_nobody_asked_and_a_task_that_is_cleared_triggers_no_second_one(
    world: World,
) -> None:
    generation = world.home.generations()[-1] + 1
    run = world.api.trigger(SCHEDULE, {})
    assert world.api.wait_for_run(SCHEDULE, run, ENDING) == "success"
    triggered = f"{SCHEDULE}__{run}"
    assert world.api.wait_for_run(RESET, triggered, 3 * ENDING) == "success"
    world.await_flow("running", generation=generation)
    runs = len(world.api.runs(RESET))
    world.api.clear(SCHEDULE, run, "trigger")
    assert world.api.wait_for_run(SCHEDULE, run, ENDING) == "success"
    assert len(world.api.runs(RESET)) == runs


def test_a_impact_that_got_worse_under_the_hold_is_asked_about_once_more(world: World) -> None:
    """The flow is held by a person, so files that come between the two plans are files that a start at the
    end would lose.
    """
    generation = world.home.generations()[-1] + 1
    holds.put(world.home, holds.person("ada"), "files pile up", "ada")
    world.await_flow("held")
    run = world.api.trigger(RESET, world.form(start="latest", accept=["data-loss"]))
    world.api.wait_for_task(RESET, run, "approve", ("awaiting_input",), ENDING)
    world.another_file()
    assert world.api.answer(RESET, run, "approve", "Approve", ENDING) == "success"
    world.api.wait_for_task(RESET, run, "approve_again", ("awaiting_input",), ENDING)
    question = world.api.question(RESET, run, "approve_again")
    assert question["subject"] == f"The impact got worse. Approve the reset of {FLOW} anyway?"
    assert world.home.generations()[-1] == generation - 1
    assert world.api.answer(RESET, run, "approve_again", "Approve", ENDING) == "success"
    assert world.api.wait_for_run(RESET, run, ENDING) == "success"
    recovery = world.api.xcom(RESET, run, "plan")["recovery"]
    said = ledger.open(world.home.storage, NAME, recovery).find(shared_steps.APPROVED_AGAIN)
    assert said is not None
    assert said.evidence["by"] == "admin"
    assert world.home.owners() == [holds.person("ada")]
    holds.release(world.home, holds.person("ada"))
    world.await_flow("running", generation=generation)
