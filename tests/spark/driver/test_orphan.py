"""Drivers whose supervising task stays away: real processes of spark-submit."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from streamkeeper.drivers import submit, supervision
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from tests.worlds.flow_world import Flowbed, heartbeat

pytestmark = pytest.mark.long

TIMEOUT = 4.0


def test_a_driver_stops_in_good_order_when_nobody_watches_it_any_more(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its timeout while it is watched, by one task and by the task's next try."""
    monkeypatch.setenv(submit.SUPERVISED_VARIABLE, "1")
    bed.settings = replace(bed.settings, supervisor_timeout=TIMEOUT)
    bed.arrive(1)
    beats = iter(range(10**6))
    with bed.driver() as driver:

        def watched(condition: bool) -> bool:
            supervision.beat(bed.home, next(beats) % 50, f"try {time.monotonic() // 3}")
            return condition

        driver.until(lambda: watched((found := heartbeat(bed)) is not None and found.batch == 0))
        enough = time.monotonic() + 2 * TIMEOUT
        driver.until(lambda: watched(time.monotonic() > enough))
        assert driver.wait(60) == Outcome.STOPPED, driver.said()
    unwatched = re.search(r"no task has supervised it for ([0-9.]+) s", driver.said())
    assert unwatched is not None and float(unwatched[1]) >= TIMEOUT, driver.said()
    lease = leases.current(bed.home)
    assert lease is not None
    assert leases.life(bed.home, lease) is leases.Life.LEFT
    assert bed.checkpoint(1).offset_batches() == bed.checkpoint(1).commit_batches()


def test_a_driver_that_was_started_by_hand_needs_no_supervisor(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(submit.SUPERVISED_VARIABLE, raising=False)
    bed.settings = replace(bed.settings, supervisor_timeout=2.0)
    bed.arrive(1)
    with bed.running() as ended:
        deadline = time.monotonic() + 120
        while (found := heartbeat(bed)) is None or found.batch is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        triggers = found.triggers
        while (heartbeat(bed) or found).triggers < triggers + 30:
            assert not ended.done()
            assert time.monotonic() < deadline
            time.sleep(0.05)
