"""A driver's heartbeat, and its watch for what ends it.

That is a hold, a lost lease, a newer generation, or a changed declaration. It runs in a thread of its own, so
that the heart beats while Spark is busy. It does not touch the query: it gives an order, once, and the code
that runs a query obeys it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from streamkeeper.drivers.supervision import Absence
from streamkeeper.errors import LeaseLost, StorageError
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat, Lease
from streamkeeper.settings import look_interval
from streamkeeper.support.times import now
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.declaration_watch import Changed, Declaration

_BETWEEN_LOOKS = 2
"""Looks at holds without a look at a change that was refused, or waits for a person."""


@dataclass(frozen=True)
class Order:
    """An order to stop after the running batch; ``at_once``, without waiting for it: the lease is lost."""

    words: str
    at_once: bool = False


class Stopped(Exception):
    """The driver obeyed an order."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.words)
        self.order = order


class NothingYet(Exception):
    """A source lacks what a flow needs to begin, such as its schema, and the driver was not to wait."""


class Orders(Protocol):
    """Gives orders to a running query, and receives its status."""

    def order(self) -> Order | None:
        """Return the order, if there is one."""
        ...

    def tell(self, **changes: object) -> None:
        """Receive changes of the query's status (``phase``, ``batch``, …)."""
        ...


class Watch:
    """Beats and looks for an order, until closed. Use as a context.

    A store bills each request, so each thing is asked as often as it is needed. Holds and the pipeline's
    files are looked at every ``look_interval(interval)`` seconds. The heart beats every ``interval`` seconds,
    and sooner where a batch was committed since the last beat. The lease and the generation are looked at
    every ``interval`` seconds: others change them only after a hold, or when this driver was silent.

    A storage that fails is silence at first. Another driver may take the lease over after ``term`` seconds of
    silence. So the watch ends this one when half of that is over.

    :param interval: seconds between two heartbeats at most.
    :param absence: detects that the supervising task is gone, if there is one.
    :param tried: whether the supervising task has a change of the declaration tried: then this driver goes
        on until the one that tried it is ready.
    """

    def __init__(
        self,
        home: FlowHome,
        lease: Lease,
        interval: float,
        declaration: Declaration,
        absence: Absence | None = None,
        *,
        term: float,
        tried: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._lease, self._interval, self._declaration = home, lease, interval, declaration
        self._term, self._absence, self._monotonic = term, absence, monotonic
        self._beaten, self._due = self._monotonic(), float("-inf")
        self._silent = False
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(lease.epoch, 0, "starting", lease.generation, now())
        self._written = self._status()
        self._order: Order | None = None
        self._broken: BaseException | None = None
        self._interrupt, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamkeeper-watch", daemon=True)
        self._importer = ThreadPoolExecutor(1, "streamkeeper-declaration")
        self._checking: Future[Changed | None] | None = None
        self._tried, self._trial = tried, _Trial(home)

    def __enter__(self) -> Watch:
        self.turn()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        if self._broken is None and (self._order is None or not self._order.at_once):
            with contextlib.suppress(StorageError):  # the lease is left, or kept, without it as well
                self._beat()
        self._importer.shutdown(wait=False, cancel_futures=True)

    @property
    def heartbeat(self) -> Heartbeat:
        """The content of the heartbeat."""
        return self._heartbeat

    def tell(self, **changes: object) -> None:
        """Change the content of the heartbeat (``batch``, ``triggers``, …); write a new ``phase`` at once."""
        with self._lock:
            before = self._heartbeat.phase
            self._heartbeat = replace(self._heartbeat, **changes)  # type: ignore[arg-type]
        if self._heartbeat.phase != before:
            try:
                self._beat()
            except StorageError as error:
                self._note_silence(error)

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until there is an order.

        :raises Stopped: there is one.
        """
        self._interrupt.wait(seconds)
        self.obey()

    def order(self) -> Order | None:
        """Return the order, if there is one.

        :raises StreamkeeperError: what it depends on could not be read.
        """
        if self._broken is not None:
            raise self._broken
        return self._order

    def terminate(self, words: str = "it received SIGTERM") -> None:
        """Order a stop after the batch, as SIGTERM asks for; an earlier order stays."""
        if self._order is None:
            self._order = Order(words)
            self._interrupt.set()

    def obey(self) -> None:
        """Raise if there is an order.

        :raises Stopped: there is one.
        """
        order = self.order()
        if order is not None:
            raise Stopped(order)

    def _run(self) -> None:
        try:
            while not self._closed.wait(look_interval(self._interval)):
                try:
                    self.turn()
                except StorageError as error:
                    self._note_silence(error)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._broken = error
            self._interrupt.set()

    def turn(self) -> None:
        """Do what is due: beat, and look for an order.

        :raises StorageError: the storage took no beat, or did not answer. What was due stays due.
        """
        began = self._monotonic()
        due = began >= self._due
        if due or self._status() != self._written:
            self._beat()
        if self._order is None:
            self._look(due)
        if due:
            self._beaten, self._due = began, began + self._interval
            if self._silent:
                say("The state folder answers again.")
            self._silent = False

    def _note_silence(self, error: StorageError) -> None:
        """Take a storage that failed for silence.

        :raises StorageError: half of the lease's term is over since the last beat.
        """
        silence = self._monotonic() - self._beaten
        if silence >= self._term / 2:
            raise StorageError(
                f"The driver of {self._home.full_name} could not use its state folder for {silence:.0f} s,"
                " half of STREAMKEEPER_LEASE_TERM. It stops before another one may take its lease over:"
                f" {error}"
            ) from error
        if not self._silent:
            self._silent = True
            say(
                f"The state folder does not answer; tried again for {self._term / 2 - silence:.0f} s: {error}"
            )

    def _beat(self) -> None:
        with self._lock:
            self._heartbeat = replace(self._heartbeat, count=self._heartbeat.count + 1, at=now())
            leases.beat(self._home, self._heartbeat)
            self._written = self._status()

    def _status(self) -> tuple[object, ...]:
        """Return the part of the heartbeat whose change is written before the next one is due."""
        beat = self._heartbeat
        return beat.phase, beat.batch, beat.rows, beat.triggers > 0

    def _look(self, due: bool) -> None:
        order = self._find_order(due)
        if order is not None:
            self._order = order
            self._interrupt.set()

    def _find_order(self, due: bool) -> Order | None:
        try:
            if due:
                leases.check(self._home, self._lease)
        except LeaseLost as lost:
            return Order(str(lost), at_once=True)
        flow_holds = holds.all_of(self._home)
        if flow_holds:
            return Order("; ".join(f"held by {hold.owner}: {hold.reason}" for hold in flow_holds))
        generation = self._heartbeat.generation
        if due and self._home.storage.read(self._home.generation(generation + 1)) is not None:
            return Order(f"generation {generation + 1} was decided; the next driver begins it")
        silence = self._absence.look() if self._absence else None
        if silence is not None:
            return Order(silence)
        return self._changed()

    def _changed(self) -> Order | None:
        """Return an order if the declaration changed.

        Reading the declaration may take seconds, so another process does it while the heart beats on.
        """
        if self._checking is None:
            if self._declaration.files_changed():
                self._checking = self._importer.submit(self._declaration.what_changed)
            return self._trial.look()
        if not self._checking.done():
            return None
        changed, self._checking = self._checking.result(), None
        if changed is None or changed.fingerprint is None or not self._tried:
            self._trial.note(None)
            return Order(changed.words) if changed else None
        self._trial.note(changed.fingerprint)
        return None


class _Trial:
    """A changed declaration while another process tries it, and after it was refused."""

    def __init__(self, home: FlowHome) -> None:
        self._home, self._fingerprint = home, ""
        self._reported: Change | None = None
        self._skip = 0

    def note(self, fingerprint: str | None) -> None:
        """Note what the declaration is now; None if it is the one that runs, or cannot be read."""
        if fingerprint and fingerprint != self._fingerprint:
            say(f"The declaration of {self._home.full_name} changed, and is tried; this driver goes on.")
        self._fingerprint, self._reported, self._skip = fingerprint or "", None, 0

    def look(self) -> Order | None:
        """Return an order once the driver that tried the change waits for this one's end."""
        if not self._fingerprint or self._skip:
            self._skip = max(0, self._skip - 1)
            return None
        current_change = change.read(self._home, self._fingerprint)
        if current_change is None:
            return None
        if current_change.state is ChangeState.READY:
            return Order(current_change.in_words())
        if current_change != self._reported:
            say(current_change.in_words())
        self._reported, self._skip = current_change, _BETWEEN_LOOKS
        return None
