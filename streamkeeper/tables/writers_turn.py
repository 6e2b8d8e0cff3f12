"""Writers' turn on a table: flows that write one table by AUTO CDC take turns, one batch each.

Turns are numbered like leases. The flow that creates the next file, if absent, has the turn; the highest
number counts until it is given back. So a turn that another flow got meanwhile is never taken or given back
by mistake. Files before the last two are removed.

A holder that is proven gone is displaced at once. One without proof may still have a batch under way that
knows nothing of the next holder's deletes. It is first sealed out of the table for good
(docs/decisions/0013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, TableTurns
from streamkeeper.flows.leases import Process, Silence
from streamkeeper.storage import read_record, to_json

POLL = 0.1
"""Seconds between two checks of a turn that another flow has. A flow that gives it back takes longer to plan
its next batch, so no flow waits forever.
"""
TELL_AFTER = 30.0
"""Seconds of waiting after which the holder is reported."""


@dataclass(frozen=True)
class Holder:
    """Holder of a turn: a flow's driver, with its lease's epoch and its processes.

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
    """Answers about a holder that has not given its turn back; they need no waiting."""

    PROVEN = "gone: its driver left, or both its processes are dead"
    NO = "there: one of its processes is alive"
    UNKNOWN = "on another host or boot: only its heartbeat can tell"


class WritersTurn:
    """A flow's access to the turn on its table; calling it returns a context in which the flow has the turn.

    :param check: called when the turn was taken, and again before it is given back; raises if the flow may
        not write any more.
    :param shut_out: called with a holder that was silent for ``term`` seconds and is not proven gone. When it
        returns, any later write of that holder is refused.
    :param wait: waits for a number of seconds; raises to end the wait.
    :param say: called with the holder if the wait takes long.
    """

    def __init__(
        self,
        turns: TableTurns,
        me: Holder,
        term: float,
        *,
        check: Callable[[], None],
        shut_out: Callable[[Holder], None],
        wait: Callable[[float], object],
        say: Callable[[str], None] = lambda words: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._turns, self._me, self._term = turns, me, term
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
                # A batch that was sealed out may end in an error of the table's; the check names the cause.
                self._check()
        finally:
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        self._turns.storage.create(self._turns.back(number), b"{}\n")

    def _take(self) -> int:
        self._asked = self._monotonic()
        while True:
            numbers = self._turns.numbers()
            newest = numbers[-1] if numbers else 0
            holder = read(self._turns, newest)
            if holder is not None and _same(holder, self._me):
                self._give_back(newest)  # an earlier attempt failed in the storage
            elif holder is None or self._may_displace(newest, holder):
                if self._create(newest):
                    return newest + 1
            else:
                self._tell(newest, holder)
                self._wait(POLL)

    def _create(self, before: int) -> bool:
        """Create the next turn; return whether it is really the next."""
        number = before + 1
        if not self._turns.storage.create(self._turns.turn(number), to_json(asdict(self._me))):
            return False
        # A slow process may create a number that existed and was removed. Then the one before it was removed,
        # too: numbers go lowest first, and only when there are two higher ones.
        numbers = self._turns.numbers()
        if numbers[-1] != number or (before and before not in numbers):
            self._turns.storage.remove(self._turns.turn(number))
            return False
        for old in numbers:
            if old < before:
                self._turns.storage.remove(self._turns.turn(old))
                self._turns.storage.remove(self._turns.back(old))
        return True

    def _may_displace(self, number: int, holder: Holder) -> bool:
        """Return whether a turn that was not given back is free now. That of a silent holder is, once the
        holder is sealed out.
        """
        match gone(self._turns, holder):
            case Gone.PROVEN:
                return True
            case Gone.NO:
                return False
            case Gone.UNKNOWN:
                return self._is_silent(number, holder) and self._without(holder)

    def _is_silent(self, number: int, holder: Holder) -> bool:
        """Return whether a holder's heartbeat has not changed for the term."""
        if self._watched is None or self._watched[0] != number:
            home = _home(self._turns, holder)
            self._watched = number, Silence(home, holder.epoch, self._term, self._monotonic)
        return self._watched[1].lasts()

    def _tell(self, number: int, holder: Holder) -> None:
        if self._told != number and self._monotonic() - self._asked >= TELL_AFTER:
            self._told = number
            self._say(
                f"The flow {self._me.flow} waits for its turn on {self._turns.table}, which"
                f" {describe(holder)} has."
            )

    def _without(self, holder: Holder) -> bool:
        if holder.query_id is not None:
            self._shut_out(holder)
        return True


def read(turns: TableTurns, number: int) -> Holder | None:
    """Return the holder of a turn; None if it was given back, or there is none.

    :raises StorageError: its file is damaged.
    """
    way = f"Check that no flow that writes {turns.table} runs, and remove {turns.root}."
    holder = read_record(turns.storage, turns.turn(number), Holder, "a writers' turn", way)
    return None if turns.storage.read(turns.back(number)) is not None else holder


def gone(turns: TableTurns, holder: Holder) -> Gone:
    """Return what is known of a holder without waiting."""
    home = _home(turns, holder)
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
    """Return the holder of a turn as text."""
    return (
        f"the flow {holder.flow} (epoch {holder.epoch}, pid {holder.process.pid} on {holder.process.host},"
        f" since {holder.at})"
    )


def _same(holder: Holder, me: Holder) -> bool:
    return (holder.flow, holder.epoch, holder.process) == (me.flow, me.epoch, me.process)


def _home(turns: TableTurns, holder: Holder) -> FlowHome:
    return FlowHome(turns.storage, turns.pipeline, holder.flow)
