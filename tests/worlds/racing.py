"""What racing processes do, in a module that is quick to import in each of them."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from streamkeeper.errors import LeaseHeld
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import open_storage


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
