"""Resets by Airflow's API: by the clock, and with an impact that got worse."""

from __future__ import annotations

import pytest

from streamkeeper.flows import holds, ledger
from streamkeeper.recover.steps import shared as shared_steps
from tests.end_to_end.world import ENDING, RESET, World

pytestmark = pytest.mark.long

NAME = "requests"
FLOW, SCHEDULE = f"{NAME}.clean_events", f"schedule__{NAME}__yearly"


@pytest.fixture(autouse=True)
def standing(world: World) -> None:
    """Every test here starts from a flow that runs and is held by nobody."""
    world.await_flow("running")


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
