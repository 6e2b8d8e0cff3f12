"""Finding the processes that a round strikes, and striking them. A process is known by pid and start time, so
that no other is ever hit.
"""

from __future__ import annotations

import contextlib
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
from tests.chaos.arena import Arena
from tests.chaos.choosing import DISTURBING, Blow, Round, Victim
from tests.chaos.components import API, CELERY, PROCESSOR, SCHEDULER, TRIGGERER
from tools.waiting import wait_until

TERM_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL where the scheduler is asked to end: as whatever restarts services does. It
would wait for its tasks.
"""

DRIVERS = (Victim.PYTHON, Victim.JVM, Victim.DRIVER)
"""Victims that end when they are asked to. A worker goes on to its next task, and a task waits for its
driver.
"""


COMPONENTS = {
    Victim.CELERY: CELERY,
    Victim.API: API,
    Victim.PROCESSOR: PROCESSOR,
    Victim.TRIGGERER: TRIGGERER,
}


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


def targets(arena: Arena, victim: Victim, flow: int = 0) -> tuple[Target, ...]:
    """Find what a victim is made of now.

    :param flow: chooses the flow, and one of several servers.
    :raises NothingToStrike: it is not there.
    """
    service, watched = arena.service, arena.flows[flow]
    home, dag_id, scheduler = watched.home, watched.dag, service.components[SCHEDULER].pid
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
        case Victim.CELERY | Victim.API | Victim.PROCESSOR | Victim.TRIGGERER:
            pids = session_members(service.components[COMPONENTS[victim]].pid)
        case Victim.EXECUTOR:
            pids = _one(_executors(arena), flow)
        case _:
            kind = arena.servers[victim]
            pids = session_members(kind[flow % len(kind)].pid)
    found = tuple(Target(pid, since) for pid in pids if (since := started(pid)) is not None)
    if not found:
        raise NothingToStrike(f"There is no {victim.value}.")
    return found


def strike(arena: Arena, chosen: Round, hit: tuple[Target, ...]) -> float:
    """Strike, and wait until those that a signal ends are gone, or until what lasts is over; give when it
    was, in monotonic seconds.
    """
    at = time.monotonic()
    if chosen.blow in DISTURBING:
        with arena.disturb(chosen.victim, chosen.blow):
            time.sleep(chosen.pause)
        return at
    match chosen.blow:
        case Blow.PAUSE:
            _send(hit, signal.SIGSTOP)
            try:
                time.sleep(chosen.pause)
            finally:
                _send(hit, signal.SIGCONT)
        case Blow.KILL:
            _send(hit, signal.SIGKILL)
            _await_gone(hit, 180.0)
        case Blow.TERM:
            _send(hit, signal.SIGTERM)
            if chosen.victim in DRIVERS:
                _await_gone(hit, 180.0)
            elif chosen.victim is Victim.SCHEDULER:
                _await_gone(hit, TERM_GRACE, forced=True)
        case _:
            raise AssertionError(f"{chosen.blow} strikes no process")
    return at


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


def _executors(arena: Arena) -> list[int]:
    """Give the executors below the Spark workers."""
    found = []
    for server in arena.servers[Victim.SPARK_WORKER]:
        for pid in session_members(server.pid):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return sorted(found)


def _one(pids: list[int], number: int) -> list[int]:
    return [pids[number % len(pids)]] if pids else []


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
