"""One loop that watches the drivers of many flows: their tasks wait, without a slot and without a process.

It does what each task would do for its own driver: it sends the supervisor's heartbeat, brings the driver's
new lines into the task's log, and looks whether the driver lives, and whether its declaration has changed.
What only a task can do (judge an end, start a driver, try a change, tell people) it leaves to the task, which
it wakes for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.health.driver_log import ClusterLog, LogFile, LogTail, Output
from streamkeeper.settings import Settings
from streamkeeper.supervise import attached
from streamkeeper.supervise.attached import Attached, AttachedToSharedDriver
from streamkeeper.supervise.changes import AGAIN, BETWEEN, Changes, PipelineFiles, mark
from streamkeeper.supervise.heart import Heart

BACKLOG = 64 * 1024
"""Bytes of a driver's log that are shown again where nobody knows up to where they were shown."""
AT_ONCE = 16
"""Flows that are looked at side by side: their stores and clusters answer in their own time."""


class Reason(StrEnum):
    """What a task is woken for."""

    END = "end"
    """The driver has ended, or is silent: the task judges which, and goes on."""
    CHANGE = "change"
    """The declaration has changed: the task tries it, or tells people of one that is kept out."""


@dataclass(frozen=True)
class Handover:
    """What a task hands over to the loop: names and numbers, no secrets.

    :param epochs: the epoch of the driver's lease, by the full name of each flow that it runs.
    :param by: the task and its try, for the heartbeat.
    :param tries_changes: whether a changed declaration is looked for.
    :param reported: the change that people were told of last
        (:func:`streamkeeper.supervise.changes.mark`).
    """

    epochs: Mapping[str, int]
    by: str
    tries_changes: bool = False
    reported: str = ""


class Watched:
    """One driver that the loop watches.

    :param write: is given each new line of the driver, and warnings.
    :param wake: is given the reason why the task is woken, or the error that ends the watch; called once.
    """

    def __init__(
        self,
        settings: Settings,
        handover: Handover,
        files: PipelineFiles,
        write: Callable[[str], None],
        wake: Callable[[Reason | Exception], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._handover, self._files = settings, handover, files
        self._write, self.wake, self._monotonic = write, wake, monotonic
        self.is_looked_at = False
        self._homes: list[FlowHome] = []
        self._heart: Heart | None = None
        self._changes: Changes | None = None
        self._driver: Attached | AttachedToSharedDriver | None = None
        self._tails: list[LogTail] | None = None
        self._look_at, self._changes_at = -float("inf"), -float("inf")
        self._warnings: dict[str, str] = {}

    def look(self) -> Reason | None:
        """Do what is due; return why the task must be woken, or None."""
        heart = self._heart or self._open()
        heart.beat()
        if self._monotonic() < self._look_at:
            return None
        try:
            reason = self._look(heart)
        except StreamkeeperError as error:
            self._warn("driver", f"The driver is looked at again soon: {error}")
            # Its silence is measured anew: while nobody could read its heartbeat, it may have beaten.
            self._driver, self._look_at = None, self._monotonic() + attached.STORE_LOOK
            return None
        self._warn("driver", "")
        if reason is not None:
            heart.beat(at_once=True)
        return reason

    def _open(self) -> Heart:
        settings, handover = self._settings, self._handover
        self._homes = [open_home(settings, name) for name in handover.epochs]
        self._changes = Changes(self._homes[0], self._files) if handover.tries_changes else None
        heart = Heart(self._homes, settings.supervisor_timeout, handover.by, self._write, self._monotonic)
        heart.go_on()
        self._heart = heart
        return heart

    def _look(self, heart: Heart) -> Reason | None:
        if self._driver is None:
            parts = self._parts()
            if not parts:
                return Reason.END
            term = self._settings.lease_term
            self._driver = (
                parts[0] if len(parts) == 1 else AttachedToSharedDriver(parts, term, self._monotonic)
            )
        has_ended = self._driver.look() is not None
        self._show(self._driver, heart)
        if has_ended:
            return Reason.END
        return Reason.CHANGE if self._has_changed() else None

    def _warn(self, subject: str, text: str) -> None:
        """Write what fails, unless that was the last word on its subject; an empty text is for what works."""
        if text and text != self._warnings.get(subject):
            self._write(text)
        self._warnings[subject] = text

    def _parts(self) -> list[Attached]:
        epochs = zip(self._homes, self._handover.epochs.values(), strict=True)
        pairs = [(home, leases.read(home, epoch)) for home, epoch in epochs]
        term = self._settings.lease_term
        return [Attached(home, lease, term, self._monotonic) for home, lease in pairs if lease is not None]

    def _show(self, driver: Attached | AttachedToSharedDriver, heart: Heart) -> None:
        if self._tails is None:
            outputs: list[Output] = [LogFile(driver.log)] if driver.log else []
            if driver.cluster is not None:
                outputs.append(ClusterLog(driver.cluster))
            starts = [heart.shown.get(output.location) for output in outputs]
            self._tails = [
                LogTail(output, self._write, backlog=BACKLOG, start=start)
                for output, start in zip(outputs, starts, strict=True)
            ]
        for tail in self._tails:
            tail.pump()
            heart.shown[tail.location] = tail.position

    def _has_changed(self) -> bool:
        if self._changes is None or self._monotonic() < self._changes_at:
            return False
        try:
            is_due, kept_out = self._changes.look() is not None, self._changes.kept_out
        except StreamkeeperError as error:  # the watch of the driver goes on, and its silence counts
            self._warn("declaration", f"The declaration is looked at again in {AGAIN:g} s: {error}")
            self._changes_at = self._monotonic() + AGAIN
            return False
        self._warn("declaration", "")
        self._changes_at = self._monotonic() + (AGAIN if kept_out else BETWEEN)
        return is_due or (kept_out is not None and mark(kept_out) != self._handover.reported)


class WatchLoop:
    """Watches drivers in one thread, which lives while there are any."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._watched: list[Watched] = []
        self._files: dict[str, PipelineFiles] = {}
        self._thread: threading.Thread | None = None

    def add(
        self,
        settings: Settings,
        handover: Handover,
        write: Callable[[str], None],
        wake: Callable[[Reason | Exception], None],
    ) -> Watched:
        """Watch a driver from now on; see :class:`Watched`."""
        with self._lock:
            files = self._files.setdefault(str(settings.pipelines), PipelineFiles(settings, self._monotonic))
            watched = Watched(settings, handover, files, write, wake, monotonic=self._monotonic)
            self._watched.append(watched)
        return watched

    def remove(self, watched: Watched) -> None:
        """Watch a driver no longer; another one may do so."""
        with self._lock:
            if watched in self._watched:
                self._watched.remove(watched)

    def start(self) -> None:
        """Run the loop in a thread of its own, unless it runs."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="streamkeeper-watch", daemon=True)
                thread.start()
                self._thread = thread  # once it has begun: else nobody would start another one

    def look(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Begin a look at each driver whose last look is over, and wake the tasks that must be. A store that
        hangs delays the flows that are on it, and no other.
        """
        with self._lock:
            present = [watched for watched in self._watched if not watched.is_looked_at]
        for watched in present:
            watched.is_looked_at = True
        return [pool.submit(self._look, watched) for watched in present]

    def _look(self, watched: Watched) -> None:
        reason: Reason | Exception | None
        try:
            reason = watched.look()
        except Exception as error:  # noqa: BLE001 - it ends the watch of this driver alone: its task goes on
            reason = error
        finally:
            watched.is_looked_at = False
        if reason is not None:
            self.remove(watched)
            watched.wake(reason)

    def _run(self) -> None:
        with ThreadPoolExecutor(AT_ONCE, "streamkeeper-watch") as pool:
            try:
                while self._watches():
                    began = self._monotonic()
                    self.look(pool)
                    time.sleep(max(0.0, began + attached.LOOK - self._monotonic()))
            except Exception as error:  # noqa: BLE001 - unwatched drivers stop: their tasks go on instead
                with self._lock:
                    watched, self._watched, self._thread = self._watched, [], None
                for each in watched:
                    each.wake(error)

    def _watches(self) -> bool:
        """Return whether there are drivers to watch; if not, the next one needs another thread."""
        with self._lock:
            if not self._watched:
                self._thread = None
            return bool(self._watched)
