"""The trigger that watches a driver, run by Airflow's own runner of triggers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import pytest
import structlog
from airflow.jobs.triggerer_job_runner import _USER_ACTION_CANCEL_MSG, TriggerRunner
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from streamkeeper_airflow.flow import deferral, supervise
from streamkeeper_airflow.flow.deferral import DriverTrigger
from streamkeeper_airflow.flow.supervise import FlowOperator

from streamkeeper.clusters import cluster_drivers
from streamkeeper.clusters.pages import Unbegun
from streamkeeper.drivers import supervision
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import ClusterDriver, Heartbeat, Lease, Process
from streamkeeper.storage import to_json
from streamkeeper.supervise import attached, heart
from streamkeeper.support.times import now
from streamkeeper.watch import crash_loops
from tests.airflow.conftest import a_try, elsewhere, lease
from tests.airflow.deferral import carry_out
from tools.waiting import wait_until

BY = "flow__first__first_flow now run, try 1"


class Lines:
    """What a trigger logs, with the trigger's id, by which Airflow finds the task whose log it is."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int | None]] = []

    def info(self, text: str, *arguments: str) -> None:
        self.lines.append((text % arguments, structlog.contextvars.get_contextvars().get("trigger_id")))

    warning = info


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(DriverTrigger, "log", lines)
    return lines


@pytest.fixture
def watched(home: FlowHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverTrigger:
    """The trigger of a flow whose driver works: it is this process, and has written a line."""
    monkeypatch.setattr(attached, "LOOK", 0.05)
    monkeypatch.setattr(attached, "STORE_LOOK_VISIBLE", 0.05)
    monkeypatch.setattr(heart, "LONGEST_INTERVAL", 0.05)
    log = tmp_path / "drivers" / "first" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("a batch\n")
    lease(home, Process.current(), log=str(log))
    leases.beat(home, Heartbeat(1, 1, "running", 1, now()))
    return DriverTrigger({home.full_name: 1}, BY, tries_changes=False, reported="")


async def until(came: asyncio.Task[None], condition: Callable[[], bool]) -> None:
    """Wait until a condition of the trigger that runs holds."""
    async with asyncio.timeout(60):
        while not condition() and not came.done():
            await asyncio.sleep(0.02)


def run(runner: TriggerRunner, trigger: DriverTrigger) -> asyncio.Task[None]:
    """Let Airflow's runner run a trigger, under the id 7."""
    runner.triggers[7] = {"task": None, "is_watcher": False, "name": "watched", "events": 0}  # type: ignore[typeddict-item]
    return asyncio.create_task(runner.run_trigger(7, trigger))


def test_a_driver_s_lines_reach_the_log_of_the_task_and_its_end_fires_once(
    watched: DriverTrigger, home: FlowHome, shown: Lines
) -> None:
    runner = TriggerRunner()

    async def story() -> None:
        task = run(runner, watched)
        await until(task, lambda: bool(shown.lines))
        held = leases.current(home)
        assert held is not None
        leases.leave(home, held, "failed")
        await task

    asyncio.run(story())
    assert shown.lines == [("a batch", 7)]
    assert [entry.event.payload for entry in runner.events] == [{"reason": "end"}]


def test_a_trigger_that_a_person_ended_watches_no_longer_and_leaves_the_driver_alone(
    watched: DriverTrigger, home: FlowHome, shown: Lines
) -> None:

    async def story() -> None:
        task = run(TriggerRunner(), watched)
        await until(task, lambda: supervision.read(home) is not None)
        task.cancel(_USER_ACTION_CANCEL_MSG)
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            while deferral._LOOP._thread is not None:
                await asyncio.sleep(0.02)

    asyncio.run(story())
    assert any("keeps running, and the next try attaches to it" in line for line, _ in shown.lines)
    held = leases.current(home)
    assert held is not None
    assert (home.owners(), leases.told_leaving(home, held)) == ([], {}), "nobody asked the driver to end"


def test_a_task_that_is_resumed_a_second_time_judges_no_driver_twice(
    watched: DriverTrigger, home: FlowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that starts anew resets a task that had gone on, and hands it the same event again."""
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", "deferred")
    held = leases.current(home)
    assert held is not None
    leases.leave(home, held, "failed")
    lease(home, Process.current(), epoch=2)
    leases.beat(home, Heartbeat(2, 1, "running", 1, now()))
    task = FlowOperator(task_id="run", flow=home.full_name)
    with pytest.raises(TaskDeferred) as deferred:
        task.woken(a_try(), {"reason": "end"}, [home.full_name], {home.full_name: 1}, "")
    assert deferred.value.trigger.serialize()[1]["epochs"] == {home.full_name: 2}
    assert crash_loops.read(home) is None


def test_the_word_of_a_cluster_wakes_the_task_that_submits_the_next_driver(
    home: FlowHome, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[str, str] = {}
    submitted = "print('Submitted driver-20261127010203-%04d' % {})"
    for name, text in {"SUPERVISION": "deferred", "LEASE_TERM": "550", "SUPERVISOR_TIMEOUT": "600"}.items():
        monkeypatch.setenv(f"STREAMKEEPER_{name}", text)
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(project / "logs"))
    monkeypatch.setattr(attached, "LOOK", 0.05)
    monkeypatch.setattr(attached, "STORE_LOOK", 0.05)
    monkeypatch.setattr(supervise, "set_run_note", lambda *_: None)
    submissions: list[int] = []
    variables = {**os.environ, cluster_drivers.PAGE_VARIABLE: "http://127.0.0.1:9"}

    def prepare(*_: object) -> tuple[list[str], dict[str, str]]:
        submissions.append(len(submissions) + 1)
        return [sys.executable, "-c", submitted.format(submissions[-1])], variables

    monkeypatch.setattr(supervise.submitting, "prepare", prepare)
    monkeypatch.setattr(cluster_drivers, "ended", lambda driver: states.get(driver.id))
    monkeypatch.setattr(cluster_drivers, "unbegun", lambda driver: Unbegun(states.get(driver.id), None))

    def begin(number: int) -> None:
        driver = ClusterDriver("http://127.0.0.1:9", f"driver-20261127010203-{number:04}")
        made = Lease(number, elsewhere(), 1, now(), cluster=driver)
        home.storage.create(home.lease(number), to_json(asdict(made)))
        leases.beat(home, Heartbeat(number, 1, "running", 1, now(), triggers=1))

    deferred_to, ends = list[str](), list[Exception]()

    def carry_on() -> None:
        try:
            carry_out(lambda: FlowOperator(task_id="run", flow=home.full_name), a_try(), deferred_to)
        except AirflowSkipException as end:
            ends.append(end)

    Thread(target=carry_on, daemon=True).start()
    for number in (1, 2):
        wait_until(lambda now=number: len(submissions) == now or None, 60, "a driver is submitted")
        begin(number)
        wait_until(lambda now=number: len(deferred_to) == now or None, 60, "the triggerer watches it")
        if number == 2:
            holds.put(home, holds.person("ada"), "enough", "ada")
        states[f"driver-20261127010203-{number:04}"] = "FAILED"
    wait_until(lambda: ends or None, 60, "the hold ends the task")
    assert "is held" in str(ends[0])
    assert deferred_to == ["DriverTrigger", "DriverTrigger"]
    assert submissions == [1, 2], "each end was followed by one submission, until the hold"
