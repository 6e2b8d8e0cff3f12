"""Numbers against truth: a flow is fed at a known rate, held for a known time, killed and reset. What the
page, the command line, the metrics and the history say of it is what the files on the disk say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from httpx import get, post

from demo.airflow.service import USER
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, holds, leases
from streamkeeper.history import rows
from streamkeeper.history.rows import Row
from streamkeeper.settings import PROJECT
from streamkeeper.watch import batch_numbers, behind
from streamkeeper.watch.behind import Behind
from tests.end_to_end.world import ENDING, RESET, STARTING, World
from tools.waiting import NotYet, wait_until

pytestmark = pytest.mark.long

NAME = "numbers"
FLOW = f"{NAME}.clean_events"
ONLOOKER = holds.person("onlooker")
FILES = 30
"""Files of the first part: two and a half minutes, with a file every five seconds."""
MINUTE = 60.0
A_LOOK = 3 * MINUTE
"""Seconds within which the monitor has looked, also where a run of it is late."""


def test_each_minute_of_the_history_has_the_rows_that_came_in_it(world: World) -> None:
    world.await_flow("running", generation=1, batch=4)  # it has read what came before it
    began, before = time.time(), len(lines(world))
    wait_until(lambda: len(lines(world)) >= before + FILES or None, STARTING, f"{FILES} files came")
    world.await_all_processed()
    everywhere(world, generation=1, drivers=1)
    largest = max(batch.rows for batch in batch_numbers.recent(world.home))
    arrived = lines(world)
    fed_all_the_time = [row for row in history(world) if row.at - row.seconds > began]
    assert fed_all_the_time
    for row in fed_all_the_time:
        fed = sum(count for at, count in arrived if row.at - row.seconds < at <= row.at)
        assert abs(row.rows - fed) <= 2 * largest, "what came in that minute, but for a batch at each end"


def test_the_lag_of_a_held_flow_is_the_age_of_the_oldest_file_that_waits(world: World) -> None:
    drivers = settled(world) + 1
    holds.put(world.home, ONLOOKER, "input shall wait", "onlooker")
    world.await_flow("held")
    producer = world.generator.producer
    first = producer.write(producer.last_number() + 1).stat().st_mtime
    producer.write(producer.last_number() + 1)
    one = await_lag(world, lambda lag: lag.files == 2)
    two = await_lag(world, lambda lag: lag.at > one.at)
    for lag in (one, two):
        assert lag.seconds is not None
        assert abs(lag.at - lag.seconds - first) < 2, "it is the age of the oldest file that waits"
    assert (one.since or 0) - first < 2
    assert two.trend is not None
    assert two.trend > 0
    shown = told(world)
    assert shown["command line"]["lag"]["files"] == shown["page"]["lag"]["files"] == 2
    for lag in (shown["command line"]["lag"], shown["page"]["lag"]):
        assert abs(lag["at"] - lag["seconds"] - first) < 2
    kept = wait_until(
        lambda: next((row for row in reversed(history(world)) if row.at > two.at), None),
        A_LOOK,
        "the history has it",
    )
    assert kept.lag_seconds is not None
    assert abs(kept.at - kept.lag_seconds - first) < MINUTE
    holds.release(world.home, ONLOOKER)
    world.await_flow("running", generation=1)
    world.await_all_processed()
    done = await_lag(world, lambda lag: lag.seconds == 0)
    assert (done.files, done.since) == (0, None)
    everywhere(world, generation=1, drivers=drivers)


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


def await_lag(world: World, fits: Any) -> Behind:
    """Wait until the monitor has measured what fits."""

    def look() -> Behind | None:
        lag = behind.read(world.home)
        if lag is None or not fits(lag):
            raise NotYet(str(lag))
        return lag

    return wait_until(look, A_LOOK, "the monitor measured it")


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
