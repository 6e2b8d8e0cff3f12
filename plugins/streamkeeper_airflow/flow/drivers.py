"""A flow's driver as its supervising task sees it: submitted by the task, or found alive and attached to.

A driver outlives its supervisor: it gets a session of its own, no standard input, and a file instead of a
pipe. A child that inherits the supervisor's socket would be orphaned, or killed with it.
So the end of the task never ends the driver by accident; the next try finds it by its lease.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from streamkeeper.clusters import cluster_drivers
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import ClusterDriver, Lease, Life, Process, Silence, process_started
from streamkeeper.storage import read_json
from streamkeeper.support.connections import discard

LOOK = 1.0
"""Seconds that one call of `wait` waits for a driver's end, at most."""
STORE_LOOK = 5.0
"""Seconds between two reads of the store for an attached driver whose process is alive or not visible."""


@dataclass(frozen=True)
class Ending:
    """How a driver ended: its exit code, if this host knows it, and a description."""

    code: int
    description: str


class Driver(Protocol):
    """A driver, submitted or found. ``log`` is the file of its output, if it is on this host; ``cluster`` is
    where a cluster shows it.
    """

    log: Path | None

    @property
    def cluster(self) -> ClusterDriver | None: ...

    def wait(self) -> Ending | None:
        """Wait :data:`LOOK` seconds at most; return the ending, or None while the driver lives."""
        ...


class Submitted:
    """A driver that this task started.

    :param command: the ``spark-submit`` command.
    :param environment: the whole environment of the process.
    :param log: the file for its output; ``<log>.pid`` beside it names its process group while it runs.
    """

    cluster: ClusterDriver | None = None

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log: Path | None = log
        self._environment = environment
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                close_fds=True,
                start_new_session=True,  # a signal to the supervisor's group must not end the driver
            )
        self._note = log.with_name(f"{log.name}.pid")
        aside = log.with_name(f".{log.name}.pid")
        aside.write_text(
            json.dumps({"pid": self._process.pid, "started": process_started(self._process.pid)})
        )
        aside.replace(self._note)

    @property
    def pid(self) -> int:
        """Process id, group and session of ``spark-submit``."""
        return self._process.pid

    def wait(self) -> Ending | None:
        try:
            code = self._process.wait(timeout=LOOK)
        except subprocess.TimeoutExpired:
            return None
        self._note.unlink(missing_ok=True)
        discard(self._environment)
        return Ending(code, described(code))

    def end(self) -> None:
        """Ask the driver to end."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)


class InCluster:
    """A driver that a cluster starts. spark-submit ends once the cluster has it; from its lease on, it is
    followed as any that runs elsewhere.

    :param submitted: spark-submit, whose output names the driver.
    :param page: address of the cluster's pages.
    :param find: finds the driver by its lease, once that is newer than all there were before.
    :param tell: is told what the driver waits for, whenever that changes.
    """

    def __init__(
        self, submitted: Submitted, page: str, find: Callable[[], Driver | None], tell: Callable[[str], None]
    ) -> None:
        self.log = submitted.log
        self._tell, self._reported = tell, ""
        self._submitted: Submitted | None = submitted
        self._page, self._find, self._id = page, find, ""
        self._driver: Driver | None = None

    @property
    def cluster(self) -> ClusterDriver | None:
        """The driver, as its cluster knows it; None until the cluster has it."""
        return ClusterDriver(self._page, self._id) if self._id else None

    def wait(self) -> Ending | None:
        if self._driver is not None:
            return self._driver.wait()
        if self._submitted is not None:
            return self._await_submission(self._submitted)
        self._driver = self._find()
        if self._driver is None and self.cluster is not None:
            status = cluster_drivers.unbegun(self.cluster)
            self._driver = self._find()  # it may have begun since
            if status.over is not None and self._driver is None:
                return Ending(
                    Outcome.FAILED, f"{self._id} is {status.over}, and had not begun; see {self._page}"
                )
            if status.waits_for and status.waits_for != self._reported:
                self._reported = status.waits_for
                self._tell(f"{self._id} waits for {status.waits_for}.")
            time.sleep(LOOK)
        return None

    def end(self) -> None:
        """Ask for the end of spark-submit, or the cluster for that of the driver."""
        if self._submitted is not None:
            self._submitted.end()
        elif self.cluster is not None:
            try:
                cluster_drivers.end(self.cluster)
            except OSError as error:
                self._tell(f"{self.cluster.id} could not be ended: {error}. End it by hand.")

    def _await_submission(self, submitted: Submitted) -> Ending | None:
        ending = submitted.wait()
        if ending is None:
            return None
        assert submitted.log is not None, "its output is in a file"
        driver_id = cluster_drivers.submitted_id(submitted.log.read_text(errors="replace"))
        if ending.code or driver_id is None:
            return Ending(
                Outcome.FAILED, f"the cluster did not take it: spark-submit ended ({ending.description})"
            )
        self._submitted, self._id = None, driver_id
        return None


class Attached:
    """A driver that was already alive: its supervisor was lost, or it was started by hand.

    It is no child of this process, so its exit code is unknown; the ending is derived from what it left
    behind.

    :param term: seconds without a heartbeat after which a driver on another host counts as gone.
    """

    def __init__(self, home: FlowHome, lease: Lease, term: float) -> None:
        self._home, self._lease, self._term = home, lease, term
        self._silence, self._ask_at = Silence(home, lease.epoch, term, time.monotonic), time.monotonic()
        self.log: Path | None = Path(lease.log) if lease.log and Path(lease.log).is_file() else None
        self.cluster = lease.cluster

    def __str__(self) -> str:
        return leases.describe(self._lease)

    @property
    def beats(self) -> bool:
        """Whether its heartbeat has changed since it was found."""
        return self._silence.beats

    @property
    def process(self) -> Process:
        """Its process; flows that share a driver have the same."""
        return self._lease.process

    @property
    def flow(self) -> tuple[str, int]:
        """The flow's full name, and the epoch of the driver's lease."""
        return self._home.full_name, self._lease.epoch

    def wait(self) -> Ending | None:
        deadline = time.monotonic() + LOOK
        while (ending := self.look()) is None and time.monotonic() < deadline:
            time.sleep(LOOK / 5)
        return ending

    def look(self) -> Ending | None:
        """Return the driver's ending if it has ended by now."""
        return self._ending() if self._gone() else None

    def _gone(self) -> bool:
        """Check the process at each call; the store every few seconds only, or if the process is gone."""
        if leases.is_running(self._lease.process) is not False and time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + min(STORE_LOOK, self._term / 4)
        match leases.life(self._home, self._lease):
            case Life.LEFT | Life.DEAD:
                return True
            case Life.ALIVE:
                return False
            case Life.UNKNOWN:
                if cluster_drivers.note_end(self._home, self._lease):
                    return True
                return self._silence.lasts()

    def _ending(self) -> Ending:
        if holds.parked(self._home) is not None:
            return Ending(Outcome.PARKED, "the flow is parked")
        end_note = read_json(self._home.storage, self._home.left(self._lease.epoch))
        if end_note is None:
            return Ending(Outcome.FAILED, "it ended without a reason")
        outcome = Outcome.__members__.get(str(end_note.get("why")).upper(), Outcome.STOPPED)
        return Ending(
            outcome,
            "it ended normally" if outcome is Outcome.STOPPED else f"it left a note: {end_note['why']}",
        )


def find(
    homes: Sequence[FlowHome], term: float, meanwhile: Callable[[], None] = lambda: None
) -> list[Attached]:
    """Find the driver of some flows if one is alive: the holder of their leases, one for each of its flows.

    If it runs on another host, the heartbeats of all are watched together for ``term`` seconds at most.

    :param meanwhile: called several times a :data:`LOOK` of that.
    """
    attached = watched = [
        Attached(home, lease, term)
        for home in homes
        if (lease := leases.current(home)) and leases.life(home, lease) not in (Life.LEFT, Life.DEAD)
    ]
    while watched:
        alive = next((part for part in watched if part.beats or leases.is_running(part.process)), None)
        if alive is not None:
            return [part for part in attached if part.process == alive.process]
        meanwhile()
        time.sleep(LOOK / 5)
        watched = [part for part in watched if part.look() is None]
    return []
