"""Leases: at most one driver for each flow.

Each driver claims the next *epoch* by creating its file; the highest epoch holds. A holder is proven dead if
no process has its pid and start time, on the same boot of the same host, in the same pid namespace. Elsewhere
it counts as alive until its heartbeat has not changed for the lease's term by an *observer's own* monotonic
clock: clocks of two machines are never compared. The observer records which heartbeat that was, so nobody
waits for the term again while it is still the last. A wrong guess is harmless not because of the lease but
because of the fence in the sink's log (docs/decisions/0002).

What reads a lease or a heartbeat raises :class:`StorageError` where its file is damaged.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from streamkeeper.errors import LeaseHeld, LeaseLost, StorageError
from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.names import mark_format
from streamkeeper.storage import read_json, to_json
from streamkeeper.support.json_values import read_as
from streamkeeper.support.times import Moment, now

LEFT, DEAD, SILENT = "left", "dead", "silent"
"""Values of a lease's ``took_over``: how the epoch before it ended."""


@dataclass(frozen=True)
class Process:
    """One process on one boot of one host; ``started`` (clock ticks since boot) distinguishes reused pids."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Process:
        """Return this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), _pid_namespace(), pid, process_started(pid) or 0)

    @classmethod
    def of_pid(cls, pid: int) -> Process | None:
        """Return another process of this pid namespace; None if it is not visible."""
        started = process_started(pid)
        return (
            None if started is None else cls(socket.gethostname(), _boot_id(), _pid_namespace(), pid, started)
        )


SILENT_SECONDS = 300.0
"""Seconds without a beat after which people are shown an invisible driver, or a supervising task, as gone. It
compares the clocks of two machines, so nothing is decided by it.
"""
UNPROTECTED_SECONDS = 86400.0
"""Seconds without a heartbeat after which an invisible driver no longer protects its files from removal."""


@dataclass(frozen=True)
class ClusterDriver:
    """Driver that a cluster started: its id, and the address of the cluster's pages."""

    page: str
    id: str


@dataclass(frozen=True)
class Lease:
    """One epoch of a flow's lease. ``log`` is the file of the driver's output, if its supervisor named one.
    ``cluster`` says where to ask after a driver that a cluster started.

    ``took_over`` is the reason why the epoch before counts as gone: it ``left``, it is proven ``dead``, or it
    was ``silent`` for the term, which proves nothing; None for a flow's first. ``unproven`` is the newest of
    the epochs taken over without proof: its driver may still be alive, and those of newer epochs not.
    """

    epoch: int
    process: Process
    generation: int
    at: Moment
    application_id: str | None = None
    log: str | None = None
    took_over: str | None = None
    unproven: int | None = None
    cluster: ClusterDriver | None = None


@dataclass(frozen=True)
class Heartbeat:
    """Heartbeat of a driver. ``count`` changes with every heartbeat.

    ``phase`` is ``starting``, ``seeding``, ``rebuilding`` (state, from history: ``details`` have the
    progress), ``running`` or ``stopping``. ``triggers`` counts the triggers that ended well: with a committed
    batch, or without new data. ``batch`` is the last committed batch, ``rows`` the number of rows that this
    driver has read.
    """

    epoch: int
    count: int
    phase: str
    generation: int
    at: str
    batch: int | None = None
    triggers: int = 0
    application_id: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    rows: int = 0


class Life(Enum):
    """Answers about a lease's holder that need no waiting."""

    LEFT = "ended normally"
    DEAD = "proven dead"
    ALIVE = "proven alive"
    UNKNOWN = "on another host or boot: only its heartbeat can tell"


def current(home: FlowHome, known_epoch: int | None = None) -> Lease | None:
    """Read the lease that holds: the highest epoch; None if there never was one.

    :param known_epoch: an epoch that is known to exist, from which the search starts. Frequent callers then
        need not list a folder that grows with every retry.
    """
    lease = read(home, known_epoch) if known_epoch is not None else None
    if lease is None:
        epochs = home.epochs()
        return read(home, epochs[-1]) if epochs else None
    while (later := read(home, lease.epoch + 1)) is not None:
        lease = later
    return lease


def read(home: FlowHome, epoch: int) -> Lease | None:
    """Read the lease of one epoch; None if there is none."""
    value = read_json(home.storage, home.lease(epoch))
    if value is None:
        return None
    try:
        process = read_as(Process, _known_fields(Process, value["process"]))
        if process.pid < 0 or process.started < 0:
            raise ValueError(f"its process has the id {process.pid} and the start {process.started}")
        cluster_value = value.get("cluster")
        cluster = (
            None
            if cluster_value is None
            else read_as(ClusterDriver, _known_fields(ClusterDriver, cluster_value))
        )
        return read_as(Lease, {**_known_fields(Lease, value), "process": process, "cluster": cluster})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{home.storage.path(home.lease(epoch))} is not a lease: {error}. Check that no driver of"
            f" {home.full_name} runs, and remove the file."
        ) from error


def _known_fields(record_type: Any, value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this release knows; a newer one may have added some."""
    names = _names(record_type)
    return {name: item for name, item in value.items() if name in names}


@cache
def _names(record_type: Any) -> frozenset[str]:
    return frozenset(item.name for item in fields(record_type))


def life(home: FlowHome, lease: Lease) -> Life:
    """Return what is known of a holder without waiting."""
    if home.storage.read(home.left(lease.epoch)) is not None:
        return Life.LEFT
    match is_running(lease.process):
        case None:
            return Life.UNKNOWN
        case running:
            return Life.ALIVE if running else Life.DEAD


def may_run(home: FlowHome) -> bool:
    """Return whether a driver may be alive; one out of sight if it beat in :data:`UNPROTECTED_SECONDS`."""
    lease = current(home)
    if lease is None:
        return False
    match life(home, lease):
        case Life.LEFT | Life.DEAD:
            return False
        case Life.ALIVE:
            return True
        case Life.UNKNOWN:
            beat = home.storage.modified(home.heartbeat(lease.epoch))
            return beat is not None and storage_now(home.storage) - beat < UNPROTECTED_SECONDS


def is_running(holder: Process) -> bool | None:
    """Return whether a process runs; None if that is not visible, as on another host or boot."""
    here = (_boot_id(), _pid_namespace())
    if _UNTOLD in here or (holder.boot_id, holder.pid_namespace) != here:
        return None
    started = process_started(holder.pid)
    if started is None and _hidden(holder.pid):
        return None
    return started == holder.started


def read_heartbeat(home: FlowHome, epoch: int) -> Heartbeat | None:
    """Read the last heartbeat of an epoch's driver; None if there is none yet."""
    value = read_json(home.storage, home.heartbeat(epoch))
    try:
        return read_as(Heartbeat, _known_fields(Heartbeat, value)) if value else None
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"{home.storage.path(home.heartbeat(epoch))} is not a heartbeat: {error}. Its driver writes it"
            f" again; if no driver of {home.full_name} runs, remove it."
        ) from error


def present_heartbeat(home: FlowHome) -> Heartbeat | None:
    """Read the last heartbeat of the driver whose lease holds; None if there is none."""
    lease = current(home)
    return None if lease is None else read_heartbeat(home, lease.epoch)


class Silence:
    """Measurement of a driver's silence by this observer's own clock.

    Once it has lasted for the term, that is recorded with the last heartbeat's count. Another observer need
    not wait for the term again while that heartbeat is still the last. Of one that has never beaten nothing
    is recorded: a job without a flow takes write locks, never beats, and always has the same epoch.

    :param epoch: the epoch of the driver's lease.
    :param term: seconds without a changed heartbeat after which a driver counts as silent.
    """

    def __init__(
        self, home: FlowHome, epoch: int, term: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch, self.beats = epoch, False
        self._home, self._term, self._monotonic = home, term, monotonic
        self._count, self._since = self._last_count(), monotonic()
        self._lasts = self._count is not None and self._noted_seconds() >= term

    def lasts(self) -> bool:
        """Return whether the heartbeat is unchanged for the term; ``beats`` says that it changed since."""
        count = self._last_count()
        if count != self._count:
            self._count, self._since, self._lasts, self.beats = count, self._monotonic(), False, True
        if not self._lasts and self._monotonic() - self._since >= self._term:
            self._lasts = True
            self._note()
        return self._lasts

    def _note(self) -> None:
        noted = {"epoch": self.epoch, "count": self._count, "seconds": self._term, "at": now()}
        with suppress(StorageError):  # without it the next observer waits, too
            if self._count is not None:
                self._home.storage.overwrite(self._home.silent(self.epoch), to_json(noted))

    def _noted_seconds(self) -> float:
        """Return for how long the last heartbeat was seen unchanged; 0 if nobody says so readably."""
        try:
            noted = read_json(self._home.storage, self._home.silent(self.epoch)) or {}
            return float(noted["seconds"]) if noted["count"] == self._count else 0.0
        except (StorageError, KeyError, TypeError, ValueError):
            return 0.0

    def _last_count(self) -> int | None:
        heartbeat = read_heartbeat(self._home, self.epoch)
        return None if heartbeat is None else heartbeat.count


def acquire(
    home: FlowHome,
    generation: int,
    term: float,
    log: str | None = None,
    cluster: ClusterDriver | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
    """Claim the next epoch for this process.

    If the current holder can be proven neither dead nor alive, this waits. Either its heartbeat changes, and
    it is alive, or it has not changed for ``term`` seconds (:class:`Silence`), and the epoch is taken over.

    The lease records how the holder ended. The newest holder without proof stays in every later lease.

    :raises LeaseHeld: the holder is alive, or another driver claimed the epoch first.
    """
    holder = current(home)
    gone = _check_gone(home, holder, term, monotonic, sleep) if holder else None
    epoch = (holder.epoch if holder else 0) + 1
    unproven = None if holder is None else holder.epoch if gone == SILENT else holder.unproven
    lease = Lease(
        epoch,
        Process.current(),
        generation,
        now(),
        None,
        log,
        took_over=gone,
        unproven=unproven,
        cluster=cluster,
    )
    mark_format(home.storage)
    if not home.storage.create(home.lease(epoch), to_json(asdict(lease))):
        raise LeaseHeld(
            f"Another driver of {home.full_name} claimed lease epoch {epoch} at the same moment. This one"
            " stops; it had not started."
        )
    after = {DEAD: "; the one before is dead", SILENT: "; the one before was silent"}.get(gone or "", "")
    events.note(
        home,
        Kind.STARTED,
        f"driver {describe(lease)}{after}",
        epoch,
        by="driver",
        generation=generation,
        epoch=epoch,
    )
    return lease


def check(home: FlowHome, lease: Lease) -> None:
    """Check that a lease still holds.

    :raises LeaseLost: the next epoch exists.
    """
    # Epochs are created in sequence, so the next one is enough to check, however many follow.
    if home.storage.read(home.lease(lease.epoch + 1)) is not None:
        raise LeaseLost(
            f"The lease of {home.full_name} went from epoch {lease.epoch} to {lease.epoch + 1}: another"
            " driver took over. This one stops."
        )


def beat(home: FlowHome, heartbeat: Heartbeat) -> None:
    """Write a heartbeat; only the driver of its epoch may do so."""
    home.storage.overwrite(home.heartbeat(heartbeat.epoch), to_json(asdict(heartbeat)))


def leave(home: FlowHome, lease: Lease, reason: str) -> None:
    """Record that the driver stopped in good order, so that the next one need not wait."""
    home.storage.create(home.left(lease.epoch), to_json({"epoch": lease.epoch, "why": reason, "at": now()}))
    text = f"driver of epoch {lease.epoch} ended: {reason.replace('_', ' ')}"
    events.note(home, Kind.STOPPED, text, lease.epoch, by="driver", epoch=lease.epoch)


def told_leaving(home: FlowHome, lease: Lease) -> dict[str, Any]:
    """Return what a driver told when it left: ``why``, and when by its own clock (``at``); empty if it has
    not left, or the record cannot be read.
    """
    try:
        return read_json(home.storage, home.left(lease.epoch)) or {}
    except StorageError:
        return {}


def note_failure(home: FlowHome, lease: Lease, failure: dict[str, Any]) -> None:
    """Record the failure that ends a driver and parks nothing, for its supervisor, and the next driver."""
    home.storage.create(home.failed(lease.epoch), to_json({**failure, "epoch": lease.epoch, "at": now()}))


def failure_of(home: FlowHome, epoch: int) -> dict[str, Any] | None:
    """Read the failure that an epoch's driver recorded; None if there is none.

    Its fields are those of :class:`streamkeeper.drivers.failures.Failure`, with ``fingerprint``,
    ``generation``, ``stateful`` and ``operators`` as in a park hold's details, and ``epoch`` and ``at``.
    """
    return read_json(home.storage, home.failed(epoch))


def wait_until_gone(
    home: FlowHome,
    timeout: float,
    term: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease | None:
    """Wait until no driver of the flow is alive; return the last lease, or None if there never was one.

    :param timeout: seconds to wait at most.
    :param term: seconds without a changed heartbeat after which an invisible driver counts as gone.
    :raises LeaseHeld: a driver is still there after ``timeout`` seconds.
    """
    deadline = monotonic() + timeout
    silence: Silence | None = None
    while True:
        lease = current(home)
        if lease is None:
            return None
        state = life(home, lease)
        if state in (Life.LEFT, Life.DEAD):
            return lease
        if silence is None or silence.epoch != lease.epoch:
            silence = Silence(home, lease.epoch, term, monotonic)
        if state is Life.UNKNOWN and silence.lasts():
            return lease
        if monotonic() >= deadline:
            raise LeaseHeld(
                f"The driver of {home.full_name} ({describe(lease)}) is still there {timeout:g} s after it"
                " was asked to stop. A driver ends its batch first. If batches take longer, set"
                " STREAMKEEPER_STOP_TIMEOUT (seconds), or hold the flow yourself, wait until it stops"
                " (streamkeeper hold --wait), and start again. Otherwise end that process."
            )
        sleep(min(0.2, term / 4))


def describe(lease: Lease) -> str:
    """Return the holder of a lease as text."""
    return f"epoch {lease.epoch}, pid {lease.process.pid} on {lease.process.host}, since {lease.at}"


def _check_gone(
    home: FlowHome, holder: Lease, term: float, monotonic: Callable[[], float], sleep: Callable[[float], None]
) -> str:
    """Return how a holder ended: :data:`LEFT`, :data:`DEAD` or :data:`SILENT`.

    :raises LeaseHeld: it is alive.
    """
    message = f"The flow {home.full_name} has a driver: {describe(holder)}."
    state = life(home, holder)
    if state is Life.ALIVE:
        raise LeaseHeld(
            f"{message} It is alive, so this one does not start. To stop it, put a hold: streamkeeper hold"
            f" {home.full_name}."
        )
    if state in (Life.LEFT, Life.DEAD):
        return LEFT if state is Life.LEFT else DEAD
    silence = Silence(home, holder.epoch, term, monotonic)
    while not silence.lasts():
        if silence.beats:
            raise LeaseHeld(
                f"{message} Its heartbeat is current, so this one does not start. To stop it, put a hold:"
                f" streamkeeper hold {home.full_name}."
            )
        sleep(min(1.0, term / 10))
        if home.storage.read(home.left(holder.epoch)) is not None:
            return LEFT
    return SILENT


def _hidden(pid: int) -> bool:
    """Return whether a process exists whose ``/proc`` entry is hidden (``hidepid``); zombies excluded."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


_UNTOLD = "unknown"
"""Placeholder for boot or pid namespace without ``/proc``: no process is then proven dead or alive."""


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _UNTOLD


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return _UNTOLD


def process_started(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if gone or a zombie (proc(5), stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
