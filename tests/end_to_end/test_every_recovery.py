"""Every recovery's DAG through Airflow's API, and two that are killed with all of Airflow."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from demo import evidence
from streamkeeper.delta import log as delta_log
from streamkeeper.flows import ledger
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import KINDS, kind
from tests import events_evidence
from tests.chaos.striking import titled
from tests.end_to_end.world import ENDING, World
from tools.waiting import wait_until

NAME = "every"
FLOW, TABLE = f"{NAME}.clean_events", f"{NAME}.{NAME}"
GOOD: dict[str, dict[str, Any]] = {
    "reset_checkpoint": {"flow": FLOW},
    "rewind": {"flow": FLOW, "accept": ["duplicates"]},
    "backup_table": {"table": TABLE, "keep_last": 3},
    "restore_table": {"table": TABLE, "accept": ["duplicates"]},
    "full_refresh": {"table": TABLE},
    "full_refresh_with_backup": {"table": TABLE, "fill_from": "sources"},
    "rebuild_without_downtime": {"table": TABLE},
    "backfill": {"flow": FLOW, "accept": ["duplicates"], "chunk": 5},
    "clean_up": {"pipeline": NAME, "keep_days": 7},
    "tidy_tables": {"pipeline": NAME, "tables": [TABLE]},
}
"""Values that fit, for each recovery; what only the running flow can tell is added by the test."""
SET_APART = {
    "adopt": "tests/end_to_end/test_adoption.py",
    "rehearse": "tests/end_to_end/test_every_recovery.py",
}
"""Kinds that cannot be asked of a flow that runs, or do nothing but try another, and where a request of
theirs is tried.
"""
CARRIED_OUT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full_refresh_with_backup", {}),
    ("restore_table", {"version": None, "backup": "newest"}),
    ("rewind", {"target": "restored"}),
    ("clean_up", {}),
)
"""What is carried out here, with values beside those of ``GOOD``: a restore makes its backup. The others are
below, and in test_story.py and test_adoption.py.
"""


def test_every_kind_of_recovery_is_asked_for() -> None:
    assert sorted([*GOOD, *SET_APART]) == sorted(KINDS)


@pytest.fixture
def standing(world: World) -> World:
    """A flow that runs, on a generation that has committed a batch."""
    world.await_flow("running")
    wait_until(world.last_batch, ENDING, "the flow has committed a batch")
    return world


def asked(world: World, name: str) -> dict[str, Any]:
    """Give values that fit as the flow and its table are now."""
    values = dict(GOOD[name])
    if name == "rewind":
        values["batch"] = world.last_batch()
    if name == "restore_table":
        values["version"] = delta_log.latest_version(world.table)
    return values


@pytest.mark.long
def test_a_dry_run_of_every_recovery_shows_its_plan_and_changes_nothing(standing: World) -> None:
    before = standing.footprint()
    runs = {
        name: standing.api.trigger(name, {**asked(standing, name), "dry_run": True, "reason": "to see"})
        for name in GOOD
    }
    for name, run in runs.items():
        assert standing.api.wait_for_run(name, run, 3 * ENDING) == "success", name
        plan = standing.api.xcom(name, run, "plan")
        assert (plan["kind"], plan["pipeline"], plan["dry_run"]) == (name, NAME, True)
        assert plan["markdown"].startswith(f"### {name} of ")
        assert "asked by `admin`" in plan["markdown"] and "Reason: `to see`." in plan["markdown"]
        steps = {
            task: found["state"]
            for task, found in standing.api.tasks(name, run).items()
            if task in kind(name).step_names
        }
        assert steps == dict.fromkeys(kind(name).step_names, "skipped")
    assert standing.footprint() == before


@pytest.mark.long
@pytest.mark.parametrize(("name", "values"), CARRIED_OUT)
def test_it_is_carried_out_with_nobody_asked_and_the_table_is_exact(
    name: str, values: dict[str, Any], standing: World
) -> None:
    if values.get("backup") == "newest":
        carry_out(standing, "backup_table")
    carry_out(standing, name, **values)
    is_exact(standing)


@pytest.mark.long
def test_what_a_backfill_repeats_is_gone_after_a_full_refresh(standing: World) -> None:
    carry_out(standing, "backfill")
    carry_out(standing, "full_refresh")
    is_exact(standing)


def carry_out(world: World, name: str, **values: Any) -> None:
    """Carry out a recovery with nobody asked: all its steps come to their end, and the flow goes on."""
    given = {**asked(world, name), **values}
    run = world.api.trigger(name, {**given, "approval": False, "reason": "every one"})
    over = world.api.wait_for_run(name, run, 4 * ENDING)
    states = {task: found["state"] for task, found in world.api.tasks(name, run).items()}
    assert over == "success", states
    assert {task: states[task] for task in kind(name).step_names} == dict.fromkeys(
        kind(name).step_names, "success"
    )
    came_to_its_end(world, name, world.api.xcom(name, run, "plan")["recovery"])
    world.await_flow("running")
    wait_until(world.last_batch, ENDING, "the flow continues")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step"), [("full_refresh", "empty_tables"), ("rebuild_without_downtime", "build")]
)
def test_a_recovery_whose_task_and_then_all_of_airflow_is_killed_in_a_step_comes_to_its_end(
    name: str, step: str, standing: World
) -> None:
    """First the process of the task, in a long step; then every process of Airflow, in the next try of that
    step.

    The step's spark-submit goes on both times: two of them are at work on one table, and each leaves the
    other what it has done.
    """
    world = standing
    generation = world.home.generations()[-1] + 1
    run = world.api.trigger(name, {**GOOD[name], "approval": False})
    recovery = wait_until(lambda: begun(world), ENDING, "the recovery has its first step begun")
    starts(world, recovery, step, 1)
    os.kill(worker_of(world, name, run, step), signal.SIGKILL)
    starts(world, recovery, step, 2)
    world.service.crash()
    world.service.start()
    assert world.api.wait_for_run(name, run, 3 * ENDING) == "success"
    world.await_flow("running", generation=generation, batch=0)
    came_to_its_end(world, name, recovery)
    assert world.home.generations()[-1] == generation


@pytest.mark.long
def test_go_starts_what_was_rehearsed_and_the_flow_ran_until_then(standing: World) -> None:
    world = standing
    before = world.home.generations()
    epoch = world.look().epoch
    run = world.api.trigger("rehearse", {"flow": FLOW, "recovery": "full_refresh", "reason": "to see"})
    world.api.wait_for_task("rehearse", run, "approve", ("awaiting_input",), 3 * ENDING)
    question = world.api.question("rehearse", run, "approve")
    assert question["subject"] == f"Approve the rehearsal of {FLOW}?"
    assert f"| {NAME} |" in question["body"] and "### Rehearsal" in question["body"]
    assert (world.look().epoch, world.home.generations()) == (epoch, before), "nothing was changed"
    assert not any(Path(world.settings.warehouse, "__rehearsals").iterdir())

    assert world.api.answer("rehearse", run, "approve", question["options"][0], ENDING) == "success"
    assert world.api.wait_for_run("rehearse", run, ENDING) == "success"
    rehearsal = world.api.xcom("rehearse", run, "plan")["recovery"]
    assert world.api.wait_for_run("full_refresh", rehearsal, 3 * ENDING) == "success"
    recovery = world.api.xcom("full_refresh", rehearsal, "plan")["recovery"]
    plan = engine.read_plan(world.settings, NAME, recovery)
    assert any(note.startswith(f"Rehearsed by {rehearsal}") for note in plan.notes)
    assert ledger.open(world.home.storage, NAME, rehearsal).end() is not None
    world.await_flow("running", generation=before[-1] + 1)
    is_exact(world)


def is_exact(world: World) -> None:
    """Let one more file arrive and be read; the table must have each event of all files once."""
    world.another_file()
    paths = world.await_all_processed()
    assert (
        evidence.differences(events_evidence.expected(paths, ()), events_evidence.actual(world.table)) == []
    )


def came_to_its_end(world: World, name: str, recovery: str) -> None:
    """Check that the ledger tells each step's end once and in order, and that nothing is held or locked."""
    events = [event.event for event in ledger.open(world.home.storage, NAME, recovery).events()]
    on_the_way = (".started", ".progress", ".failed")
    ends = [one for one in events if not one.startswith("driver.") and not one.endswith(on_the_way)]
    done = [f"{step}.done" for step in kind(name).step_names]
    assert ends == ["planned", "approved", *done, "ended"]
    assert (world.home.owners(), world.footprint()["lock"]) == ([], None)


def begun(world: World) -> str | None:
    """Give the recovery that has the table's lock."""
    found = world.footprint()["lock"]
    return str(found) if found is not None else None


def starts(world: World, recovery: str, step: str, times: int) -> None:
    """Wait until a step was started so often."""

    def look() -> bool | None:
        events = [event.event for event in ledger.open(world.home.storage, NAME, recovery).events()]
        return True if events.count(f"{step}.started") >= times or f"{step}.done" in events else None

    wait_until(look, ENDING, f"{step} is started {times} times", interval=0.05)


def worker_of(world: World, dag: str, run: str, step: str) -> int:
    """Give the process that carries out a task, by the title that Airflow gives it."""
    [found] = titled(f"airflow worker -- {world.api.tasks(dag, run)[step]['id']}")
    return found
