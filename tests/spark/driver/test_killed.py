"""Drivers that die and end: real processes of spark-submit, killed for real."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import query_id
from tests.oracle import first_per
from tests.worlds.drivers import SLOW, batch_of, kill_after_the_sinks_commit
from tests.worlds.flow_world import (
    DEDUPE,
    NAME,
    Flowbed,
    pipeline,
    running_driver,
)

Make = Callable[..., Flowbed]


def test_kill_9_in_mid_batch_and_between_the_sinks_commit_and_the_checkpoints(make_bed: Make) -> None:
    """A driver is killed in the middle of a batch; its follower right after the sink's commit; then the flow
    is reset, not restarted.
    """
    bed = make_bed(pipeline(view=SLOW + DEDUPE, files=1))
    bed.arrive(1, 2)
    with bed.driver() as first:
        first.until(lambda: batch_of(bed) == 0)
        bed.arrive(2, 1000)
        first.until(lambda: planned(bed, 1))
        first.kill()
    assert bed.checkpoint(1).last_commit() == 0
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).version == 0, (
        "the batch was not in the sink yet"
    )
    bed.arrive(3)
    with bed.driver() as second:
        second.until(lambda: batch_of(bed) == 2)
        bed.holds(first_per(bed.events, ["event_id"]))
        kill_after_the_sinks_commit(bed, second)
    last = bed.checkpoint(1).last_commit()
    sink = delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).version
    assert last is not None
    assert sink == last + 1, "in the sink, and not in the checkpoint"
    bed.declare(pipeline(view='.dropDuplicates(["event_id", "user_id"])'))
    bed.reset()
    bed.arrive(1, 5000, 5001)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
    evidence = bed.start(2).evidence
    assert (evidence["last_commit"], evidence["last_transaction"], evidence["ruled_by"]) == (
        last,
        sink,
        "sink",
    )


@pytest.mark.long
def test_the_driver_fails_and_says_so_when_its_jvm_dies(bed: Flowbed) -> None:
    bed.arrive(1)
    command = [sys.executable, str(submit.JOB), "--flow", NAME]
    with running_driver(bed.settings, command, bed.root / "driver.log") as driver:
        driver.until(lambda: batch_of(bed) == 0)
        os.kill(child_of(driver.process.pid), signal.SIGKILL)
        assert driver.wait(60) == Outcome.FAILED
    assert "does not answer any more" in driver.said()
    lease = leases.current(bed.home)
    assert lease is not None
    assert leases.life(bed.home, lease) is leases.Life.DEAD, (
        "it cannot know whether Spark still writes, so it did not leave the lease"
    )


def planned(bed: Flowbed, batch: int) -> bool:
    return batch in bed.checkpoint(1).offset_batches()


def child_of(pid: int) -> int:
    """The process that a process started: of a Python driver, its JVM."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
