"""How far a flow is behind: what is kept of measures, and what follows of them."""

from __future__ import annotations

import threading
import time

import pytest

from streamkeeper.errors import StorageError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.health import flows as health
from streamkeeper.manifest.manifest import Flow, declared, read_manifest
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch import behind
from streamkeeper.watch.behind import Behind, Measured
from streamkeeper.watch.pending_input import DUTY
from tests.worlds.small_world import CHANGES, EVENTS, World, write_manifest

NOTHING = Lag(0, 0, 0, None, 0.0)


def keep(world: World, at: float, seconds: float | None, generation: int = 1) -> Behind:
    lag = NOTHING if seconds == 0 else Lag(None, 3, 300, None, seconds)
    return behind.keep(world.home, Measured({"a": lag}, generation), at)


def test_a_flow_that_was_never_measured_has_no_lag(world: World) -> None:
    world.begin([], 0, 0)
    assert behind.read(world.home) is None
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert (row.lag, row.to_json()["lag"]) == (None, None)


def test_what_is_kept_is_read_again_and_shown(world: World) -> None:
    world.begin([], 0, 0)
    kept = behind.keep(
        world.home,
        Measured({"a": Lag(None, 2, 20, None, 30.0), "b": Lag(5, None, None, None, 60.0)}, 1),
        1000.0,
    )
    assert kept == behind.read(world.home)
    assert (kept.seconds, kept.records, kept.files, kept.bytes, kept.since) == (60.0, None, 2, None, 940.0)
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert row.lag == kept
    told = row.to_json()["lag"]
    assert (told["seconds"], told["files"], told["sources"]["b"]["records"]) == (60.0, 2, 5)
    assert (told["trend"], told["caught_up_in"]) == (None, None)


def test_the_trend_is_the_slope_of_the_last_quarter_of_an_hour(world: World) -> None:
    for minute in range(30):
        growing = keep(world, 60.0 * minute, 10 + 60.0 * minute)
    assert growing.trend == pytest.approx(1.0) and growing.caught_up_in is None
    for minute in range(30, 60):
        shrinking = keep(world, 60.0 * minute, 4000 - 30.0 * minute)
    assert shrinking.trend == pytest.approx(-0.5)
    assert shrinking.caught_up_in == pytest.approx((4000 - 30 * 59) / 0.5)
    assert (world.home.storage.size(world.home.lag) or 0) < 3000


def test_after_a_new_start_and_where_a_source_is_unknown_there_is_no_trend(world: World) -> None:
    for at in (0.0, 60.0):
        keep(world, at, 10 + at)
    assert keep(world, 120.0, 1e6, generation=2).trend is None
    assert keep(world, 180.0, 1e6, generation=2).trend == 0.0
    two = Measured({"a": Lag(seconds=10.0), "b": Lag(reason="no answer")}, 2)
    assert behind.keep(world.home, two, 240.0).trend is None, "it would compare one source with two"


def test_it_is_behind_since_the_oldest_input_that_was_there_at_each_look(world: World) -> None:
    assert keep(world, 1000.0, 0).since is None
    assert keep(world, 1060.0, 20.0).since == 1040.0
    assert keep(world, 1120.0, 80.0).since == 1040.0
    assert keep(world, 1180.0, 70.0).since == 1040.0, (
        "the oldest was read, and what came before the last look not"
    )
    assert keep(world, 1240.0, 10.0).since == 1230.0, "all that waited at the last look was read"
    assert keep(world, 1300.0, None).since == 1230.0
    caught_up = keep(world, 1360.0, 0)
    assert (caught_up.since, caught_up.seconds, caught_up.caught_up_in) == (None, 0.0, 0.0)


def test_a_source_that_was_not_measured_leaves_sums_unknown() -> None:
    found = Behind(0.0, {"files": Lag(None, 2, 20, None, 1.0), "topic": Lag(reason="gone")})
    assert (found.files, found.records, found.bytes, found.seconds) == (None, None, None, 1.0)
    delta = Behind(0.0, {"files": Lag(4, 2, 20, None, 1.0), "table": Lag(6, 1, 10, 3, 5.0)})
    assert (delta.files, delta.versions, delta.records, delta.bytes) == (3, 3, 10, 30)


def test_a_damaged_file_is_an_error_that_names_it_and_is_written_over(world: World) -> None:
    world.begin([], 0, 0)
    for content in (b'{"behind": 3}', b'{"behind": {"at": 1, "sources": []}}', b"{"):
        world.home.storage.overwrite(world.home.lag, content)
        with pytest.raises(StorageError, match=r"lag\.json"):
            behind.read(world.home)
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert row.state == "unreadable"
    keep(world, 1000.0, 5.0)
    assert behind.read(world.home) is not None


def test_every_flow_is_measured_and_one_that_cannot_be_has_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(EVENTS.replace("events", "orders"), "orders.py")
    world.begin([], 0, 0)
    world.add_files(2)
    holds.put(world.home, holds.person("ada"), "a look", "ada")
    storage = world.home.storage
    assert behind.measure_all(storage, flows_of(world), as_declared, 1000.0) == []
    found = behind.read(world.home)
    assert found is not None and found.files == 2 and 1000.0 <= found.at < 1030.0

    def refused(flow: Flow) -> Flow:
        raise RuntimeError(f"{flow.name}: password=geheim")

    assert behind.measure_all(storage, flows_of(world), refused, 2000.0) == []
    lags = [row.lag for row in health.look_at_all(storage, declared(world.settings))]
    assert ["RuntimeError" in one.reason for lag in lags if lag for one in lag.sources.values()] == [
        True,
        True,
    ]
    assert "geheim" not in str(lags)
    assert [lag.since for lag in lags if lag] == [found.since, None], "it may still be behind"


def test_the_flow_that_was_measured_longest_ago_comes_first_and_a_costly_one_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "clicks", "visits"):
        world.declare(EVENTS.replace("events", name), f"{name}.py")
    write_manifest(world.settings)
    storage, seen = world.home.storage, list[str]()
    homes = {name: FlowHome(storage, name, f"clean_{name}") for name in ("orders", "clicks", "visits")}
    keep_at(homes["orders"], 900.0)
    keep_at(homes["clicks"], 800.0)
    keep_at(homes["visits"], 700.0, took=1000.0 / DUTY)

    def opened(flow: Flow) -> Flow:
        seen.append(flow.name)
        return flow

    monkeypatch.setattr(behind, "_AT_ONCE", 1)
    behind.measure_all(storage, flows_of(world), opened, 1000.0)
    assert seen == ["clean_events", "clean_clicks", "clean_orders"]
    behind.measure_all(storage, flows_of(world), opened, 1700.0)
    assert seen[3:] == ["clean_visits", *seen[:3]]


def test_a_look_does_not_wait_for_a_source_that_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin([], 0, 0)
    free = threading.Event()

    def hangs(flow: Flow) -> Flow:
        free.wait(60)
        return flow

    try:
        begun = time.monotonic()
        assert behind.measure_all(world.home.storage, flows_of(world), hangs, 1000.0, within=0.3) == []
        assert time.monotonic() - begun < 30
        found = behind.read(world.home)
    finally:
        free.set()
    assert found is not None and found.seconds is None
    assert found.sources["events_raw"].reason == "it could not be measured within 0.3 s"


def test_a_flow_that_is_done_is_not_behind(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(1)
    storage = world.home.storage
    behind.measure_all(storage, flows_of(world), as_declared, 1000.0)
    leases.leave(world.home, leases.acquire(world.home, 1, 0.1), "test")
    generations.finish(world.home, 1, 0)
    world.add_files(1)
    behind.measure_all(storage, flows_of(world), as_declared, 2000.0)
    kept = behind.read(world.home)
    assert kept is not None and kept.at < 2000.0
    assert [row.lag for row in health.look_at_all(storage, declared(world.settings))] == [None]


def flows_of(world: World) -> list[Flow]:
    return list(read_manifest(world.settings).flows())


def as_declared(flow: Flow) -> Flow:
    return flow


def keep_at(home: FlowHome, at: float, took: float = 0.0) -> None:
    behind.keep(home, Measured({"a": NOTHING}, 1, took), at)
