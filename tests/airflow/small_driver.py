"""A driver without Spark, as a process of its own: real leases, heartbeats, holds and exit codes, and nothing
to compute.

``small_driver.py PIPELINE.FLOW FINGERPRINT [HABIT]``. It parks if the file ``break`` is in the flow's folder,
and fails if ``fail`` is, or, once, ``fail-once``. Habit ``deaf`` heeds neither holds nor SIGTERM; ``idle``
never looks for data.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from streamkeeper.drivers import supervision
from streamkeeper.drivers.submit import LOG_VARIABLE
from streamkeeper.errors import LeaseHeld
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now

settings = Settings.from_environment()


def may_run(home: FlowHome, fingerprint: str) -> bool:
    """Tell whether nothing holds the flow; a park of another declaration is lifted."""
    park = holds.parked(home)
    if home.owners() == [holds.PARK] and park and park.details["fingerprint"] != fingerprint:
        return holds.release(home, holds.PARK)
    return not home.owners()


def run(name: str, fingerprint: str, habit: str = "polite") -> Outcome:
    pipeline, _, flow = name.partition(".")
    home = FlowHome(open_storage(settings.state), pipeline, flow)
    if not may_run(home, fingerprint):
        return Outcome.HELD
    try:
        lease = leases.acquire(home, 1, settings.lease_term, os.environ.get(LOG_VARIABLE))
    except LeaseHeld:
        return Outcome.LEASE_HELD
    print(f"the driver of epoch {lease.epoch} began", flush=True)
    if habit == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outcome = follow(home, lease.epoch, fingerprint, habit)
    leases.leave(home, lease, outcome.name.lower())
    return outcome


def follow(home: FlowHome, epoch: int, fingerprint: str, habit: str) -> Outcome:
    absence, count = supervision.absence(home, settings.supervisor_timeout), 0
    while True:
        count += 1
        leases.beat(
            home, Heartbeat(epoch, count, "running", 1, now(), triggers=0 if habit == "idle" else count)
        )
        if home.storage.read(f"{home.root}/break") is not None:
            holds.put(home, holds.PARK, "it broke", "driver", {"fingerprint": fingerprint})
            return Outcome.PARKED
        if home.storage.read(f"{home.root}/fail") is not None:
            return Outcome.FAILED
        if home.storage.read(f"{home.root}/fail-once") is not None:
            home.storage.remove(f"{home.root}/fail-once")
            return Outcome.FAILED
        if home.owners() and habit != "deaf":
            return Outcome.STOPPED
        if absence is not None and absence.look() is not None:
            return Outcome.STOPPED
        time.sleep(settings.heartbeat_interval)


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
