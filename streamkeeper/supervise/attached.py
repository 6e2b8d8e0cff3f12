"""A driver that is already alive: found by its flow's lease, and followed by what it writes.

It is no child of the process that follows it, so its exit code is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.clusters import cluster_drivers
from streamkeeper.exit_codes import Outcome, of_all
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease, Life, Process, Silence
from streamkeeper.storage import read_json

LOOK = 1.0
"""Seconds that one call of `wait` waits for a driver's end, at most."""
STORE_LOOK = 5.0
"""Seconds between two reads of the store, at most, for an attached driver whose process is not visible."""
STORE_LOOK_VISIBLE = 15.0
"""The same for one whose process is seen alive: all that the store can tell is that it left, and hangs."""


@dataclass(frozen=True)
class Ending:
    """How a driver ended: its exit code, if this host knows it, and a description."""

    code: int
    description: str


class Attached:
    """A driver that was already alive: its task deferred or was lost, or it was started by hand.

    The ending is derived from what it left behind.

    :param term: seconds without a heartbeat after which a driver on another host counts as gone.
    """

    def __init__(
        self, home: FlowHome, lease: Lease, term: float, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._home, self._lease, self._term = home, lease, term
        self._monotonic = monotonic or time.monotonic
        self._silence, self._ask_at = Silence(home, lease.epoch, term, self._monotonic), self._monotonic()
        self.log: Path | None = Path(lease.log) if lease.log and Path(lease.log).is_file() else None
        self.cluster = lease.cluster
        self._has_begun = False

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
    def epochs(self) -> dict[str, int]:
        """The epoch of the driver's lease, by the flow's full name."""
        return {self._home.full_name: self._lease.epoch}

    def wait(self) -> Ending | None:
        """Wait :data:`LOOK` seconds at most; return the ending, or None while the driver lives."""
        return _wait(self.look)

    def look(self) -> Ending | None:
        """Return the driver's ending if it has ended by now."""
        return self._ending() if self._gone() else None

    def begun(self) -> Attached | None:
        """Return the driver once it has sent a heartbeat, by which anybody can watch it."""
        if not self._has_begun:
            self._has_begun = leases.read_heartbeat(self._home, self._lease.epoch) is not None
        return self if self._has_begun else None

    def _gone(self) -> bool:
        """Check the process at each call; the store now and then only, or if the process is gone."""
        is_running = leases.is_running(self._lease.process)
        if is_running is not False and self._monotonic() < self._ask_at:
            return False
        between = STORE_LOOK_VISIBLE if is_running else STORE_LOOK
        self._ask_at = self._monotonic() + min(between, self._term / 4)
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
        if end_note is None and leases.read(self._home, self._lease.epoch + 1) is not None:
            return Ending(Outcome.LEASE_LOST, "another driver took the lease over")
        if end_note is None:
            return Ending(Outcome.FAILED, "it ended without a reason")
        outcome = Outcome.__members__.get(str(end_note.get("why")).upper(), Outcome.STOPPED)
        return Ending(
            outcome,
            "it ended normally" if outcome is Outcome.STOPPED else f"it left a note: {end_note['why']}",
        )


class AttachedToSharedDriver:
    """A driver of several flows that was already alive. It is gone once it has left, or lost, all of them.

    One of its flows tells whether it lives. The heartbeats of the others are read now and then, so that all
    are known to be silent soon after that one is.
    """

    def __init__(
        self, parts: Sequence[Attached], term: float, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._living, self._endings = list(parts), list[Ending]()
        self._monotonic = monotonic or time.monotonic
        self._between, self._next = term / 2, self._monotonic() + term / 2
        self.epochs = {name: epoch for part in parts for name, epoch in part.epochs.items()}
        self.log: Path | None = next((part.log for part in parts if part.log), None)
        self.cluster = next((part.cluster for part in parts if part.cluster), None)

    def wait(self) -> Ending | None:
        return _wait(self.look)

    def look(self) -> Ending | None:
        """Return the driver's ending if it has ended by now."""
        if self._monotonic() >= self._next:
            self._next = self._monotonic() + self._between
            self._look_at(self._living[1:])
        self._look_at(self._living[:1])
        if self._endings:
            self._look_at(self._living)
        if self._living:
            return None
        code = of_all(Outcome(ending.code) for ending in self._endings)
        return next(ending for ending in self._endings if ending.code == code)

    def begun(self) -> AttachedToSharedDriver | None:
        """Return the driver once it has sent a heartbeat of each of its flows."""
        return self if all(part.begun() for part in self._living) else None

    def _look_at(self, parts: Sequence[Attached]) -> None:
        for part in list(parts):
            ending = part.look()
            if ending is not None:
                self._endings.append(ending)
                self._living.remove(part)


def _wait(look: Callable[[], Ending | None]) -> Ending | None:
    deadline = time.monotonic() + LOOK
    while (ending := look()) is None and time.monotonic() < deadline:
        time.sleep(LOOK / 5)
    return ending


def of_parts(parts: Sequence[Attached], term: float, *, shared: bool) -> Attached | AttachedToSharedDriver:
    """Return the one driver that has the leases of some flows."""
    return AttachedToSharedDriver(parts, term) if shared else parts[0]


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
