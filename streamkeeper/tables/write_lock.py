"""Write lock of a table: flows that write one table by AUTO CDC hold it in lock, for one batch each.

Locks are numbered like leases. The flow that creates the next file, if absent, holds the lock; the highest
number counts until it is released. So a lock that another flow got meanwhile is never taken or released
by mistake. Files before the last two are removed.

A holder that is proven gone is displaced at once. One without proof may still have a batch under way that
knows nothing of the next holder's deletes. It is first fenced out of the table for good
(docs/decisions/0013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, LockFiles
from streamkeeper.flows.leases import Process, Silence
from streamkeeper.storage import read_record, to_json

POLL = 0.1
"""Seconds between two checks of a lock that another flow has. A flow that releases it takes longer to plan
its next batch, so no flow waits forever.
"""
TELL_AFTER = 30.0
"""Seconds of waiting after which the holder is reported."""


@dataclass(frozen=True)
class Holder:
    """Holder of a lock: a flow's driver, with its lease's epoch and its processes.

    ``process`` is the driver's own and ``jvm`` the one that commits to the table, None if it is not visible.
    ``query_id`` is that of the writing generation. It is None if only the table itself is created, which
    Delta alone serializes.
    """

    flow: str
    epoch: int
    generation: int
    query_id: str | None
    process: Process
    jvm: Process | None
    at: str


class Gone(Enum):
    """Answers about a holder that has not given its lock back; they need no waiting."""

    PROVEN = "gone: its driver left, or both its processes are dead"
    NO = "there: one of its processes is alive"
    UNKNOWN = "on another host or boot: only its heartbeat can tell"


class WriteLock:
    """A flow's access to the lock on its table; calling it returns a context in which the flow holds the
    lock.

    :param check: called when the lock was taken, and again before it is released; raises if the flow may
        not write any more.
    :param shut_out: called with a holder that was silent for ``term`` seconds and is not proven gone. When it
        returns, any later write of that holder is refused.
    :param wait: waits for a number of seconds; raises to end the wait.
    :param say: called with the holder if the wait takes long.
    """

    def __init__(
        self,
        locks: LockFiles,
        me: Holder,
        term: float,
        *,
        check: Callable[[], None],
        shut_out: Callable[[Holder], None],
        wait: Callable[[float], object],
        say: Callable[[str], None] = lambda words: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locks, self._me, self._term = locks, me, term
        self._check, self._shut_out, self._wait, self._say, self._monotonic = (
            check,
            shut_out,
            wait,
            say,
            monotonic,
        )
        self._watched: tuple[int, Silence] | None = None
        self._asked = 0.0
        self._told: int | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        number = self._take()
        try:
            self._check()
            try:
                yield
            finally:
                # A batch that was fenced out may end in an error of the table's; the check names the cause.
                self._check()
        finally:
            self._release(number)

    def _release(self, number: int) -> None:
        self._locks.storage.create(self._locks.released(number), b"{}\n")

    def _take(self) -> int:
        self._asked = self._monotonic()
        while True:
            numbers = self._locks.numbers()
            newest = numbers[-1] if numbers else 0
            holder = read(self._locks, newest)
            if holder is not None and _same(holder, self._me):
                self._release(newest)  # an earlier attempt failed in the storage
            elif holder is None or self._may_displace(newest, holder):
                if self._create(newest):
                    return newest + 1
            else:
                self._tell(newest, holder)
                self._wait(POLL)

    def _create(self, before: int) -> bool:
        """Create the next lock; return whether it is really the next."""
        number = before + 1
        if not self._locks.storage.create(self._locks.lock(number), to_json(asdict(self._me))):
            return False
        # A slow process may create a number that existed and was removed. Then the one before it was removed,
        # too: numbers go lowest first, and only when there are two higher ones.
        numbers = self._locks.numbers()
        if numbers[-1] != number or (before and before not in numbers):
            self._locks.storage.remove(self._locks.lock(number))
            return False
        for old in numbers:
            if old < before:
                self._locks.storage.remove(self._locks.lock(old))
                self._locks.storage.remove(self._locks.released(old))
        return True

    def _may_displace(self, number: int, holder: Holder) -> bool:
        """Return whether an unreleased lock is free: a silent holder's is, once the holder is fenced."""
        match gone(self._locks, holder):
            case Gone.PROVEN:
                return True
            case Gone.NO:
                return False
            case Gone.UNKNOWN:
                return self._is_silent(number, holder) and self._without(holder)

    def _is_silent(self, number: int, holder: Holder) -> bool:
        """Return whether a holder's heartbeat has not changed for the term."""
        if self._watched is None or self._watched[0] != number:
            home = _home(self._locks, holder)
            self._watched = number, Silence(home, holder.epoch, self._term, self._monotonic)
        return self._watched[1].lasts()

    def _tell(self, number: int, holder: Holder) -> None:
        if self._told != number and self._monotonic() - self._asked >= TELL_AFTER:
            self._told = number
            self._say(
                f"The flow {self._me.flow} waits for the write lock of {self._locks.table}, which"
                f" {describe(holder)} has."
            )

    def _without(self, holder: Holder) -> bool:
        if holder.query_id is not None:
            self._shut_out(holder)
        return True


def read(locks: LockFiles, number: int) -> Holder | None:
    """Return the holder of a lock; None if it was released, or there is none.

    :raises StorageError: its file is damaged.
    """
    way = f"Check that no flow that writes {locks.table} runs, and remove {locks.root}."
    holder = read_record(locks.storage, locks.lock(number), Holder, "a write lock", way)
    return None if locks.storage.read(locks.released(number)) is not None else holder


def gone(locks: LockFiles, holder: Holder) -> Gone:
    """Return what is known of a holder without waiting."""
    home = _home(locks, holder)
    if home.storage.read(home.left(holder.epoch)) is not None:
        return Gone.PROVEN
    # A driver's own process may be dead while its JVM still ends a commit: only both together are proof.
    running = [
        None if process is None else leases.is_running(process) for process in (holder.process, holder.jvm)
    ]
    if any(running):
        return Gone.NO
    return Gone.UNKNOWN if None in running else Gone.PROVEN


def describe(holder: Holder) -> str:
    """Return the holder of a lock as text."""
    return (
        f"the flow {holder.flow} (epoch {holder.epoch}, pid {holder.process.pid} on {holder.process.host},"
        f" since {holder.at})"
    )


def _same(holder: Holder, me: Holder) -> bool:
    return (holder.flow, holder.epoch, holder.process) == (me.flow, me.epoch, me.process)


def _home(locks: LockFiles, holder: Holder) -> FlowHome:
    return FlowHome(locks.storage, locks.pipeline, holder.flow)
