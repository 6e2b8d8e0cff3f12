"""The DAG ``rehearse`` under a real Airflow: a recovery is tried on a copy while the flow runs on; go starts
it, and it carries the evidence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.flows import ledger
from streamkeeper.recover import engine
from tests.end_to_end.world import ENDING, World
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "rehearsed"
FLOW = f"{NAME}.clean_events"


def test_go_starts_what_was_rehearsed_and_the_flow_ran_until_then(world: World) -> None:
    world.await_flow("running", batch=1)
    epoch = world.look().epoch
    run = world.api.trigger("rehearse", {"flow": FLOW, "recovery": "full_refresh", "reason": "to see"})
    world.api.wait_for_task("rehearse", run, "approve", ("awaiting_input",), 3 * ENDING)
    question = world.api.question("rehearse", run, "approve")
    assert question["subject"] == f"Approve the rehearsal of {FLOW}?"
    assert f"| {NAME} |" in question["body"] and "### Rehearsal" in question["body"]
    assert (world.look().epoch, world.home.generations()) == (epoch, [1]), "nothing was changed"
    assert not any(Path(world.settings.warehouse, "__rehearsals").iterdir())

    assert world.api.answer("rehearse", run, "approve", question["options"][0], ENDING) == "success"
    assert world.api.wait_for_run("rehearse", run, ENDING) == "success"
    rehearsal = world.api.xcom("rehearse", run, "plan")["recovery"]
    assert world.api.wait_for_run("full_refresh", rehearsal, 3 * ENDING) == "success"
    recovery = world.api.xcom("full_refresh", rehearsal, "plan")["recovery"]
    plan = engine.read_plan(world.settings, NAME, recovery)
    assert any(note.startswith(f"Rehearsed by {rehearsal}") for note in plan.notes)
    assert ledger.open(world.home.storage, NAME, rehearsal).end() is not None
    world.await_flow("running", generation=2)
    wait_until(world.last_batch, ENDING, "the flow continues")


def test_no_go_starts_nothing_and_a_recovery_rehearses_itself_before_it_asks(world: World) -> None:
    world.await_flow("running")
    before = world.home.generations()
    run = world.api.trigger("rehearse", {"flow": FLOW, "recovery": "reset_checkpoint"})
    world.api.wait_for_task("rehearse", run, "approve", ("awaiting_input",), 3 * ENDING)
    world.api.answer("rehearse", run, "approve", "Reject", ENDING)
    world.api.wait_for_run("rehearse", run, ENDING)
    assert world.api.tasks("rehearse", run)["go"]["state"] == "skipped"
    own = world.api.trigger("reset_checkpoint", {"flow": FLOW, "rehearse": True, "dry_run": True})
    assert world.api.wait_for_run("reset_checkpoint", own, 3 * ENDING) == "success"
    tasks = world.api.tasks("reset_checkpoint", own)
    assert (tasks["rehearse"]["state"], tasks["approve"]["state"]) == ("success", "skipped")
    assert f"| {NAME} |" in world.api.xcom("reset_checkpoint", own, "rehearse")["markdown"]
    assert world.home.generations() == before
