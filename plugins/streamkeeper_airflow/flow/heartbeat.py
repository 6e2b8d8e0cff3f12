"""Saying, while a task follows a driver, that somebody watches it: a driver that nobody watches stops by
itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow.sdk import Context

from streamkeeper.drivers import supervision
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome

LONGEST_INTERVAL = 10.0
"""Seconds between two beats, at most."""
SHARE = 12
"""Beats in the time after which a driver stops that heard none: as often as it looks
(:class:`streamkeeper.drivers.supervision.Absence`).
"""


def interval(timeout: float) -> float:
    """Give the seconds between two beats for ``settings.supervisor_timeout``."""
    return min(LONGEST_INTERVAL, timeout / SHARE)


class Heart:
    """Beats for the drivers of some flows, whenever it is asked to and the last beat is old enough.

    It has no thread of its own on purpose: a task that hangs must not look as if it watched.

    :param timeout: ``settings.supervisor_timeout``, seconds.
    :param by: the task and its try, for people.
    :param warn: told that a beat could not be written. The driver has the same trouble with the storage, or
        outlasts it.
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

    def beat(self) -> None:
        """Beat if the last one is an interval ago."""
        now = self._monotonic()
        if now - self._last < self._interval:
            return
        self._last, self._count = now, self._count + 1
        for home in self._homes:
            try:
                supervision.beat(home, self._count, self._by)
            except StorageError as error:
                self._warn(
                    f"The supervisor's heartbeat of {home.full_name} was not written: {error} It is tried"
                    " again."
                )


def name_of(context: Context) -> str:
    """Name a task's try: DAG, run, task and number."""
    ti = context["ti"]
    return f"{ti.dag_id} {ti.run_id} {ti.task_id}, try {ti.try_number}"
