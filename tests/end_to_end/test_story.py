"""The whole story through Airflow's API, as its UI calls it: a flow runs, breaks, is parked, and is brought
back exactly.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from urllib.parse import quote

from demo import evidence
from demo.airflow_api import wait_until
from demo.tables import TableWatch
from streamkeeper.flows import holds
from tests import events_evidence
from tests.end_to_end.browser import Person
from tests.end_to_end.world import DAG, ENDING, FLOW, RESET, STARTING, World

DEDUPLICATION = re.compile(r"^\s*\.dropDuplicates\(.*\n", re.MULTILINE)


def wait_for_more_rows(world: World) -> int:
    watch = TableWatch(world.table)
    before = watch.rows() or 0
    return wait_until(
        lambda: rows if (rows := watch.rows() or 0) > before else None,
        STARTING,
        f"the table has more than {before} rows",
    )


def run_at_its_gate(world: World) -> str | None:
    """Give the id of the newest run, if its gate waits without a slot."""
    newest = str(world.api.runs(DAG, limit=1)[0]["dag_run_id"])
    return newest if world.api.tasks(DAG, newest)["gate"]["state"] == "deferred" else None


def test_a_flow_runs_by_itself_and_its_table_grows(world: World) -> None:
    world.await_flow("running", generation=1, batch=1)
    wait_for_more_rows(world)
    [run] = world.api.runs(DAG)
    assert run["state"] == "running"
    assert world.api.tasks(DAG, run["dag_run_id"])["gate"]["state"] == "success"


def test_a_driver_outlives_its_task_and_the_next_try_attaches_to_it(world: World) -> None:
    """The task's process is killed the hard way: no second driver may be started beside the first."""
    before = world.await_flow("running", generation=1, batch=1)
    [run] = world.api.runs(DAG)
    [note] = (world.service.home / "logs" / "drivers").rglob("*.pid")
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


def test_a_bad_change_parks_the_flow_and_the_run_says_what_broke_and_what_fits(world: World) -> None:
    world.await_flow("running", generation=1, batch=1)
    world.declare("events", DEDUPLICATION.sub("", world.pipeline_file.read_text()))
    park = world.await_parked()
    assert park.details["sql_state"] == "42K03"
    failed = wait_until(
        lambda: next((run for run in world.api.runs(DAG) if run["state"] == "failed"), None),
        ENDING,
        "the run is red",
    )
    log = world.api.log(DAG, failed["dag_run_id"], "run")
    for said in (failed["note"], log):
        assert f"The flow {FLOW} stopped: a stateful operation (dropDuplicates" in said
        assert "SQLSTATE 42K03" in said
        assert f"{world.service.url}/dags/reset_checkpoint" in said
    wait_until(lambda: run_at_its_gate(world), ENDING, "the next run waits at its gate")


def test_the_parked_run_says_so_on_its_page(world: World, person: Person) -> None:
    failed = next(run for run in world.api.runs(DAG) if run["state"] == "failed")
    person.visit(f"/dags/{DAG}/runs/{quote(failed['dag_run_id'])}")
    person.read(f"The flow {FLOW} stopped")
    person.see("button[aria-label='Edit note']").click()
    assert "SQLSTATE 42K03" in person.read("Its form:")
    person.picture("parked")


def test_the_form_shows_its_fields_and_what_is_missing_and_triggers_what_is_right(
    world: World, person: Person
) -> None:
    person.visit(f"/dags/{RESET}")
    person.see("[data-testid=trigger-dag-button]").click()
    assert "This field is required" in person.read("Flow")
    assert not person.see("[data-testid=trigger-dag-submit]").is_enabled()
    for section, titles in {
        "Position": ["Start", "Timestamp", "Offsets"],
        "State": ["State", "Infer schemas again"],
        "Approval": ["Accepted price", "Ask for approval", "Only plan", "Reason"],
    }.items():
        person.open_section(section)
        for title in titles:
            person.read(title)
    person.switch("dry_run")
    person.open_section("Run Parameters")
    person.choose("flow", FLOW)
    person.open_section("Position")
    person.read("After the last processed")
    person.picture("form")
    person.see("[data-testid=trigger-dag-submit]").click()
    [run] = wait_until(lambda: world.api.runs(RESET) or None, ENDING, "the run that the form triggered")
    assert world.api.wait_for_run(RESET, run["dag_run_id"], ENDING) == "success"
    assert (run["conf"]["flow"], run["conf"]["start_from"], run["conf"]["dry_run"]) == (
        FLOW,
        "after-last",
        True,
    )
    assert world.home.generations() == [1]


def test_a_reset_with_approval_brings_it_back_exactly(world: World) -> None:
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


def test_the_table_is_what_the_oracle_says(world: World) -> None:
    paths = world.await_all_processed()
    before = evidence.read_handover(world.home, 2, events_evidence.SOURCE).old
    wanted = events_evidence.expected(before, sorted(paths - set(before)))
    assert evidence.differences(wanted, events_evidence.actual(world.table)) == []


def test_a_person_s_hold_stops_the_driver_and_the_next_run_waits_at_its_gate(world: World) -> None:
    world.await_flow("running")
    holds.put(world.home, holds.person("tester"), "a look at the table", "tester")
    world.await_flow("held")
    waiting = wait_until(lambda: run_at_its_gate(world), ENDING, "a run waits at its gate")
    holds.release(world.home, holds.person("tester"))
    world.api.wait_for_task(DAG, waiting, "run", ("running",), ENDING)
    assert "person-tester, by tester" in world.api.log(DAG, waiting, "gate")
