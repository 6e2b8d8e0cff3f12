"""Takeovers without proof: the old driver may live, so the new one goes on in a generation of its own, copied
from the old one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import query_id
from streamkeeper.flows.generations import AFTER_LAST, COPIED
from streamkeeper.storage import to_json
from tests.oracle import all_rows, first_per
from tests.worlds.drivers import SLOW, batch_of
from tests.worlds.flow_world import DEDUPE, NAME, Flowbed, pipeline, refused_loudly, wait_until
from tests.worlds.state_stores import CHANGELOG, PROVIDER, ROCKS, STATE_FORMAT, with_conf
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
STORES = {
    "HDFS-backed": {},
    "RocksDB": {PROVIDER: ROCKS, CHANGELOG: "false"},
    "RocksDB with changelog": {PROVIDER: ROCKS, CHANGELOG: "true"},
    "RocksDB with ids": {PROVIDER: ROCKS, STATE_FORMAT: "2"},
}


def first_of_each(events: list[dict[str, Any]]) -> list[Any]:
    return first_per(events, ["event_id"])


@pytest.mark.long
@pytest.mark.parametrize(
    "sink_only", [False, True], ids=["the checkpoint has the last batch", "only the sink has the last batch"]
)
@pytest.mark.parametrize("store", STORES)
def test_a_stateful_flow_goes_on_exactly_in_the_copy(make_bed: Make, store: str, sink_only: bool) -> None:
    bed = make_bed(pipeline(files=1))
    confs(bed, STORES[store])
    for numbers in ((1, 2), (2, 3), (3, 4)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    if sink_only:
        bed.forget_commit()
    make_its_driver_doubtful(bed)
    bed.arrive(1, 4, 5)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed.events))
    assert went_on_in_a_copy(bed, batch=2, ruled_by="sink" if sink_only else "checkpoint")
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed.events))
    assert bed.home.generations() == [1, 2], "a proven end needs no copy"


@pytest.mark.parametrize(
    "sink_only",
    long_after(1, [False, True]),
    ids=["the checkpoint has the last batch", "only the sink has the last batch"],
)
def test_a_stateless_flow_goes_on_exactly_in_the_copy(make_bed: Make, sink_only: bool) -> None:
    bed = make_bed(pipeline(view="", files=1))
    for number in range(13):
        bed.arrive(number)
    assert bed.run() is Outcome.STOPPED
    if sink_only:
        bed.forget_commit()
    make_its_driver_doubtful(bed)
    bed.arrive(20, 21)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))
    assert went_on_in_a_copy(bed, batch=12, ruled_by="sink" if sink_only else "checkpoint")


@pytest.mark.long
@pytest.mark.parametrize("store", ["RocksDB with changelog"])
def test_a_driver_that_was_paused_in_mid_batch_stops_by_itself_and_adds_nothing(
    make_bed: Make, store: str
) -> None:
    """Its JVM is let go on first, alone: so it does end its batch, against the fence, before its Python finds
    that the lease is lost.

    The sink skips the batch in silence; or, where it had asked for the query's last one before the pause,
    refuses it loudly.
    """
    bed = make_bed(with_conf(pipeline(view=SLOW + DEDUPE, files=1), **STORES[store]))
    bed.arrive(1, 2)
    with bed.driver() as paused:
        paused.until(lambda: batch_of(bed) == 0)
        bed.arrive(2, 1000)
        paused.until(lambda: 1 in bed.checkpoint(1).offset_batches())
        paused.signal(signal.SIGSTOP)
        assert bed.checkpoint(1).last_commit() == 0
        make_its_driver_doubtful(bed)
        bed.arrive(1, 3)
        with bed.driver("--available-now") as second:
            assert second.wait() == Outcome.STOPPED, second.said()
        bed.holds(first_of_each(bed.events))
        assert went_on_in_a_copy(bed, batch=0, ruled_by="checkpoint")
        version = delta_log.latest_version(str(bed.table))
        paused.let_jvm_go_on()
        wait_until(lambda: bed.checkpoint(1).last_commit() == 1 or refused_loudly(paused))
        paused.signal(signal.SIGCONT)
        assert paused.wait() == Outcome.LEASE_LOST, paused.said()
    assert delta_log.latest_version(str(bed.table)) == version, "its batch was refused"
    bed.arrive(2, 4)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed.events))
    assert bed.home.generations() == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("store", ["HDFS-backed"])
def test_the_copy_is_right_while_the_old_query_goes_on_writing(make_bed: Make, store: str) -> None:
    """Only the old driver's Python is paused, which is its heart: its JVM goes on with batch after batch into
    the takeover.

    The fence ends its query loudly where it meets a batch right before its commit; every other batch is
    skipped in silence.
    """
    bed = make_bed(with_conf(pipeline(files=100), **STORES[store]))
    bed.arrive(1, 2)
    with bed.driver() as old:
        old.until(lambda: batch_of(bed) == 0)
        lease = leases.current(bed.home)
        assert lease is not None
        os.kill(lease.process.pid, signal.SIGSTOP)
        make_its_driver_doubtful(bed)
        with producing(bed), bed.driver() as second:
            second.until(lambda: generations.read_start(bed.home, 2) is not None, timeout=500)
            last = bed.checkpoint(1).last_commit() or 0
            second.until(lambda: refused_loudly(old) or (bed.checkpoint(1).last_commit() or 0) > last + 2)
            second.until(lambda: (batch_of(bed) or 0) > (bed.start(2).seed_batch or 0))
        over, seed = generations.committed(bed.home, 1, None), bed.start(2).seed_batch
        assert over is not None
        assert seed is not None
        assert 1 < over <= seed, "it had continued before the fence"
        version = delta_log.latest_version(str(bed.table))
        if not refused_loudly(old):
            last = bed.checkpoint(1).last_commit() or 0
            bed.arrive(7, 8)
            old.until(lambda: (bed.checkpoint(1).last_commit() or 0) > last)
        assert delta_log.latest_version(str(bed.table)) == version, "what it still sends is refused"
        os.kill(lease.process.pid, signal.SIGCONT)
        assert old.wait() == Outcome.LEASE_LOST, old.said()
    confs(bed, STORES[store])
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed.events))


@contextmanager
def producing(bed: Flowbed) -> Iterator[None]:
    """Let a file of events arrive every second, each with one event of the file before."""
    over = threading.Event()

    def produce() -> None:
        number = 100
        while not over.wait(1.0):
            bed.arrive(number, number + 1)
            number += 1

    with ThreadPoolExecutor(1) as pool:
        arriving = pool.submit(produce)
        try:
            yield
        finally:
            over.set()
            arriving.result(10)


def confs(bed: Flowbed, values: dict[str, str]) -> None:
    """Set what a session pins; the pipeline's own spark_conf reaches only a session of its own."""
    for name, value in values.items():
        bed.spark.conf.set(name, value)


def make_its_driver_doubtful(bed: Flowbed) -> None:
    """Rewrite the lease as another host's, and take back that it was left: then nothing proves the driver
    dead.
    """
    lease = leases.current(bed.home)
    assert lease is not None
    elsewhere = replace(lease, process=replace(lease.process, host="elsewhere", boot_id="another boot"))
    bed.home.storage.overwrite(bed.home.lease(lease.epoch), to_json(asdict(elsewhere)))
    bed.home.storage.remove(bed.home.left(lease.epoch))


def went_on_in_a_copy(bed: Flowbed, batch: int, ruled_by: str) -> bool:
    decided, start, lease = (
        generations.read(bed.home, 2),
        bed.start(2),
        leases.read(bed.home, bed.home.epochs()[-1]),
    )
    assert decided is not None
    assert lease is not None
    assert (decided.state, decided.start.mode, decided.by, decided.previous) == (
        COPIED,
        AFTER_LAST,
        "driver",
        1,
    )
    assert "was taken over, and its driver may still run" in decided.reason
    assert (lease.took_over, lease.unproven) == (leases.SILENT, 1)
    assert (start.seed_batch, start.evidence["ruled_by"]) == (batch, ruled_by)
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).fenced
    assert bed.checkpoint(2).query_id() == query_id(NAME, 2)
    assert bed.checkpoint(2).problems() == ()
    return True
