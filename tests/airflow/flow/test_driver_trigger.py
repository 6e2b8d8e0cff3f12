"""The trigger that watches a driver, run by Airflow's own runner of triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from airflow.jobs.triggerer_job_runner import _USER_ACTION_CANCEL_MSG, TriggerRunner
from streamkeeper_airflow.flow import driver_trigger
from streamkeeper_airflow.flow.driver_trigger import DriverTrigger

from streamkeeper.drivers import supervision
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat, Process
from streamkeeper.supervise import attached, heart
from streamkeeper.support.times import now
from tests.airflow.conftest import lease

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
    monkeypatch.setattr(attached, "STORE_LOOK", 0.05)
    monkeypatch.setattr(heart, "LONGEST_INTERVAL", 0.05)
    log = tmp_path / "driver.log"
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
            while driver_trigger._LOOP._thread is not None:
                await asyncio.sleep(0.02)

    asyncio.run(story())
    assert any("keeps running, and the next try attaches to it" in line for line, _ in shown.lines)
    held = leases.current(home)
    assert held is not None
    assert (home.owners(), leases.told_leaving(home, held)) == ([], {}), "nobody asked the driver to end"
