"""Drivers that die, hang and come back late: real processes of spark-submit, killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import query_id
from streamkeeper.storage import to_json
from tests.oracle import all_rows, first_per
from tests.worlds.drivers import batch_of, kill_after_the_sinks_commit
from tests.worlds.flow_world import (
    NAME,
    Flowbed,
    event,
    heartbeat,
    pipeline,
    refused_loudly,
    running_driver,
    wait_until,
)

Make = Callable[..., Flowbed]
SLOW = """.where(F.expr('''CASE WHEN n >= 1000
    THEN length(coalesce(reflect('java.lang.Thread', 'sleep', bigint(4000)), 'slept')) > 0
    ELSE true END'''))"""
"""Events from number 1000 on take four seconds each: time enough to catch a batch in its middle."""
SLOW_DEDUPE = SLOW + '.dropDuplicates(["event_id"])'


def test_kill_9_in_mid_batch_and_between_the_sinks_commit_and_the_checkpoints(make_bed: Make) -> None:
    """A driver is killed in the middle of a batch; its follower right after the sink's commit; then the flow
    is reset, not restarted.
    """
    bed = make_bed(pipeline(view=SLOW_DEDUPE, files=1))
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
def test_an_orphan_of_the_sealed_generation_that_writes_late_adds_nothing(make_bed: Make) -> None:
    """The orphan is stopped in mid-batch, and its lease rewritten as another host's, since on this one it is
    proven alive.

    Its JVM is let go on first, alone: so it does end its batch, against the seal, before its Python finds
    that the lease is lost. The sink skips the batch in silence; or, where it had asked for the query's last
    one before the pause, refuses it loudly.
    """
    bed = make_bed(pipeline(view=SLOW, files=1))
    bed.arrive(1)
    with bed.driver() as orphan:
        orphan.until(lambda: batch_of(bed) == 0)
        bed.arrive(1000)
        orphan.until(lambda: planned(bed, 1))
        orphan.signal(signal.SIGSTOP)
        assert bed.checkpoint(1).last_commit() == 0
        assert bed.run() is Outcome.LEASE_HELD, "its process is there"
        say_it_is_on_another_host(bed)
        bed.reset()
        bed.arrive(2)
        assert bed.run() is Outcome.STOPPED
        bed.holds(all_rows(bed.events))
        version = delta_log.latest_version(str(bed.table))
        orphan.let_jvm_go_on()
        wait_until(lambda: bed.checkpoint(1).last_commit() == 1 or refused_loudly(orphan))
        orphan.signal(signal.SIGCONT)
        assert orphan.wait() == Outcome.LEASE_LOST, orphan.said()
    assert delta_log.latest_version(str(bed.table)) == version
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))


@pytest.mark.long
def test_a_rebuild_that_is_killed_is_begun_again_by_the_next_driver_in_a_folder_of_its_own(
    make_bed: Make,
) -> None:
    bed = make_bed(pipeline(view=SLOW))
    bed.arrive(1, 2)
    bed.arrive(1000)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view=SLOW_DEDUPE))
    bed.reset()
    with bed.driver() as killed:
        killed.until(lambda: (found := heartbeat(bed)) is not None and found.phase == "seeding")
        killed.until(lambda: bed.home.storage.read(f"{folder_of(bed)}/offsets/0") is not None)
        killed.kill()
    left = folder_of(bed)
    assert generations.read_start(bed.home, 2) is None
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).sealed
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    assert bed.start(2).checkpoint != left
    bed.holds([*bed.events[:3], event(3)])


@pytest.mark.long
def test_of_two_drivers_started_at_once_exactly_one_runs(bed: Flowbed) -> None:
    bed.arrive(1)
    command = [sys.executable, str(submit.JOB), "--flow", NAME, "--available-now"]
    environment = {**os.environ, **submit.environment(bed.settings)}
    both = [
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    said = [driver.communicate(timeout=300)[0].decode() for driver in both]
    assert sorted(driver.returncode for driver in both) == [Outcome.STOPPED, Outcome.LEASE_HELD], "\n".join(
        said
    )
    assert bed.home.epochs() == [1]
    bed.holds(bed.events)


def test_the_driver_ends_by_a_hold_with_exit_code_0_and_the_next_is_held(bed: Flowbed) -> None:
    from streamkeeper.flows import holds

    bed.arrive(1)
    with bed.driver() as driver:
        driver.until(lambda: batch_of(bed) == 0)
        holds.put(bed.home, holds.person("ann"), "the disk is changed", "ann")
        assert driver.wait() == Outcome.STOPPED, driver.said()
    with bed.driver() as held:
        assert held.wait() == Outcome.HELD, held.said()
    assert "person-ann, by ann" in held.said()


@pytest.mark.long
def test_sigterm_to_the_driver_lets_the_batch_end_and_leaves_the_lease(bed: Flowbed) -> None:
    bed.arrive(1)
    with bed.driver() as driver:
        driver.until(lambda: batch_of(bed) == 0)
        lease = leases.current(bed.home)
        assert lease is not None
        os.kill(lease.process.pid, signal.SIGTERM)
        assert driver.wait() == Outcome.STOPPED, driver.said()
        assert leases.life(bed.home, lease) is leases.Life.LEFT
    assert "received SIGTERM" in driver.said()
    assert bed.checkpoint(1).offset_batches() == bed.checkpoint(1).commit_batches()


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


def folder_of(bed: Flowbed) -> str:
    """The checkpoint folder of the present driver's epoch for the newest generation."""
    return bed.home.checkpoint(bed.home.generations()[-1], bed.home.epochs()[-1])


def say_it_is_on_another_host(bed: Flowbed) -> None:
    lease = leases.current(bed.home)
    assert lease is not None
    elsewhere = replace(lease, process=replace(lease.process, host="elsewhere", boot_id="another boot"))
    bed.home.storage.overwrite(bed.home.lease(lease.epoch), to_json(asdict(elsewhere)))


def child_of(pid: int) -> int:
    """The process that a process started: of a Python driver, its JVM."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
