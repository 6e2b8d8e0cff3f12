"""Stopping a held flow's driver: by its hold, then by SIGTERM, then by SIGKILL.

A hold makes a driver end its batch and leave. A driver still there at a deadline is signalled, but only if
its lease proves that the very process is on this host: same boot, same pid namespace, same pid with the same
start time. The signal goes through a pidfd opened before that proof. So it never reaches a process that got
the pid later. And the process must run one of our jobs: the code of a pipeline can write leases, which might
name any process of this user.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from streamkeeper.clusters import cluster_drivers
from streamkeeper.drivers.submit import JOB, RECOVERY_JOB
from streamkeeper.errors import LeaseHeld, StreamkeeperError
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import ClusterDriver, Lease, Life, process_started

KILL_AFTER = 60.0
"""Seconds between SIGTERM and SIGKILL by default."""
DYING = 30.0
"""Seconds for the system to end a killed process."""
_JOBS = frozenset(job.name for job in (JOB, RECOVERY_JOB))
AT_ONCE = 16
"""Flows waited for at the same time."""


class By(Enum):
    """How a driver ended."""

    ABSENCE = "had no driver"
    HOLD = "stopped normally"
    TERM = "ended after SIGTERM"
    KILL = "was killed"


@dataclass(frozen=True)
class Stop:
    """Result of stopping a flow; ``epoch`` is that of its last driver (None if there never was one)."""

    flow: str
    by: By
    epoch: int | None


def stop(
    home: FlowHome,
    deadline: float | None,
    kill_after: float = KILL_AFTER,
    term: float = 60.0,
    *,
    say: Callable[[str], None] = lambda words: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Stop:
    """Wait until a held flow has no driver; after ``deadline`` seconds end it by force.

    :param deadline: seconds for a stop in good order; None waits without limit, and sends no signal.
    :param kill_after: seconds between SIGTERM and SIGKILL.
    :param term: seconds without a heartbeat after which a driver on another host counts as gone.
    :param say: called with each signal.
    :raises StreamkeeperError: nothing holds the flow, so an ended driver would be started again.
    :raises LeaseHeld: the driver is past the deadline, and on another host, or another user's; the message
        names the host.
    """
    _check_held(home)
    before = leases.current(home)
    if before is None or leases.life(home, before) in (Life.LEFT, Life.DEAD):
        return Stop(home.full_name, By.ABSENCE, before.epoch if before else None)
    patience = float("inf") if deadline is None else deadline
    for timeout, by, number in ((patience, By.HOLD, signal.SIGTERM), (kill_after, By.TERM, signal.SIGKILL)):
        try:
            gone = leases.wait_until_gone(home, timeout, term, monotonic=monotonic, sleep=sleep)
        except LeaseHeld:
            _check_held(home)
            _signal(home, number, timeout, say)
            continue
        return Stop(home.full_name, by, gone.epoch if gone else None)
    gone = leases.wait_until_gone(home, DYING, term, monotonic=monotonic, sleep=sleep)
    return Stop(home.full_name, By.KILL, gone.epoch if gone else None)


def stop_all(
    homes: Iterable[FlowHome],
    deadline: float | None,
    term: float = 60.0,
    say: Callable[[str], None] = lambda words: None,
) -> list[Stop]:
    """Stop several held flows at once, as :func:`stop` does; return the results in the order of ``homes``.

    :raises StreamkeeperError: some of them could not be stopped; each is named, and the others were stopped.
    """

    def one(home: FlowHome) -> Stop | StreamkeeperError:
        try:
            return stop(home, deadline, term=term, say=say)
        except StreamkeeperError as error:
            return error

    flow_homes = list(homes)
    with ThreadPoolExecutor(AT_ONCE) as waiting:
        ends = list(waiting.map(one, flow_homes))
    failed = [end for end in ends if isinstance(end, StreamkeeperError)]
    if failed:
        raise StreamkeeperError(
            "\n".join(["Not every flow was stopped:", *(f"- {error}" for error in failed)])
        )
    return [end for end in ends if isinstance(end, Stop)]


def _check_held(home: FlowHome) -> None:
    if not holds.all_of(home):
        raise StreamkeeperError(
            f"{home.full_name} is not stopped: it is not held, so another driver would be started at once."
            f" Hold it first: streamkeeper hold {home.full_name}."
        )


def _signal(home: FlowHome, number: signal.Signals, waited: float, say: Callable[[str], None]) -> None:
    """Signal the driver with the lease: itself by SIGTERM, its process group by SIGKILL; none if gone."""
    lease = leases.current(home)
    if lease is None:
        return
    state = leases.life(home, lease)
    if lease.cluster is not None and state in (Life.UNKNOWN, Life.ALIVE):
        # Never by a signal: on this host, its process group is that of the cluster's worker.
        _end_in_cluster(home, lease, lease.cluster, waited, say)
        return
    if state is Life.UNKNOWN:
        raise LeaseHeld(
            _beyond(home, lease, waited, "and this process cannot see it (another host, boot or container)")
        )
    if state is not Life.ALIVE:
        return
    holder = lease.process
    try:
        handle = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        runs_job = _runs_job(holder.pid)
        if process_started(holder.pid) != holder.started:
            return
        if not runs_job:
            raise LeaseHeld(_beyond(home, lease, waited, "and that process runs no job of Streamkeeper"))
        say(
            f"{home.full_name}: its driver ({leases.describe(lease)}) is still there after {waited:g} s;"
            f" sending it {number.name}."
        )
        if number is signal.SIGKILL:
            _kill_group(holder.pid)
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LeaseHeld(_beyond(home, lease, waited, f"and this user may not signal it ({error})")) from error
    finally:
        os.close(handle)


def _end_in_cluster(
    home: FlowHome, lease: Lease, driver: ClusterDriver, waited: float, say: Callable[[str], None]
) -> None:
    """Have a driver's cluster end it, and wait for the cluster's word."""
    say(
        f"{home.full_name}: its driver ({leases.describe(lease)}) is still there after {waited:g} s; asking"
        f" {driver.page} to end {driver.id}."
    )
    try:
        cluster_drivers.end(driver)
    except OSError as error:
        reason = f"and {driver.page} cannot be asked to end {driver.id} ({error})"
        raise LeaseHeld(_beyond(home, lease, waited, reason)) from error
    until = time.monotonic() + DYING
    while not cluster_drivers.note_end(home, lease) and time.monotonic() < until:
        time.sleep(0.5)


def _runs_job(pid: int) -> bool:
    """Return whether a process has one of our jobs in its command line (proc_pid_cmdline(5))."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(Path(os.fsdecode(word)).name in _JOBS for word in words)


def _kill_group(pid: int) -> None:
    """Kill the process group of a driver, and so the JVM from which ``spark-submit`` started it."""
    group = os.getpgid(pid)
    # Never the group of this process itself.
    if group != os.getpgrp():
        os.killpg(group, signal.SIGKILL)


def _beyond(home: FlowHome, lease: Lease, waited: float, reason: str) -> str:
    return (
        f"The driver of {home.full_name} ({leases.describe(lease)}) is still there {waited:g} s after it was"
        f" asked to stop, {reason}. The hold stays. Wait for it, or on {lease.process.host}, as the user that"
        f" runs it: streamkeeper hold {home.full_name} --deadline 0."
    )
