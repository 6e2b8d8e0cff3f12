"""Finding the processes that a round strikes, and striking them. A process is known by pid and start time, so
that no other is ever hit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from demo.airflow.api import AirflowApi
from demo.processes import session_members, started
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life
from tests.chaos.choosing import Blow, Round, Victim
from tests.chaos.components import SCHEDULER, SplitAirflow
from tools.waiting import wait_until

TERM_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL where the scheduler is asked to end: as whatever restarts services does. It
would wait for its tasks.
"""

DRIVERS = (Victim.PYTHON, Victim.JVM, Victim.DRIVER)
"""Victims that end when they are asked to. A worker goes on to its next task, and a task waits for its
driver.
"""


class NothingToStrike(Exception):
    """The process that a round is to strike is not there."""


@dataclass(frozen=True)
class Target:
    """A living process."""

    pid: int
    since: int

    @property
    def gone(self) -> bool:
        """Whether it ended."""
        return started(self.pid) != self.since

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still the same process."""
        if not self.gone:
            os.kill(self.pid, number)


@dataclass(frozen=True)
class Strike:
    """What was done: the processes that were struck, when (monotonic seconds), and when it was over (with a
    pause: when that ended).
    """

    targets: tuple[Target, ...]
    at: float
    over: float


def targets(victim: Victim, home: FlowHome, service: SplitAirflow, dag_id: str) -> tuple[Target, ...]:
    """Find what a victim is made of now.

    :raises NothingToStrike: it is not there.
    """
    scheduler = service.components[SCHEDULER].process.pid
    match victim:
        case Victim.PYTHON:
            pids = [_driver(home)]
        case Victim.JVM:
            pids = [os.getsid(_driver(home))]
        case Victim.DRIVER:
            pids = session_members(os.getsid(_driver(home)))
        case Victim.TASK:
            pids = titled(f"airflow worker -- {_task_id(service.api, dag_id)}")
        case Victim.WORKER:
            pids = titled(f"airflow worker -- LocalExecutor: {_task_id(service.api, dag_id)}")
        case Victim.SCHEDULER:
            pids = [scheduler]
        case Victim.SCHEDULER_GROUP:
            pids = session_members(scheduler)
        case Victim.BOTH:
            pids = [scheduler, *session_members(os.getsid(_driver(home)))]
    found = tuple(Target(pid, since) for pid in pids if (since := started(pid)) is not None)
    if not found:
        raise NothingToStrike(f"There is no {victim.value}.")
    return found


def strike(chosen: Round, hit: tuple[Target, ...]) -> Strike:
    """Strike, and wait until those that a signal ends are gone, or until a pause is over."""
    at = time.monotonic()
    match chosen.blow:
        case Blow.PAUSE:
            _send(hit, signal.SIGSTOP)
            try:
                time.sleep(chosen.pause)
            finally:
                _send(hit, signal.SIGCONT)
            return Strike(hit, at, time.monotonic())
        case Blow.KILL:
            _send(hit, signal.SIGKILL)
        case Blow.TERM:
            _send(hit, signal.SIGTERM)
    if chosen.blow is Blow.KILL or chosen.victim in DRIVERS:
        _await_gone(hit, 180.0)
    elif chosen.victim is Victim.SCHEDULER:
        _await_gone(hit, TERM_GRACE, forced=True)
    return Strike(hit, at, time.monotonic())


def _send(hit: Iterable[Target], number: signal.Signals) -> None:
    for target in hit:
        target.signal(number)


def _await_gone(hit: tuple[Target, ...], seconds: float, forced: bool = False) -> None:
    def gone() -> bool | None:
        return True if all(target.gone for target in hit) else None

    try:
        wait_until(gone, seconds, "what was struck is gone")
    except TimeoutError:
        if not forced:
            raise
        _send(hit, signal.SIGKILL)


def _driver(home: FlowHome) -> int:
    lease = leases.current(home)
    if lease is None or leases.life(home, lease) is not Life.ALIVE:
        raise NothingToStrike(f"{home.full_name} has no living driver")
    return lease.process.pid


def _task_id(api: AirflowApi, dag_id: str) -> str:
    for run in api.runs(dag_id, limit=3):
        task = api.tasks(dag_id, run["dag_run_id"]).get("run", {})
        if task.get("state") == "running":
            return str(task["id"])
    raise NothingToStrike(f"no task run of {dag_id} is running")


def titled(title: str) -> list[int]:
    """Give the processes whose command line, which Airflow sets, is this title."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            if line.replace(b"\0", b" ").decode(errors="replace").strip() == title:
                found.append(int(entry.name))
    return found
