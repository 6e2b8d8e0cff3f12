"""The writers' turn on a table: flows that write one table by AUTO CDC take turns, one batch each.

Turns are numbered, as leases are: whoever creates the next file, if absent, has the turn, and the highest
number holds until it is given back. So a turn that somebody else was given meanwhile is never taken or given
back by mistake. Files before the last two are removed.

A holder that is proven gone is displaced at once. One that cannot be proven gone may still have a batch under
way, which knows nothing of the deletes of the next holder: it is first shut out of the table for good
(docs/decisions/0013).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum

from streamkeeper.errors import StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, TableTurns
from streamkeeper.flows.leases import Process
from streamkeeper.storage import read_json, to_json

POLL = 0.1
"""Seconds between two looks at a turn that somebody else has. A flow that gives it back plans its next batch
before it asks again, which takes longer: so nobody waits for ever.
"""
TELL_AFTER = 30.0
"""Seconds of waiting after which it is said whom for."""


@dataclass(frozen=True)
class Holder:
    """Who has a turn: a flow's driver, by its lease's epoch and its processes.

    ``process`` is the driver's own and ``jvm`` the one that commits to the table, None where it cannot be
    seen. ``query_id`` is that of the generation that writes; None where nothing is written but the table
    itself is made, which Delta alone keeps in order.
    """

    flow: str
    epoch: int
    generation: int
    query_id: str | None
    process: Process
    jvm: Process | None
    at: str


class Gone(Enum):
    """What can be said at once of a holder that has not given its turn back."""

    PROVEN = "gone: its driver left, or both its processes are dead"
    NO = "there: one of its processes is alive"
    UNKNOWN = "on another host or boot: only its heartbeat can tell"


class WritersTurn:
    """One flow's way to the turn on its table; call it for a context in which the flow has it.

    :param check: called when the turn was got, and again before it is given back; raises where the flow may
        not write any more.
    :param shut_out: called with a holder that was silent for ``term`` seconds and is not proven gone; it
        returns once whatever that holder still sends will be refused.
    :param wait: waits so many seconds; raises where the waiting is to end.
    :param say: told whom is waited for, where that takes long.
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
        self._watched: tuple[int, object] | None = None
        self._since = self._asked = 0.0
        self._told: int | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        number = self._take()
        try:
            self._check()
            try:
                yield
            finally:
                # A batch that was shut out may end in an error of the table's: it is told as what it is.
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
                self._give_back(newest)  # it was meant to be, and the storage refused
            elif holder is None or self._may_displace(newest, holder):
                if self._create(newest):
                    return newest + 1
            else:
                self._tell(newest, holder)
                self._wait(POLL)

    def _create(self, before: int) -> bool:
        """Create the next turn; give whether it is really the next.

        Who was slow may create a number that was there already and is removed by now. Then the one before it
        was removed, too: numbers go lowest first, and only when two higher ones are there.
        """
        number = before + 1
        if not self._turns.storage.create(self._turns.turn(number), to_json(asdict(self._me))):
            return False
        there = self._turns.numbers()
        if there[-1] != number or (before and before not in there):
            self._turns.storage.remove(self._turns.turn(number))
            return False
        for old in there:
            if old < before:
                self._turns.storage.remove(self._turns.turn(old))
                self._turns.storage.remove(self._turns.back(old))
        return True

    def _may_displace(self, number: int, holder: Holder) -> bool:
        """Say whether a turn that was not given back is free now; one of a silent holder is, once that was
        shut out.
        """
        match gone(self._turns, holder):
            case Gone.PROVEN:
                return True
            case Gone.NO:
                return False
            case Gone.UNKNOWN:
                return self._is_silent(number, holder) and self._without(holder)

    def _is_silent(self, number: int, holder: Holder) -> bool:
        """Say whether a holder's heart has not beaten for the term, by this process's own clock."""
        beat = leases.read_heartbeat(_home(self._turns, holder), holder.epoch)
        seen = (number, beat.count if beat else None)
        if seen != self._watched:
            self._watched, self._since = seen, self._monotonic()
        return self._monotonic() - self._since >= self._term

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
    """Give who has a turn; None if it was given back, or there is none.

    :raises StorageError: its file is damaged.
    """
    value = read_json(turns.storage, turns.turn(number))
    if value is None or turns.storage.read(turns.back(number)) is not None:
        return None
    try:
        jvm = Process(**value["jvm"]) if value["jvm"] else None
        return Holder(**{**value, "process": Process(**value["process"]), "jvm": jvm})
    except (TypeError, KeyError) as error:
        path = turns.storage.path(turns.turn(number))
        raise StorageError(
            f"{path} is no writers' turn: {error}. Make sure that no flow that writes {turns.table} runs, and"
            f" remove {turns.root}."
        ) from error


def gone(turns: TableTurns, holder: Holder) -> Gone:
    """Say what can be said of a holder at once, without waiting.

    A driver's own process may be dead while its JVM still ends a commit: only both together are proof.
    """
    home = _home(turns, holder)
    if home.storage.read(home.left(holder.epoch)) is not None:
        return Gone.PROVEN
    running = [
        None if process is None else leases.is_running(process) for process in (holder.process, holder.jvm)
    ]
    if any(running):
        return Gone.NO
    return Gone.UNKNOWN if None in running else Gone.PROVEN


def describe(holder: Holder) -> str:
    """Say in words who has a turn."""
    return (
        f"the flow {holder.flow} (epoch {holder.epoch}, pid {holder.process.pid} on {holder.process.host},"
        f" since {holder.at})"
    )


def _same(holder: Holder, me: Holder) -> bool:
    return (holder.flow, holder.epoch, holder.process) == (me.flow, me.epoch, me.process)


def _home(turns: TableTurns, holder: Holder) -> FlowHome:
    return FlowHome(turns.storage, turns.pipeline, holder.flow)
