"""The whole story through Airflow's API, as its UI calls it: a flow runs, breaks, is parked, and is brought
back exactly.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from demo import evidence
from demo.tables import count_rows
from streamkeeper.flows import leases
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from tests import events_evidence
from tests.end_to_end.world import ENDING, RESET, STARTING, World, without_deduplication
from tools.waiting import wait_until

NAME = "story"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"
STEPS = (Kind.STEP_BEGAN, Kind.STEP_DONE)
NIGHTLY = ("tidy_tables", "clean_up")


def wait_for_more_rows(world: World) -> int:
    before = count_rows(world.table) or 0
    return wait_until(
        lambda: rows if (rows := count_rows(world.table) or 0) > before else None,
        STARTING,
        f"the table has more than {before} rows",
    )


def test_a_flow_runs_outlives_its_task_breaks_is_parked_and_is_brought_back_exactly(world: World) -> None:
    a_flow_runs_by_itself_and_its_table_grows(world)
    a_driver_outlives_its_task_and_the_next_try_attaches_to_it(world)
    a_killed_driver_is_followed_by_another(world)
    a_bad_change_parks_the_flow_and_the_run_says_what_broke_and_what_fits(world)
    a_reset_with_approval_brings_it_back_exactly(world)
    the_table_is_what_the_oracle_says(world)
    the_log_of_events_tells_it_once_and_in_order(world)


def a_flow_runs_by_itself_and_its_table_grows(world: World) -> None:
    world.await_flow("running", generation=1, batch=1)
    wait_for_more_rows(world)
    [run] = world.api.runs(DAG)
    assert run["state"] == "running"
    assert world.api.tasks(DAG, run["dag_run_id"])["gate"]["state"] == "success"


def a_driver_outlives_its_task_and_the_next_try_attaches_to_it(world: World) -> None:
    """The task's process is killed the hard way: no second driver may be started beside the first."""
    before = world.await_flow("running", generation=1, batch=1)
    [run] = world.api.runs(DAG)
    lease = leases.current(world.home)
    assert lease is not None
    note = Path(f"{lease.log}.pid")
    supervisor = int(
        Path(f"/proc/{json.loads(note.read_text())['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1]
    )
    os.kill(supervisor, signal.SIGKILL)
    world.api.wait_for_task(DAG, run["dag_run_id"], "run", ("up_for_retry",), ENDING)
    world.api.wait_for_task(DAG, run["dag_run_id"], "run", ("running",), ENDING)
    wait_until(
        lambda: "attaching to it" in world.api.log(DAG, run["dag_run_id"], "run", 2) or None,
        ENDING,
        "the second try attaches",
    )
    assert world.look().epoch == before.epoch
    wait_for_more_rows(world)


def a_killed_driver_is_followed_by_another(world: World) -> None:
    lease = leases.current(world.home)
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGKILL)
    wait_until(lambda: (leases.current(world.home) or lease).epoch > lease.epoch or None, ENDING, "the next")
    world.await_flow("running", generation=1, batch=1)
    wait_for_more_rows(world)


def a_bad_change_parks_the_flow_and_the_run_says_what_broke_and_what_fits(world: World) -> None:
    world.await_flow("running", generation=1, batch=1)
    world.declare(NAME, without_deduplication(world))
    park = world.await_parked()
    assert park.details["sql_state"] == "42K03"
    failed = world.await_red()
    log = world.api.log(DAG, failed["dag_run_id"], "run")
    for said in (failed["note"], log):
        assert f"The flow {FLOW} stopped: a stateful operation (dropDuplicates" in said
        assert "SQLSTATE 42K03" in said
        assert f"{world.service.url}/dags/reset_checkpoint" in said
    wait_until(world.run_at_its_gate, ENDING, "the next run waits at its gate")
    # The monitor tells, once a minute.
    wait_until(
        lambda: any(event.kind == Kind.ALERT for event in events.read(world.home.storage, NAME)) or None,
        2 * ENDING,
        "the monitor tells of the park",
    )


def a_reset_with_approval_brings_it_back_exactly(world: World) -> None:
    run = world.api.trigger(RESET, world.form(reason="dropDuplicates was removed on purpose"))
    world.api.wait_for_task(RESET, run, "approve", ("awaiting_input",), ENDING)
    question = world.api.question(RESET, run, "approve")
    assert question["subject"] == f"Approve the reset of {FLOW}?"
    assert "generation 1 → 2" in question["body"]
    assert world.home.generations() == [1]
    assert world.api.answer(RESET, run, "approve", "Approve", ENDING) == "success"
    assert world.api.wait_for_run(RESET, run, 2 * ENDING) == "success"
    states = {name: task["state"] for name, task in world.api.tasks(RESET, run).items()}
    assert {name for name, state in states.items() if state == "skipped"} == {"give_up", "run_again"}
    assert world.home.owners() == []
    assert evidence.read_handover(world.home, 2, events_evidence.SOURCE).exact
    world.await_flow("running", generation=2, batch=1)


def the_table_is_what_the_oracle_says(world: World) -> None:
    paths = world.await_all_processed()
    before = evidence.read_handover(world.home, 2, events_evidence.SOURCE).old
    wanted = events_evidence.expected(before, sorted(paths - set(before)))
    assert evidence.differences(wanted, events_evidence.actual(world.table)) == []


def the_log_of_events_tells_it_once_and_in_order(world: World) -> None:
    """Starts, a kill, a park and a reset leave exactly their events, by whom they were."""

    def told() -> list[str] | None:
        # The recoveries of each night may come in between.
        every = events.read(world.home.storage, NAME)
        found = [event for event in every if not (event.recovery or "").startswith(NIGHTLY)]
        assert {event.flows for event in found} == {(FLOW,)}
        kept = [
            f"{event.kind} by {event.by}".removesuffix(" by ") for event in found if event.kind not in STEPS
        ]
        return kept if Kind.RECOVERED in kept else None

    found = wait_until(told, ENDING, "the monitor tells that the flow commits again")
    began = ["started by driver", "committed by driver"]
    before = [
        "started by driver",
        "generation by driver",
        "committed by driver",
        "retried by supervisor",
        *began,
        "stopped by driver",
        "started by driver",
        "change-taken by driver",
        "parked by driver",
        "stopped by driver",
        "alert",
        "recovery-planned by admin",
        "recovery-approved by admin",
        "held by admin",
        "generation by admin",
        "released by admin",
        "released by admin",
    ]
    # Then driver, recovery and monitor go on beside each other.
    after = [*began, "alert", "recovered", "recovery-finished by admin"]
    assert found[: len(before)] == before
    assert sorted(found[len(before) :]) == sorted(after)
