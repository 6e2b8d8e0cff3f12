"""A simulated driver: no Spark and no data, but the real lease, heartbeat, watch for holds, checkpoint, park
and end of one. Its process is a shell that does nothing (:mod:`tests.benchmarks.thousand.company`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

from streamkeeper_jobs.stream.watch import Order, Watch

from streamkeeper.checkpoint import Checkpoint, CommitEntry, write_commit, write_offsets
from streamkeeper.drivers import failures
from streamkeeper.drivers.failures import Failure, FailureClass
from streamkeeper.drivers.supervision import Absence
from streamkeeper.errors import CheckpointError, LeaseHeld
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease, Process
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.storage import LocalStorage, Storage
from streamkeeper.watch import batch_numbers
from streamkeeper.watch.batch_numbers import Numbers
from tests.worlds.flows.many_flows import BATCH

TRIGGER, BATCH_SECONDS = 10.0, 300.0
"""Seconds between two looks for data, and between two batches that have some."""
_acting = threading.local()


@contextmanager
def acting_processes() -> Iterator[None]:
    """Let each lease that is taken name the process that a thread acts for, instead of this one."""
    with patch.object(Process, "current", lambda: _acting.process):
        yield


class _Declared:
    """The declaration of a simulated driver, which never changes while it runs."""

    def files_changed(self) -> bool:
        return False


@dataclass(frozen=True)
class Request:
    """A submission: the shell that stands for the driver, the flow, and the file of its output."""

    process: Process
    flow: Flow
    log: Path


class SimulatedDriver:
    """One driver, which acts whenever it is called.

    :param storage: the state folder, but for what Spark itself does there: the checkpoint.
    """

    def __init__(self, settings: Settings, request: Request, storage: Storage) -> None:
        self.request, self._settings = request, settings
        self.home = FlowHome(storage, request.flow.pipeline.name, request.flow.name)
        self._sparks = LocalStorage(settings.state)
        self.lease: Lease | None = None
        self._watch: Watch | None = None
        self._totals, self._triggers = Totals(), 0
        self._trigger_at = self._batch_at = 0.0

    @property
    def name(self) -> str:
        return self.request.flow.full_name

    @property
    def lives(self) -> bool:
        """Whether its process is there."""
        return bool(leases.is_running(self.request.process))

    def begin(self) -> Outcome | None:
        """Take the lease, and beat; return the outcome if it cannot run."""
        if self.home.owners():
            return Outcome.HELD
        made, settings = generations.latest(self.home), self._settings
        assert made is not None, "the benchmark has begun a generation"
        _acting.process = self.request.process
        try:
            lease = leases.acquire(self.home, made.number, settings.lease_term, str(self.request.log))
        except LeaseHeld:
            return Outcome.LEASE_HELD
        absence = Absence(self.home, settings.supervisor_timeout)
        declared, interval = _Declared(), settings.heartbeat_interval
        self._watch = Watch(
            self.home,
            lease,
            interval,
            declared,
            absence,
            term=settings.lease_term,  # type: ignore[arg-type]
        )
        self.lease = lease
        self._say(f"SIMULATED driver of {self.name}, epoch {lease.epoch}")
        self._watch.turn()
        self._watch.tell(phase="running")
        self._batch_at = time.monotonic() + lease.process.pid % BATCH_SECONDS
        return None

    def turn(self) -> Outcome | None:
        """Do what is due; return the outcome once it ends."""
        assert self._watch is not None
        assert self.lease is not None
        try:
            self._watch.turn()
            order = self._watch.order()
            if order is None:
                self._trigger(self._watch)
        except CheckpointError as error:
            return self._park(error)
        return None if order is None else self._obey(order)

    def _obey(self, order: Order) -> Outcome:
        assert self._watch is not None
        assert self.lease is not None
        if order.at_once:
            return Outcome.LEASE_LOST
        self._say(order.words)
        self._watch.tell(phase="stopping")
        leases.leave(self.home, self.lease, "stopped")
        return Outcome.STOPPED

    def _trigger(self, watch: Watch) -> None:
        """Look for data: where the checkpoint is. Now and then there is some."""
        now = time.monotonic()
        if now < self._trigger_at:
            return
        self._trigger_at, self._triggers = now + TRIGGER, self._triggers + 1
        checkpoint = Checkpoint(self._sparks, self.home.checkpoint(watch.heartbeat.generation, 1))
        last = checkpoint.last_commit()
        assert last is not None, "the benchmark has let it commit"
        offsets = checkpoint.offsets(last)
        if now < self._batch_at:
            watch.tell(triggers=self._triggers, batch=last)
            return
        self._batch_at = now + BATCH_SECONDS
        batch = replace(BATCH, number=last + 1, at=time.time())
        entries = {
            "offsets": write_offsets(replace(offsets, batch=batch.number)),
            "commits": write_commit(CommitEntry(batch.number, 1, 0)),
        }
        for folder, content in entries.items():
            self._sparks.overwrite(checkpoint.name(f"{folder}/{batch.number}"), content)
        self._totals = self._totals.plus(batch.as_totals())
        numbers = Numbers(batch, self._totals).as_details()
        watch.tell(triggers=self._triggers, batch=batch.number, rows=self._totals.rows, details=numbers)
        batch_numbers.keep(self.home, [batch])
        self._say(f"{self.name}: generation {watch.heartbeat.generation}, batch {batch.number}")

    def _park(self, error: CheckpointError) -> Outcome:
        assert self._watch is not None
        assert self.lease is not None
        failure = Failure(
            FailureClass.NEEDS_RECOVERY, None, None, "its checkpoint cannot be read", "reset_checkpoint",
            str(error), {"type": type(error).__name__},
        )  # fmt: skip
        fingerprint, generation = self.request.flow.fingerprint, self.lease.generation
        details = {"fingerprint": fingerprint, "generation": generation, "stateful": None, "operators": None}
        described = {**asdict(failure), "classed": failure.classed.value, **details}
        holds.put(self.home, holds.PARK, failures.brief(failure), "driver", described)
        self._say(failures.describe(self.name, failure))
        leases.leave(self.home, self.lease, "parked")
        return Outcome.PARKED

    def _say(self, line: str) -> None:
        with self.request.log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
