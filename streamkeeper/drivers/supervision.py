"""Heartbeat of the task that supervises a flow's driver, and the driver's check of it.

The task overwrites one file with a changing count. A supervised driver (``submit.SUPERVISED_VARIABLE``) stops
by itself when that file does not change for too long *by the driver's own monotonic clock*. Clocks of two
machines are never compared. A task that is late, retried or moved to another machine restarts the wait with
its first beat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from streamkeeper.drivers.submit import SUPERVISED_VARIABLE
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import read_record, to_json
from streamkeeper.support.times import now


@dataclass(frozen=True)
class Supervisor:
    """One beat of a supervising task: ``count`` changes with every beat; ``by`` names the task and its try,
    for people. ``shown`` is up to where each output of the driver is in the task's log, by its location:
    whoever takes over the watch goes on there.
    """

    count: int
    by: str
    at: str
    shown: dict[str, int] = field(default_factory=dict)


def beat(home: FlowHome, count: int, by: str, shown: Mapping[str, int] | None = None) -> None:
    """Write a beat of the flow's supervisor. It counts if anything in it has changed."""
    home.storage.overwrite(home.supervisor, to_json(asdict(Supervisor(count, by, now(), dict(shown or {})))))


def read(home: FlowHome) -> Supervisor | None:
    """Read the last beat; None if there never was one.

    :raises StorageError: the file is damaged.
    """
    way = "Remove it; the supervising task writes it again."
    return read_record(home.storage, home.supervisor, Supervisor, "a supervisor's heartbeat", way)


class Absence:
    """Measurement of a supervisor's silence, for one driver.

    :param timeout: seconds of silence after which the driver counts as unsupervised.
    """

    def __init__(
        self, home: FlowHome, timeout: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._timeout, self._monotonic = home, timeout, monotonic
        self._between = timeout / 12
        self._looked, self._silent = monotonic(), 0.0
        self._last = home.storage.read(home.supervisor)

    def look(self) -> str | None:
        """Return as text that the driver is unsupervised, or None; reads at most 12 times in the timeout."""
        passed = self._monotonic() - self._looked
        if passed < self._between:
            return None
        self._looked += passed
        newest = self._home.storage.read(self._home.supervisor)
        if newest != self._last:
            self._last, self._silent = newest, 0.0
            return None
        # Only time in which the driver looked counts: a machine that slept, with driver and supervisor on it,
        # must not stop the driver.
        self._silent += min(passed, 2 * self._between)
        if self._silent < self._timeout:
            return None
        return (
            f"no task has supervised it for {self._silent:.0f} s (STREAMKEEPER_SUPERVISOR_TIMEOUT is"
            f" {self._timeout:g} s); the next try of its task starts it again"
        )


def absence(home: FlowHome, timeout: float) -> Absence | None:
    """Return the measurement of the supervisor's silence for a supervised driver; None for any other."""
    return Absence(home, timeout) if os.environ.get(SUPERVISED_VARIABLE) == "1" else None
