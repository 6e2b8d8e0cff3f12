"""How each flow does: states in a person's words, numbers of batches; broken flows are rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.drivers import supervision
from streamkeeper.errors import StorageError
from streamkeeper.flows import holds
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.health import flows as health
from streamkeeper.health.flows import FlowHealth
from streamkeeper.manifest.manifest import declared
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch import batch_numbers, behind, crash_loops
from streamkeeper.watch.batch_numbers import KEPT, Batch, Numbers, told_by
from streamkeeper.watch.behind import Measured
from tests.worlds.metrics.driven import HERE, drive
from tests.worlds.small_world import EVENTS, World

FLOW = "events.clean_events"
GONE = replace(HERE, started=HERE.started - 1)
PROGRESS: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-01-01T00:00:10.500Z",
    "batchDuration": 2500,
    "numInputRows": 1000,
    "durationMs": {"triggerExecution": 2500, "addBatch": 2000, "walCommit": 100},
    "stateOperators": [
        {
            "operatorName": "dedupe",
            "numRowsTotal": 40,
            "memoryUsedBytes": 4096,
            "numRowsDroppedByWatermark": 3,
        },
        {"operatorName": "save", "numRowsTotal": 2, "memoryUsedBytes": 1024, "numRowsDroppedByWatermark": 0},
    ],
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "sink": {"numOutputRows": -1},
}
"""A progress of Spark 4.2 with two stateful operators, in the part that is read."""
SLOW = Batch(3, 0.0, 30.0, 600)
LEASED, LAST_BEAT = "2026-01-01T00:00:00+00:00", "2026-01-01T00:05:00+00:00"
SINCE = {"slow": "2026-01-01T00:01:00+00:00", "retrying": LAST_BEAT, "down": LAST_BEAT}


def rows(world: World) -> tuple[FlowHealth, ...]:
    return health.look_at_all(world.home.storage, declared(world.settings))


def test_the_numbers_of_a_batch_are_those_of_spark_in_seconds_and_bytes() -> None:
    assert Batch.from_progress(PROGRESS) == Batch(
        number=7,
        at=1767225610.5,
        seconds=2.5,
        rows=1000,
        rows_out=None,
        state_rows=42,
        state_bytes=5120,
        late=3,
        watermark=1767225600.0,
        phases={"addBatch": 2.0, "walCommit": 0.1},
        operators={"0 dedupe": [40, 4096], "1 save": [2, 1024]},
    )
    bare = {**PROGRESS, "stateOperators": [], "eventTime": {}, "sink": {"numOutputRows": 5}}
    found = Batch.from_progress(bare)
    assert (found.rows_out, found.state_rows, found.watermark) == (5, 0, None)


def test_a_heartbeat_carries_numbers_and_an_older_one_has_none() -> None:
    told = Numbers(Batch.from_progress(PROGRESS), Batch.from_progress(PROGRESS).as_totals(), True)
    beat = Heartbeat(1, 1, "running", 1, "then", details=told.as_details())
    assert told_by(beat) == told
    assert told_by(replace(beat, details={"operators": []})) == Numbers() == told_by(None)


def test_recent_batches_are_bounded_and_a_torn_file_is_an_error_that_names_it(world: World) -> None:
    assert batch_numbers.recent(world.home) == ()
    batch_numbers.keep(world.home, [replace(SLOW, number=number) for number in range(KEPT + 5)])
    assert [one.number for one in batch_numbers.recent(world.home)] == list(range(5, KEPT + 5))
    assert (world.home.storage.size(world.home.recent) or 0) < 20_000
    world.home.storage.overwrite(world.home.recent, b'{"batches": [{"number"')
    with pytest.raises(StorageError, match=r"recent\.json"):
        batch_numbers.recent(world.home)


@pytest.mark.parametrize(
    ("process", "numbers", "supervised", "state"),
    [
        (HERE, Numbers(replace(SLOW, seconds=1.0)), True, "running"),
        (HERE, Numbers(replace(SLOW, seconds=1.0), idle=True), True, "idle"),
        (HERE, Numbers(SLOW), True, "slow"),
        (HERE, Numbers(replace(SLOW, rows=0)), True, "running"),
        (GONE, Numbers(SLOW), True, "retrying"),
        (GONE, Numbers(SLOW), False, "down"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_state_is_a_word_that_a_person_uses_and_has_a_beginning(
    world: World, process: Any, numbers: Numbers, supervised: bool, state: str
) -> None:
    drive(world, process, numbers)
    behind.keep(world.home, Measured({"raw": Lag(seconds=60.0)}), 1767225720.0)
    if supervised:
        supervision.beat(world.home, 1, "a task")
    [row] = rows(world)
    assert (row.state, row.batch_numbers, row.since) == (state, numbers.batch, SINCE.get(state, LEASED))
    holds.put(world.home, holds.person("ann"), "the disk is changed", "ann")
    [hold], [row] = holds.all_of(world.home), rows(world)
    assert (row.since, row.detail) == (hold.at, "by ann: the disk is changed")


def test_a_flow_whose_drivers_fail_is_ill_since_the_first_failure(world: World) -> None:
    drive(world, GONE, Numbers(SLOW))
    for at in (1767225660.0, 1767225720.0):
        crash_loops.note(world.home, at)
    [row] = rows(world)
    assert (row.state, row.failures, row.since) == ("down", 2, "2026-01-01T00:01:00+00:00")
    assert row.detail.startswith("2 drivers failed since the last commit; its driver is gone")


def test_a_flow_that_cannot_be_read_is_a_row_that_says_so_beside_the_others(world: World) -> None:
    world.declare(EVENTS.replace("events", "orders"), "orders.py")
    drive(world, HERE, Numbers())
    world.home.storage.overwrite(world.home.hold(holds.PARK), b"{")
    found = {row.flow: row for row in rows(world)}
    assert found[FLOW].state == "unreadable" and "holds/park.json" in found[FLOW].detail
    assert found["orders.clean_orders"].state == "declared"
    assert dict(health.counts(tuple(found.values()))) == {"declared": 1, "unreadable": 1}
