"""A state folder of many flows that ran for a while, for what must not grow with their number."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Start
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.health import flows as health
from streamkeeper.health import past
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.settings import Settings
from streamkeeper.sources.base.format import Lag
from streamkeeper.storage import LocalStorage, to_json
from streamkeeper.watch import batch_numbers, behind
from streamkeeper.watch.batch_numbers import Batch, Numbers
from streamkeeper.watch.behind import Measured
from tests.worlds.small_world import World, write_checkpoint, write_manifest

A_FILE = 5
BEGAN = "2026-11-21T10:00:00+00:00"
PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/raw", schema="id INT, name STRING")
"""
FLOW = """
dp.create_streaming_table("%(pipeline)s_%(number)d")

@dp.append_flow(
    name="flow_%(number)d", target="%(pipeline)s_%(number)d", sources=["raw"], trigger="10 seconds"
)
def flow_%(number)d(raw):
    return raw
"""
PHASES = {"addBatch": 2.0, "getBatch": 0.1, "latestOffset": 0.2, "queryPlanning": 0.1, "walCommit": 0.1}
BATCH = Batch(7, 1_790_000_000.0, 2.5, 1_000, 990, 40_000, 4_096_000, 3, 1_789_999_000.0, PHASES)


def make(root: Path, count: int) -> tuple[World, Manifest]:
    """Declare many flows, each with a generation, a checkpoint, and lease and numbers of a driver, which is
    this process.
    """
    world = World(root)
    manifest = declare(world, count)
    for flow in manifest.flows():
        _drive(home_of(world.settings, flow), flow)
    return world, manifest


def declare(world: World, count: int) -> Manifest:
    """Declare many flows, five a file."""
    for first in range(0, count, A_FILE):
        pipeline = f"p{first:04d}"
        flows = (FLOW % {"pipeline": pipeline, "number": number} for number in range(first, first + A_FILE))
        world.declare(PIPELINE + "".join(flows), f"{pipeline}.py")
    manifest = write_manifest(world.settings)
    assert len(list(manifest.flows())) == count, manifest.errors
    return manifest


def home_of(settings: Settings, flow: Flow) -> FlowHome:
    return FlowHome(LocalStorage(settings.state), flow.pipeline.name, flow.name)


def begin(home: FlowHome, flow: Flow) -> None:
    """Let the flow's first generation have committed some batches, and no driver run."""
    made = generations.decide(home, generations.first(home, flow.fingerprint))
    folder = home.checkpoint(1, 1)
    generations.begin(home, Start(1, folder, None, {}, {}, (), None, 1, BEGAN))
    write_checkpoint(home.storage, folder, made, [[] for _ in range(BATCH.number + 1)], BATCH.number + 1)


def _drive(home: FlowHome, flow: Flow) -> None:
    begin(home, flow)
    home.storage.create(home.lease(1), to_json(asdict(Lease(1, Process.current(), 1, BEGAN))))
    home.storage.overwrite(home.progress, to_json({"position": {}, "since": None}))
    go_on(home, 1)
    behind.keep(home, Measured({"raw": Lag(records=70, files=3, bytes=9_000, seconds=9.5)}), time.time())
    past.keep(home, health.look(home, flow), time.time())


def go_on(home: FlowHome, batches: int) -> None:
    """Let the driver of a flow tell its numbers once more, after so many batches."""
    told = Numbers(BATCH, Totals(batches, 1_000 * batches, 2.5 * batches, 3 * batches))
    at = "2026-11-21T10:00:00+00:00"
    leases.beat(
        home, Heartbeat(1, batches, "running", 1, at, BATCH.number, batches, details=told.as_details())
    )
    batch_numbers.keep(home, [BATCH] * batch_numbers.KEPT)
