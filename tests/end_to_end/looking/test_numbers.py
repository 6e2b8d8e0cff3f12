"""Numbers against truth: a flow is fed, killed and reset. What the
page, the command line, the metrics and the history say of it is what the files on the disk say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from httpx import get, post

from demo.airflow.service import USER
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, leases
from streamkeeper.history import rows
from streamkeeper.history.rows import Row
from streamkeeper.settings import PROJECT
from streamkeeper.watch import batch_numbers
from tests.end_to_end.world import ENDING, RESET, World
from tools.waiting import NotYet, wait_until

pytestmark = pytest.mark.long

NAME = "numbers"
FLOW = f"{NAME}.clean_events"


A_LOOK = 180.0
"""Seconds within which the monitor has looked, also where a run of it is late."""


def test_a_killed_driver_loses_no_row_and_no_batch_of_the_numbers(world: World) -> None:
    drivers = settled(world) + 1
    lease = leases.current(world.home)
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGKILL)
    wait_until(
        lambda: (leases.current(world.home) or lease).epoch > lease.epoch or None, ENDING, "the next driver"
    )
    world.await_flow("running", generation=1)
    world.another_file()
    world.await_all_processed()
    everywhere(world, generation=1, drivers=drivers)


def test_after_a_reset_the_numbers_go_on_in_the_next_generation(world: World) -> None:
    drivers = settled(world) + 1
    run = world.api.trigger(RESET, world.form(approval=False))
    assert world.api.wait_for_run(RESET, run, 2 * ENDING) == "success"
    world.await_flow("running", generation=2)
    world.another_file()
    world.await_all_processed()
    everywhere(world, generation=2, drivers=drivers)
    assert {row.generation for row in history(world)} >= {1, 2}


def settled(world: World) -> int:
    """Wait until all input is read and told, so that a driver's end loses no number; give its lease epoch."""
    epoch = world.await_flow("running", generation=1, batch=1).epoch
    assert epoch is not None
    world.await_all_processed()
    everywhere(world, generation=1, drivers=epoch)
    return epoch


def everywhere(world: World, generation: int, drivers: int) -> None:
    """Wait until the monitor has looked once more, and compare all that is told with the files."""
    written, files = sum(count for _, count in lines(world)), len(lines(world))

    def look() -> tuple[Row, ...]:
        found = history(world)
        if sum(row.rows for row in found) != written:
            raise NotYet(f"{sum(row.rows for row in found)} of {written} rows are in the history")
        return found

    found = wait_until(look, A_LOOK, "the history has every row that was written, and each once")
    assert sum(row.drivers for row in found) == drivers
    assert (found[-1].generation, found[-1].epoch) == (generation, drivers)
    committed = [committed_batches(world, number) for number in range(1, generation + 1)]
    assert sum(row.batches for row in found) == sum(count for count, _ in committed), files
    started = sum(row.rows for row in found if row.epoch == drivers)
    for place, row in told(world).items():
        assert (row["generation"], row["epoch"], row["batch"]) == (generation, drivers, committed[-1][1]), (
            place
        )
        assert 0 <= row["rows"] <= started, place
    lease = leases.current(world.home)
    assert lease is not None
    beat = leases.read_heartbeat(world.home, lease.epoch)
    assert {row["rows"] for row in told(world).values()} == {batch_numbers.told_by(beat).totals.rows}


def committed_batches(world: World, generation: int) -> tuple[int, int | None]:
    """Count the batches that a generation committed, without the one that stands for all before it, and give
    the last.
    """
    start = generations.read_start(world.home, generation)
    assert start is not None
    last = Checkpoint(world.home.storage, start.checkpoint).last_commit()
    first = 0 if start.seed_batch is None else start.seed_batch + 1
    return (0 if last is None else last + 1 - first), last


def lines(world: World) -> list[tuple[float, int]]:
    """Give of each file that was written when that was and its lines."""
    folder = Path(world.settings.data) / NAME
    return [
        (file.stat().st_mtime, len(file.read_text().splitlines())) for file in folder.glob("events-*.json")
    ]


def history(world: World) -> tuple[Row, ...]:
    return rows.minutes(world.home)


def told(world: World) -> dict[str, dict[str, Any]]:
    """Give what the page, the command line and the metrics say of the flow, by the same names."""
    environment = {**os.environ, **world.settings.as_environment()}
    command = [sys.executable, "-m", "streamkeeper"]

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    login = {"username": USER, "password": world.service.password}
    token = post(f"{world.service.url}/auth/token", json=login, timeout=60).json()["access_token"]
    page = get(
        f"{world.service.url}/streamkeeper/api/flows",
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    ).json()["flows"]
    labels = f'{{pipeline="{NAME}",flow="clean_events"}} '
    samples = dict(
        line.removeprefix("streamkeeper_flow_").split(labels)
        for line in said("metrics").splitlines()
        if labels in line
    )
    names = {
        "generation": "generation",
        "epoch": "drivers_total",
        "batch": "last_batch",
        "rows": "input_rows_total",
    }
    return {
        "page": _row_of(page),
        "command line": _row_of(json.loads(said("flows", "--json"))),
        "metrics": {name: int(samples[metric]) for name, metric in names.items()},
    }


def _row_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    row = next(row for row in found if row["flow"] == FLOW)
    return {**row, "rows": row["totals"]["rows"]}
