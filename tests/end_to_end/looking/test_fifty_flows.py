"""Fifty flows for the length of a chaos run: their driver is killed again and again while input comes, the
monitor looks, and the page and the metrics are asked all the while. The tables are exact, the history has
what came, and nothing grows: memory, threads, open files and requests to the state folder of the API server
and of a driver, a driver's processes, the state folder.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from demo.processes import session_members
from demo.tables import read_rows
from streamkeeper.drivers import submit
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life
from streamkeeper.history import events, rows
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import LocalStorage, open_storage
from tests.oracle import counted
from tests.worlds.flow_world import COLUMNS, SCHEMA, event, quick_settings, running_driver, wait_until
from tests.worlds.flows import counted_calls
from tests.worlds.flows.process_usage import usage
from tests.worlds.small_world import write_manifest

pytestmark = pytest.mark.long

FLOWS, PARTS, SECONDS, SEED = 50, 3, 40.0, 20261124
"""Flows, and the parts of the run: after so many seconds its driver is looked at, and soon killed by -9."""
NAMES = [f"f{number:02d}" for number in range(FLOWS)]
HEAD = "from streamkeeper import pipelines as dp\ndp.configure_pipeline(shared_driver=True)\n"
FLOW = """
dp.create_source("{name}_raw", format="json", path="{{data}}/{name}", schema="{schema}")
dp.create_streaming_table("{name}_rows")

@dp.append_flow(name="{name}", target="{name}_rows", sources=["{name}_raw"], trigger="20 seconds")
def {name}(raw):
    return raw
"""
WATCHER = """
import gc, json, os, sys, threading, time
from pathlib import Path
from unittest.mock import MagicMock
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi.testclient import TestClient
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper_airflow.operate.monitor import MonitorFlows
from streamkeeper_airflow.page import app as page
from tests.worlds.flows import counted_calls
from tests.worlds.flows.process_usage import usage

calls = Path(sys.argv[1])
counted_calls.count(str(calls))
os.environ[page.TOKEN] = "open sesame"
page.KEPT_SECONDS = 0.0
initdb()
flows = list(read_manifest(Settings.from_environment()).flows())
monitor, over = MonitorFlows(task_id="monitor"), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with TestClient(create_app(apps="core")) as client:
    user = SimpleAuthManagerUser(username="ada", role="VIEWER")
    token = {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}
    everything = [
        ("/streamkeeper/api/flows", token),
        ("/streamkeeper/metrics", {"Authorization": "Bearer open sesame"}),
    ]
    while True:
        # A pause as between the looks of people: what one look takes is compared, not how many fit in.
        last, before = over.wait(5), calls.stat().st_size
        monitor.execute(MagicMock())
        for flow in flows:
            for path, headers in [*everything, (f"/streamkeeper/api/dags/{flow.dag_id}", token)]:
                answer = client.get(path, headers=headers)
                assert answer.status_code == 200, (path, answer.text)
        gc.collect()
        taken = usage([os.getpid()])
        seen = {"memory": taken.resident, "threads": threading.active_count(), "files": taken.descriptors}
        seen["requests"] = calls.stat().st_size - before
        print("SEEN", json.dumps(seen), flush=True)
        if last:
            break
"""


class World:
    """Fifty flows of one driver, and what was written for each."""

    def __init__(self, root: Path) -> None:
        self.settings = quick_settings(root)
        self.root, self.chance, self.number = root, random.Random(SEED), 0
        self.came: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
        self.settings.pipelines.mkdir(parents=True)
        for name in NAMES:
            (root / "data" / name).mkdir(parents=True)
        flows = (FLOW.format(name=name, schema=SCHEMA) for name in NAMES)
        (self.settings.pipelines / "many.py").write_text(HEAD + "".join(flows))
        self.flows: list[Flow] = list(write_manifest(self.settings).flows())
        assert len(self.flows) == FLOWS

    def home(self, name: str) -> FlowHome:
        return FlowHome(open_storage(self.settings.state), "many", name)

    def come(self) -> None:
        """Write a file of some events for one flow."""
        name = self.chance.choice(NAMES)
        made = [event(self.number + item) for item in range(self.chance.randint(1, 40))]
        self.number += len(made)
        aside = self.root / "data" / name / f".{self.number:08d}.json"
        aside.write_text("".join(json.dumps(item) + "\n" for item in made))
        aside.replace(aside.with_name(aside.name[1:]))
        self.came[name] += made


@contextmanager
def watching(settings: Settings, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the process that looks, until its input is closed."""
    environment = {**os.environ, **submit.environment(settings)}
    environment["PYTHONPATH"] = f"{PROJECT / 'plugins'}:{PROJECT}"
    # Without it glibc raises the threshold as it frees, and keeps what a large table left when it moved.
    environment["MALLOC_MMAP_THRESHOLD_"] = "131072"
    with log.open("w") as said:
        watcher = subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(log.with_suffix(".calls"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield watcher
    finally:
        watcher.kill()
        watcher.wait()


def test_fifty_flows_are_exact_and_nothing_grows(tmp_path: Path) -> None:
    world = World(tmp_path)
    log, kept, drivers = tmp_path / "watcher.log", [], list[dict[str, float]]()
    with watching(world.settings, log) as watcher:

        def come_for(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                world.come()
                time.sleep(world.chance.uniform(0.2, 1.2))
                assert watcher.poll() is None, log.read_text()[-4000:]

        for part in range(PARTS):
            calls = tmp_path / f"driver-{part}.calls"
            of_flows = submit.driver(world.settings, world.flows)
            counting = (str(calls), str(of_flows.application), *of_flows.arguments)
            command = replace(of_flows, application=counted_calls.PROGRAM, arguments=counting).command()
            with running_driver(world.settings, command, tmp_path / f"driver-{part}.log") as driver:
                driver.until(partial(all_run, world, part + 1), 600)
                before = calls.stat().st_size
                come_for(SECONDS)
                asked = calls.stat().st_size - before
                drivers.append({**asdict(usage(session_members(driver.process.pid))), "requests": asked})
                come_for(world.chance.uniform(0, 10))
                kept.append(aside_of_checkpoints(world))
                if part == PARTS - 1:
                    wait_until(lambda: all(is_exact(world, name) for name in NAMES), 600)
                    # While the driver lives: of flows whose driver is gone, pages ask more.
                    assert watcher.stdin is not None
                    watcher.stdin.close()
                    assert watcher.wait(300) == 0, log.read_text()[-4000:]
    looks = [json.loads(line[5:]) for line in log.read_text().splitlines() if line.startswith("SEEN ")]
    print(f"seed {SEED}: {world.number} rows, {len(looks)} looks at all pages, files {kept}")
    print("drivers:", *drivers, sep="\n")
    print("first, third, last look:", looks[0], looks[len(looks) // 3], looks[-1])
    assert len(looks) >= 6
    first, later = looks[: len(looks) // 3], looks[len(looks) // 3 :]
    # Each page of a flow reads the events that the monitor has not folded yet, one by one.
    unfolded = FLOWS * events.FOLD
    for what, slack, more in (
        ("memory", 1.03, 0),
        ("threads", 1, 0),
        ("files", 1, 0),
        ("requests", 1, unfolded),
    ):
        most = max(look[what] for look in first)
        assert max(look[what] for look in later) <= slack * most + more, (what, looks)
    # A driver's heap and its pools of threads fill up to their bounds as collector and machine have it: six
    # drivers differed by a quarter, in no order. A thread, a file or a MB a batch would be some 150.
    slacks = {"processes": 1.0, "memory": 1.3, "threads": 1.3, "descriptors": 1.15, "requests": 1.15}
    for what, slack in slacks.items():
        assert 0 < drivers[-1][what] <= slack * max(taken[what] for taken in drivers[:2]), (what, drivers)
    for name in NAMES:
        assert sum(row.drivers for row in rows.minutes(world.home(name))) == PARTS
    # Each driver leaves its lease and its end, and each hour a file of history; no batch and no look does.
    per_part = [after - before for before, after in pairwise(kept[1:])]
    assert max(per_part) <= 8 * FLOWS, kept


def all_run(world: World, epoch: int) -> bool:
    """Return whether each flow has a living driver of that lease epoch, which did a trigger."""
    return all(runs(world, name, epoch) for name in NAMES)


def runs(world: World, name: str, epoch: int) -> bool:
    lease = leases.current(world.home(name))
    if lease is None or lease.epoch < epoch or leases.life(world.home(name), lease) is not Life.ALIVE:
        return False
    beat = leases.read_heartbeat(world.home(name), lease.epoch)
    return beat is not None and beat.phase == "running" and beat.triggers > 0


def is_exact(world: World, name: str) -> bool:
    """Return whether the table has each row that came, once; fail where it has more."""
    found = read_rows(world.settings.table_path(f"{name}_rows"))
    rows_there, wanted = counted(found, COLUMNS), counted(world.came[name], COLUMNS)
    assert all(count <= wanted[row] for row, count in rows_there.items()), f"{name} has rows twice"
    return rows_there == wanted


def aside_of_checkpoints(world: World) -> int:
    """Return how many files the state folder has, but for those that Spark keeps in checkpoints."""
    root = Path(LocalStorage(world.settings.state).path(""))
    return sum(path.is_file() and "checkpoints" not in path.parts for path in root.rglob("*"))
