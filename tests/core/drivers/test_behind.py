"""How far a flow is behind: what is kept of measures, and what follows of them."""

from __future__ import annotations

import pytest

from streamkeeper.drivers import behind
from streamkeeper.drivers.behind import Behind, Measured
from streamkeeper.errors import StorageError
from streamkeeper.health import flows as health
from streamkeeper.manifest.manifest import declared
from streamkeeper.sources.base.format import Lag
from tests.worlds.small_world import World

NOTHING = Lag(0, 0, 0, None, 0.0)


def keep(world: World, at: float, seconds: float | None, generation: int = 1) -> Behind:
    lag = NOTHING if seconds == 0 else Lag(None, 3, 300, None, seconds)
    return behind.keep(world.home, Measured({"a": lag}, generation=generation), at)


def test_a_flow_that_was_never_measured_has_no_lag(world: World) -> None:
    world.begin([], 0, 0)
    assert behind.read(world.home) is None
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert (row.lag, row.to_json()["lag"]) == (None, None)


def test_what_is_kept_is_read_again_and_shown(world: World) -> None:
    world.begin([], 0, 0)
    kept = behind.keep(
        world.home,
        Measured({"a": Lag(None, 2, 20, None, 30.0), "b": Lag(5, None, None, None, 60.0)}, {"c": "no"}, 1),
        1000.0,
    )
    assert kept == behind.read(world.home)
    assert (kept.seconds, kept.records, kept.files, kept.bytes, kept.since) == (60.0, None, 2, None, 940.0)
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert row.lag == kept
    told = row.to_json()["lag"]
    assert (told["seconds"], told["files"], told["sources"]["b"]["records"]) == (60.0, 2, 5)
    assert (told["trend"], told["caught_up_in"], told["unknown"]) == (None, None, {"c": "no"})


def test_the_trend_is_the_slope_of_the_last_quarter_of_an_hour(world: World) -> None:
    for minute in range(30):
        growing = keep(world, 60.0 * minute, 10 + 60.0 * minute)
    assert growing.trend == pytest.approx(1.0) and growing.caught_up_in is None
    for minute in range(30, 60):
        shrinking = keep(world, 60.0 * minute, 4000 - 30.0 * minute)
    assert shrinking.trend == pytest.approx(-0.5)
    assert shrinking.caught_up_in == pytest.approx((4000 - 30 * 59) / 0.5)
    assert (world.home.storage.size(world.home.lag) or 0) < 3000


def test_after_a_new_start_and_where_seconds_are_unknown_there_is_no_trend(world: World) -> None:
    for at in (0.0, 60.0):
        keep(world, at, 10 + at)
    assert keep(world, 120.0, 1e6, generation=2).trend is None
    assert keep(world, 180.0, None, generation=2).trend is None


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
    found = Behind(0.0, {"files": Lag(None, 2, 20, None, 1.0), "topic": Lag()})
    assert (found.files, found.records, found.bytes, found.seconds) == (None, None, None, 1.0)
    delta = Behind(0.0, {"files": Lag(4, 2, 20, None, 1.0), "table": Lag(6, 1, 10, 3, 5.0)})
    assert (delta.files, delta.versions, delta.records, delta.bytes) == (3, 3, 10, 30)


def test_a_damaged_file_is_an_error_that_names_it_and_is_written_over(world: World) -> None:
    world.begin([], 0, 0)
    world.home.storage.overwrite(world.home.lag, b'{"behind": 3}')
    with pytest.raises(StorageError, match=r"lag\.json"):
        behind.read(world.home)
    [row] = health.look_at_all(world.home.storage, declared(world.settings))
    assert row.state == "unreadable"
    keep(world, 1000.0, 5.0)
    assert behind.read(world.home) is not None
