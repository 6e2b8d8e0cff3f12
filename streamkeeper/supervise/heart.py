"""The heartbeat of a driver's supervisor, its task or the triggerer; a driver without one stops by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from streamkeeper.drivers import supervision
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome

LONGEST_INTERVAL = 20.0
"""Seconds between two heartbeats, at most. Lines of the driver that were shown since the last one are shown
again by whoever takes over the watch.
"""
SHARE = 12
"""Heartbeats within the time after which an unsupervised driver stops.

The driver checks as often (:class:`streamkeeper.drivers.supervision.Absence`).
"""


def interval(timeout: float) -> float:
    """Return the seconds between two heartbeats for ``settings.supervisor_timeout``."""
    return min(LONGEST_INTERVAL, timeout / SHARE)


class Heart:
    """Sends heartbeats for the drivers of some flows, when called and the last one is old enough.

    It has no thread of its own on purpose: a task that hangs must not look alive. ``shown`` is sent along
    (:class:`streamkeeper.drivers.supervision.Supervisor`).

    :param timeout: ``settings.supervisor_timeout``, seconds.
    :param by: the task and its try, for people.
    :param warn: called if a heartbeat could not be written. The driver has the same trouble with the storage,
        or outlasts it.
    """

    def __init__(
        self,
        homes: Sequence[FlowHome],
        timeout: float,
        by: str,
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._homes, self._by, self._warn, self._monotonic = homes, by, warn, monotonic
        self._interval, self._count, self._last = interval(timeout), 0, -float("inf")
        self.shown: dict[str, int] = {}

    def go_on(self) -> None:
        """Go on from the last heartbeat if the same try of the task sent it, here or from elsewhere: with its
        count, and from where it had shown the driver's lines.
        """
        with suppress(StorageError):
            last = supervision.read(self._homes[0])
            if last is not None and last.by == self._by:
                self._count, self.shown = last.count, dict(last.shown)

    def beat(self, *, at_once: bool = False) -> None:
        """Send a heartbeat if the last is an interval old, or ``at_once``: before the watch changes hands."""
        now = self._monotonic()
        if now - self._last < self._interval and not at_once:
            return
        self._last, self._count = now, self._count + 1
        for home in self._homes:
            try:
                supervision.beat(home, self._count, self._by, self.shown)
            except StorageError as error:
                self._warn(
                    f"The supervisor's heartbeat of {home.full_name} was not written: {error} The next one"
                    " is due soon."
                )
