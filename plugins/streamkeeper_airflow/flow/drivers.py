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
from pathlib import Path
from typing import Protocol

from streamkeeper.clusters import cluster_drivers
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.flows.leases import ClusterDriver, process_started
from streamkeeper.supervise import attached
from streamkeeper.supervise.attached import Attached, AttachedToSharedDriver, Ending
from streamkeeper.support.connections import discard

Found = Attached | AttachedToSharedDriver
"""A driver that is followed by its leases, by whatever process."""


class Driver(Protocol):
    """A driver, submitted or found. ``log`` is the file of its output, if it is on this host; ``cluster`` is
    where a cluster shows it.
    """

    log: Path | None

    @property
    def cluster(self) -> ClusterDriver | None: ...

    def wait(self) -> Ending | None:
        """Wait :data:`streamkeeper.supervise.attached.LOOK` seconds at most; return the ending, or None while
        the driver lives.
        """
        ...

    def begun(self) -> Found | None:
        """Return the driver as anybody can follow it, once it works: it has its leases, and has beaten."""
        ...


class Submitted:
    """A driver that this task started.

    :param command: the ``spark-submit`` command.
    :param environment: the whole environment of the process.
    :param log: the file for its output; ``<log>.pid`` beside it names its process group while it runs.
    :param find: finds the driver by its lease, once that is newer than all there were before.
    """

    cluster: ClusterDriver | None = None

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        find: Callable[[], Found | None] = lambda: None,
    ) -> None:
        self._find = find
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
            code = self._process.wait(timeout=attached.LOOK)
        except subprocess.TimeoutExpired:
            return None
        self._note.unlink(missing_ok=True)
        discard(self._environment)
        return Ending(code, described(code))

    def begun(self) -> Found | None:
        found = self._find()
        return None if found is None else found.begun()

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
        self, submitted: Submitted, page: str, find: Callable[[], Found | None], tell: Callable[[str], None]
    ) -> None:
        self.log = submitted.log
        self._tell, self._reported = tell, ""
        self._submitted: Submitted | None = submitted
        self._page, self._find, self._id = page, find, ""
        self._driver: Found | None = None

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
            time.sleep(attached.LOOK)
        return None

    def begun(self) -> Found | None:
        return None if self._driver is None else self._driver.begun()

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
