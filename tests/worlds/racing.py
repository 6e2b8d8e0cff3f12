"""What racing processes do, in a module that is quick to import in each of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from streamkeeper.errors import LeaseHeld
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease, Process
from streamkeeper.storage import open_storage, to_json
from streamkeeper.support.times import now


def race(barrier: Barrier, won: Queue[tuple[str, bool]], root: str, me: str) -> None:
    """Create one file at the same moment as the others; put whether this process made it."""
    storage = open_storage(root)
    storage.read("warm-up")
    barrier.wait(120)
    won.put((me, storage.create("lease/000001.json", me.encode() * 1000)))


def claim(barrier: Barrier, won: Queue[tuple[str, bool]], root: str, me: str) -> None:
    """Claim a flow's lease at the same moment as the others, and stay alive until all have tried; put whether
    this process has it.
    """
    home = FlowHome(open_storage(root), "events", "clean_events")
    barrier.wait(120)
    try:
        leases.acquire(home, 1, 0.5)
        won.put((me, True))
    except LeaseHeld:
        won.put((me, False))
    barrier.wait(120)


def meet(barrier: Barrier) -> None:
    """Wait for the others."""
    barrier.wait(120)


def take_over(barrier: Barrier, won: Queue[tuple[str, bool]], root: str, me: str, flows: int) -> None:
    """Take over the lease of one flow after another from a driver that is silent, elsewhere: both have seen
    its silence before either writes. Put for each flow whether this process has it.
    """
    storage, clock = open_storage(root), count()
    gone = replace(Process.current(), boot_id="of another host")
    for number in range(flows):
        home = FlowHome(storage, "events", f"clean_events_{number}")
        if me == "a":
            storage.create(home.lease(1), to_json(asdict(Lease(1, gone, 1, now()))))
        barrier.wait(120)
        try:
            leases.acquire(home, 1, 2.0, monotonic=lambda: next(clock), sleep=lambda _: meet(barrier))
            won.put((me, True))
        except LeaseHeld:
            won.put((me, False))
    barrier.wait(120)
