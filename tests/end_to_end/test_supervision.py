"""A flow outlives its task's token and all of Airflow, and is stopped and let go by two small DAGs."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.drivers import supervision
from streamkeeper.flows import holds, leases
from streamkeeper.flows.leases import Life
from tests.end_to_end.world import ENDING, STARTING, TOKEN_SECONDS, World
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "supervision"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"


@pytest.fixture(autouse=True)
def running(world: World) -> None:
    """Every test here starts from a flow that runs."""
    world.await_flow("running")


def running_task(world: World) -> dict[str, Any]:
    """Wait for the task that supervises the flow now: its run's id, its try, and when that began."""

    def look() -> dict[str, Any] | None:
        run = str(world.api.runs(DAG, limit=1)[0]["dag_run_id"])
        task = world.api.tasks(DAG, run).get("run", {})
        return (
            {"run": run, "try": task["try_number"], "since": task["start_date"]}
            if task.get("state") == "running"
            else None
        )

    return wait_until(look, STARTING, "the flow's task runs")


def beats_of(world: World) -> int:
    """Give the count of the present driver's heartbeat."""
    lease = leases.current(world.home)
    assert lease is not None
    assert leases.life(world.home, lease) is Life.ALIVE
    beat = leases.read_heartbeat(world.home, lease.epoch)
    assert beat is not None
    return beat.count


def trigger(world: World, dag: str, **form: Any) -> str:
    run = world.api.trigger(dag, form)
    assert world.api.wait_for_run(dag, run, ENDING) == "success"
    return run


def test_a_flow_runs_on_past_the_lifetime_of_its_task_s_token(world: World) -> None:
    task = running_task(world)
    began = datetime.fromisoformat(task["since"])
    wait_until(
        lambda: (datetime.now(timezone.utc) - began).total_seconds() > 1.5 * TOKEN_SECONDS or None,
        ENDING,
        "the first token is over",
    )
    seen = supervision.read(world.home)
    assert running_task(world) == task, "the same try continues"
    wait_until(lambda: supervision.read(world.home) != seen or None, ENDING, "the task continues watching")
    assert "running" in world.look().state


def test_hold_flows_stops_it_the_next_run_waits_at_its_gate_and_release_flows_starts_it_again(
    world: World,
) -> None:
    before = world.look().epoch
    run = trigger(world, "hold_flows", flows=[FLOW], reason="a look at the table")
    # A driver that sees the hold at once may be gone before the task that waits for it looks.
    assert world.api.xcom("hold_flows", run, "stop")[FLOW] in ("stopped normally", "had no driver")
    [hold] = holds.all_of(world.home)
    assert (hold.owner, hold.reason) == ("person-admin", "a look at the table")
    assert world.await_flow("held").epoch == before
    waiting = wait_until(world.run_at_its_gate, ENDING, "a run waits at its gate")
    holds.put(world.home, holds.person("ada"), "me too", "ada")
    run = trigger(world, "release_flows", flows=[FLOW])
    assert world.api.xcom("release_flows", run, "release") == {FLOW: ["person-ada"]}
    trigger(world, "release_flows", pipeline=NAME, owner="ada")
    world.api.wait_for_task(DAG, waiting, "run", ("running",), ENDING)
    assert "person-admin, by admin" in world.api.log(DAG, waiting, "gate")
    assert world.await_flow("running").epoch == (before or 0) + 1


def test_a_driver_outlives_all_of_airflow_and_the_next_try_attaches_and_shows_its_log_again(
    world: World,
) -> None:
    running_task(world)
    before, lease, beats = world.look(), leases.current(world.home), beats_of(world)
    assert lease is not None
    assert lease.log is not None
    log = Path(lease.log)
    world.another_file()  # of which the driver says a line
    said = wait_until(
        lambda: next((line for line in log.read_text().splitlines() if FLOW in line), None),
        STARTING,
        "the driver said it",
    )
    world.service.crash()
    wait_until(
        lambda: beats_of(world) > beats + 3 or None,
        STARTING,
        "the driver continues while there is no Airflow",
    )
    world.service.start()

    def attached() -> str | None:
        task = running_task(world)
        _, found, after = world.api.log(DAG, task["run"], "run", task["try"]).partition("attaching to it")
        return after if found and said in after else None

    wait_until(attached, ENDING, f"the next try attaches and shows the driver's log again: {said}")
    assert leases.current(world.home) == lease, "no second driver was started"
    assert world.await_flow("running").epoch == before.epoch
    seen = supervision.read(world.home)
    wait_until(lambda: supervision.read(world.home) != seen or None, ENDING, "the task watches")
