"""What processes do that write one table in locks, in a module that is quick to import in each of them."""

from __future__ import annotations

import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from streamkeeper.flows.files import LockFiles
from streamkeeper.flows.leases import Process
from streamkeeper.storage import open_storage
from streamkeeper.tables.write_lock import Holder, WriteLock


def turn_of(root: str, flow: str) -> WriteLock:
    """Give a flow's way to the lock; nobody has to be shut out, since all processes are on this host."""

    def nobody(holder: Holder) -> None:
        raise AssertionError(f"{holder} is on this host")

    me = Holder(flow, 1, 1, f"query of {flow}", Process.current(), Process.current(), "then")
    locks = LockFiles(open_storage(root), "p", "t")
    return WriteLock(
        locks, me, 60.0, check=lambda: None, shut_out=nobody, wait=lambda seconds: time.sleep(seconds / 20)
    )


def count_up(barrier: Barrier, root: str, flow: str, times: int) -> None:
    """Add one to a file so many times, each in a lock of its own, in the way that loses counts where two do
    it at once.
    """
    lock, counter = turn_of(root, flow), Path(root) / "counter"
    barrier.wait(120)
    for _ in range(times):
        with lock():
            count = int(counter.read_text())
            os.sched_yield()
            counter.write_text(str(count + 1))


def die_with_lock(root: str, flow: str) -> None:
    """Take the lock and end as if killed."""
    with turn_of(root, flow)():
        os._exit(9)
