"""What the monitor sees of a flow becomes rows of its history: every driver's batches, once."""

from __future__ import annotations

import time
from dataclasses import replace

from streamkeeper.flows import leases
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.health import flows as health
from streamkeeper.health import past
from streamkeeper.health.flows import FlowHealth
from streamkeeper.history import rows
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import declared
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch.batch_numbers import Batch, Numbers
from streamkeeper.watch.behind import Behind
from tests.worlds.small_world import World

BATCH = Batch(3, 0.0, 2.0, 600, 500, 42, 4096, 1, 12.5, {"addBatch": 1.5}, {"id": [599, 1]})


def run_driver(world: World, batches: int) -> FlowHealth:
    """Let the next driver have taken the lease and done some batches; return the flow's row."""
    lease = leases.acquire(world.home, 1, 1.0)
    tell(world, lease.epoch, batches)
    leases.leave(world.home, lease, "stopped")
    return seen(world)


def tell(world: World, epoch: int, batches: int) -> None:
    totals = Totals()
    for _ in range(batches):
        totals = totals.plus(BATCH.as_totals())
    details = Numbers(BATCH, totals).as_details()
    leases.beat(world.home, Heartbeat(epoch, 1, "running", 1, "then", details=details))


def seen(world: World) -> FlowHealth:
    (flow,) = declared(world.settings).flows()
    return health.look(world.home, flow)


def test_a_look_becomes_a_row_with_the_numbers_of_every_driver_since_the_last(world: World) -> None:
    world.begin([], 0, 0)
    now = time.time()
    past.keep(world.home, seen(world), now)
    assert rows.minutes(world.home) == (), "a flow that never ran has no history"
    past.keep(world.home, run_driver(world, 2), now + 60)
    tell(world, 1, 5)  # it went on, and then two more drivers came
    run_driver(world, 1)
    behind = Behind(now, {"raw": Lag(records=70, files=3, bytes=900, seconds=9.5)})
    past.keep(world.home, replace(run_driver(world, 4), lag=behind), now + 120)
    first, second = rows.minutes(world.home)
    assert (first.batches, first.drivers, first.lag_seconds) == (2, 1, None)
    assert (second.batches, second.drivers, second.epoch) == (3 + 1 + 4, 2, 3)
    assert (second.rows, second.rows_out, second.batch_seconds, second.late) == (4800, 4000, 16.0, 8)
    assert (second.phases, second.expectations) == ({"addBatch": 12.0}, {"id": [8 * 599, 8]})
    assert (second.state_rows, second.state_bytes, second.watermark) == (42, 4096, 12.5)
    assert (second.lag_seconds, second.lag_records, second.state) == (9.5, 70, "stopped")
    assert (second.lag_files, second.lag_bytes, second.lag_versions) == (3, 900, None)
