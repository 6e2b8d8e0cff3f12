"""The heartbeat of the task that watches a flow's driver, and how the driver finds out that nobody does.

The task overwrites one file with a changing count. A driver that was started for a task
(``submit.SUPERVISED_VARIABLE``) stops by itself when that file stays as it is for too long *by the driver's
own monotonic clock*: clocks of two machines are never compared, and a task that is late, retried or moved to
another machine starts the wait anew with its first beat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from streamkeeper.drivers.submit import SUPERVISED_VARIABLE
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import read_json, to_json
from streamkeeper.times import now


@dataclass(frozen=True)
class Supervisor:
    """One beat of a supervising task: ``count`` changes with every beat; ``by`` names the task and its try,
    for people.
    """

    count: int
    by: str
    at: str


def beat(home: FlowHome, count: int, by: str) -> None:
    """Say that somebody watches the flow's driver; any change of ``count`` or ``by`` will do."""
    home.storage.overwrite(home.supervisor, to_json(asdict(Supervisor(count, by, now()))))


def read(home: FlowHome) -> Supervisor | None:
    """Read the last beat; None if there never was one.

    :raises StorageError: the file holds something else.
    """
    value = read_json(home.storage, home.supervisor)
    if value is None:
        return None
    try:
        return Supervisor(**value)
    except TypeError as error:
        path = home.storage.path(home.supervisor)
        raise StorageError(
            f"{path} is no supervisor's heartbeat: {error}. Remove it; the supervising task writes it anew."
        ) from error


class Absence:
    """Measures how long a supervisor has been silent, for one driver.

    Only time in which the driver looked counts, so that a machine that slept, with driver and supervisor on
    it, orphans nobody.

    :param timeout: seconds of silence after which nobody watches any more.
    """

    def __init__(
        self, home: FlowHome, timeout: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._home, self._timeout, self._monotonic = home, timeout, monotonic
        self._between = timeout / 12
        self._looked, self._silent = monotonic(), 0.0
        self._last = home.storage.read(home.supervisor)

    def look(self) -> str | None:
        """Say in words that nobody watches any more, or give None. Reads at most a dozen times in the
        timeout.
        """
        passed = self._monotonic() - self._looked
        if passed < self._between:
            return None
        self._looked += passed
        seen = self._home.storage.read(self._home.supervisor)
        if seen != self._last:
            self._last, self._silent = seen, 0.0
            return None
        self._silent += min(passed, 2 * self._between)
        if self._silent < self._timeout:
            return None
        return (
            f"no task has watched it for {self._silent:.0f} s (STREAMKEEPER_SUPERVISOR_TIMEOUT is"
            f" {self._timeout:g} s); the next try of its task starts it again"
        )


def absence(home: FlowHome, timeout: float, environment: Mapping[str, str] | None = None) -> Absence | None:
    """Give what measures the supervisor's silence, for a driver that was started for one; None for any
    other.
    """
    env = os.environ if environment is None else environment
    return Absence(home, timeout) if env.get(SUPERVISED_VARIABLE) == "1" else None
