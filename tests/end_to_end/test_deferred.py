"""A flow whose task is deferred while its driver works (``STREAMKEEPER_SUPERVISION=deferred``), in an Airflow
of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.drivers import supervision
from streamkeeper.flows import holds, leases
from streamkeeper.flows.leases import Lease, Life
from streamkeeper.settings import DEFERRED
from tests.end_to_end.conftest import start_world
from tests.end_to_end.world import ENDING, STARTING, World
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "deferred"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An Airflow whose triggerer watches the drivers."""
    with ExitStack() as lives:
        yield start_world(tmp_path_factory.mktemp("deferred"), lives, SUPERVISION=DEFERRED)


def driver(world: World, epoch: int) -> Lease:
    """Wait until the driver of an epoch works and the triggerer watches it: no slot is taken."""

    def look() -> Lease | None:
        lease = leases.current(world.home)
        slots = world.api.read("/pools/streaming_flows")
        taken = [slots[f"{state}_slots"] for state in ("running", "queued", "scheduled", "deferred")]
        return lease if lease and lease.epoch == epoch and taken == [0, 0, 0, 1] else None

    lease = wait_until(look, STARTING, f"the driver of epoch {epoch} is watched, and no slot is taken")
    assert world.await_flow("running").epoch == epoch
    assert leases.life(world.home, lease) is Life.ALIVE
    return lease


def present(world: World) -> tuple[str, dict[str, Any]]:
    """Return the newest run, and its task that runs the flow."""
    run = str(world.api.runs(world.dag, limit=1)[0]["dag_run_id"])
    return run, world.api.tasks(world.dag, run)["run"]


def await_line(world: World, words: str) -> str:
    """Wait until the log of the flow's present try has some words; return the log."""

    def look() -> str | None:
        run, task = present(world)
        log = world.api.log(world.dag, run, "run", task["try_number"])
        return log if words in log else None

    return wait_until(look, ENDING, f"the task's log has {words!r}")


def test_a_killed_driver_is_followed_by_the_next_one_and_a_hold_ends_that(world: World) -> None:
    first = driver(world, 1)
    run, task = present(world)
    assert (task["state"], task["try_number"]) == ("deferred", 1)
    log = Path(str(first.log))
    line = wait_until(
        lambda: next(
            (line for line in log.read_text().splitlines() if ": generation 1, batch" in line), None
        ),
        STARTING,
        "the driver tells of its batches",
    )
    assert await_line(world, line).count(line) == 1

    os.kill(first.process.pid, signal.SIGKILL)
    second = driver(world, 2)
    assert second.took_over == leases.DEAD, "nobody waited for the lease's term"
    again, task = present(world)
    assert (again, task["state"], task["try_number"]) == (run, "deferred", 1), "the same try started it"
    assert "it ended without a reason" in await_line(world, "The last lines of")

    holds.put(world.home, holds.person("ada"), "enough", "ada")
    assert world.await_flow("held").epoch == 2
    wait_until(world.run_at_its_gate, ENDING, "the next run waits at its gate")
    assert world.api.tasks(world.dag, run)["run"]["state"] == "success"


def test_another_triggerer_watches_on_after_all_of_airflow_was_lost(world: World) -> None:
    holds.release(world.home, holds.person("ada"))
    third = driver(world, 3)
    world.service.crash()
    seen = supervision.read(world.home)
    world.service.start()
    wait_until(lambda: supervision.read(world.home) != seen or None, ENDING, "the next triggerer watches")
    assert driver(world, 3) == third, "no other driver was started"
