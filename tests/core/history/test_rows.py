"""Numbers by minute: every batch once, however the monitor looks, in bounded space."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import rows
from streamkeeper.history.rows import Row, Sample, Totals
from streamkeeper.storage import LocalStorage
from tests.killing import Killed, Mortal

BEGAN = 1_700_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlowHome:
    # A simulated year writes thousands of files, none of which must outlive a power cut.
    monkeypatch.setattr(os, "fsync", lambda number: None)
    return FlowHome(LocalStorage(str(tmp_path)), "sales", "orders")


def totals(batches: int) -> Totals:
    """Return the sums of a driver after so many batches of ten rows."""
    phases, expectations = {"addBatch": 0.4 * batches}, {"id": [batches, 1]}
    return Totals(batches, 10 * batches, 0.5 * batches, batches, 8 * batches, phases, expectations)


def nothing(epoch: int) -> Totals:
    raise AssertionError(f"epoch {epoch} was not over")


def see(
    home: FlowHome,
    at: float,
    batches: int,
    epoch: int = 1,
    ended: Callable[[int], Totals] = nothing,
    *,
    lag: float | None = None,
) -> None:
    seen = Sample(at, epoch, totals(batches), "running", 3, 5, 500, 12.5, lag, 7)
    rows.record(home, seen, lambda: BEGAN, ended)


def test_a_row_is_what_happened_since_the_look_before(home: FlowHome) -> None:
    see(home, BEGAN + 60, 4)
    see(home, BEGAN + 120, 9, lag=3.0)
    first, second = rows.minutes(home)
    assert (first.at, first.seconds, first.batches, first.rows, first.drivers) == (BEGAN + 60, 60.0, 4, 40, 1)
    assert second == Row(
        at=BEGAN + 120,
        seconds=60.0,
        epoch=1,
        drivers=0,
        generation=3,
        state="running",
        batches=5,
        rows=50,
        rows_out=40,
        batch_seconds=2.5,
        late=5,
        phases={"addBatch": 2.0},
        expectations={"id": [5, 0]},
        state_rows=5,
        state_bytes=500,
        watermark=12.5,
        lag_seconds=3.0,
        lag_records=7,
    )
    assert rows.minutes(home, since=BEGAN + 60) == (second,)


def test_drivers_that_came_and_went_between_two_looks_are_counted(home: FlowHome) -> None:
    see(home, BEGAN + 60, 4)
    see(home, BEGAN + 120, 2, epoch=4, ended=lambda epoch: totals({1: 7, 2: 0, 3: 5}[epoch]))
    *_, row = rows.minutes(home)
    assert (row.batches, row.rows, row.drivers, row.epoch) == (3 + 0 + 5 + 2, 100, 3, 4)


def test_a_look_twice_in_a_minute_late_or_old_counts_nothing_twice(home: FlowHome) -> None:
    see(home, BEGAN + 60, 4)
    see(home, BEGAN + 61, 5)
    see(home, BEGAN + 61, 6)
    see(home, BEGAN + 30, 2)
    see(home, BEGAN + 600, 9)
    found = rows.minutes(home)
    assert [row.batches for row in found] == [5, 4]
    assert [row.seconds for row in found] == [61.0, 539.0]


def test_a_monitor_that_read_before_another_wrote_loses_no_batch(home: FlowHome) -> None:
    see(home, BEGAN + 60, 4)
    name = home.history(f"minutes/{home.storage.names(home.history('minutes'))[0]}")
    stale = home.storage.read(name)
    assert stale is not None
    see(home, BEGAN + 120, 6)
    home.storage.overwrite(name, stale)
    see(home, BEGAN + 180, 9)
    assert sum(row.batches for row in rows.minutes(home)) == 9


@pytest.mark.parametrize("seed", range(8))
def test_every_batch_is_in_one_row_whatever_restarts_gaps_and_kills(
    home: FlowHome, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "KEPT_HOURS", 10_000)
    chance = random.Random(seed)
    at, epoch, done = BEGAN + 1, 1, {1: 0}
    see(home, at, 0)
    for _ in range(200):
        at += chance.choice([5.0, MINUTE, MINUTE, MINUTE, HOUR, 9 * HOUR])
        done[epoch] += chance.randrange(5)
        for _ in range(chance.choice([0, 0, 0, 1, 3])):
            epoch += 1
            done[epoch] = chance.randrange(5)
        with monkeypatch.context() as patch:
            if chance.random() < 0.2:
                Mortal(chance.randrange(3)).watch(patch)
            with suppress(Killed):
                see(home, at, done[epoch], epoch, lambda over: totals(done[over]))
    see(home, at + MINUTE, done[epoch], epoch, lambda over: totals(done[over]))
    kept = rows.minutes(home)
    assert sum(row.batches for row in kept) == sum(done.values())
    assert sum(row.rows for row in kept) == 10 * sum(done.values())
    assert sum(row.drivers for row in kept) == epoch
    assert all(after.at - after.seconds == before.at for before, after in pairwise(kept))


def test_minutes_older_than_seven_days_go_and_the_newest_stays_however_long_a_flow_stood(
    home: FlowHome,
) -> None:
    for hour in range(14 * 24):
        see(home, BEGAN + hour * HOUR, hour)
    assert len(home.storage.names(home.history("minutes"))) == rows.KEPT_HOURS + 1
    assert [row.batches for row in rows.minutes(home)] == [1] * (rows.KEPT_HOURS + 1)
    see(home, BEGAN + 100 * DAY, 400)
    see(home, BEGAN + 200 * DAY, 500)
    assert [row.batches for row in rows.minutes(home)] == [400 - 14 * 24 + 1, 100]


def test_a_busy_hour_of_minutes_is_some_ten_kilobytes(home: FlowHome) -> None:
    begin = BEGAN - BEGAN % HOUR + HOUR
    for minute in range(60):
        see(home, begin + minute * MINUTE, 100_000 + minute, lag=12.345)
    (name,) = home.storage.names(home.history("minutes"))
    assert (home.storage.size(home.history(f"minutes/{name}")) or 10**9) < 12_000


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"epoch":1,"before":{},"columns":["at"],"samples":[["x"]]}']
)
def test_a_torn_file_is_named_with_what_to_do(home: FlowHome, content: bytes) -> None:
    see(home, BEGAN + 60, 4)
    (name,) = home.storage.names(home.history("minutes"))
    path = home.history(f"minutes/{name}")
    home.storage.overwrite(path, content)
    for use in (lambda: rows.minutes(home), lambda: see(home, BEGAN + 120, 5)):
        with pytest.raises(StorageError, match=f"{name}.*(Remove it|Restore it)"):
            use()
    home.storage.remove(path)
    see(home, BEGAN + 120, 5)
    assert [row.batches for row in rows.minutes(home)] == [5]


def test_a_column_of_a_newer_release_is_left_out(home: FlowHome) -> None:
    see(home, BEGAN + 60, 4)
    (name,) = home.storage.names(home.history("minutes"))
    path = home.history(f"minutes/{name}")
    content = home.storage.read(path)
    assert content is not None
    wider = content.replace(b'"columns":[', b'"columns":["mood",').replace(b"[1700", b'["good",1700')
    assert wider != content
    home.storage.overwrite(path, wider)
    assert [row.batches for row in rows.minutes(home)] == [4]
