"""A flow of the small world with a driver that told numbers."""

from __future__ import annotations

from dataclasses import asdict

from streamkeeper.flows import leases
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.storage import to_json
from streamkeeper.watch.batch_numbers import Numbers
from tests.worlds.small_world import World

HERE = Process.current()


def drive(world: World, process: Process, numbers: Numbers) -> None:
    """Let a driver have taken the lease and told its numbers."""
    world.begin([], 0, 0)
    world.home.storage.create(
        world.home.lease(1), to_json(asdict(Lease(1, process, 1, "2026-01-01T00:00:00+00:00")))
    )
    at = "2026-01-01T00:05:00+00:00"
    leases.beat(world.home, Heartbeat(1, 1, "running", 1, at, details=numbers.as_details()))
