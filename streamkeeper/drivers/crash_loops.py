"""Crash loops: drivers of a flow that fail again and again, and commit nothing between.

The supervising task writes each failure of a driver into one file beside the flow's checkpoint, with the
position that the flow had: a try of the task remembers nothing of the one before, and a driver that cannot
even take its lease leaves nothing. A committed batch ends the count.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone

from streamkeeper.drivers.progress import position as position_of
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import read_json, to_json

FAILURES = 5
"""That many failures without a committed batch between them …"""
WINDOW = 30 * 60.0
"""… within that many seconds are a crash loop."""


@dataclass(frozen=True)
class Failures:
    """Failures of a flow's drivers at one position.

    ``position`` is generation and last committed batch. ``since`` is when the first came, and ``times`` are
    the newest, oldest first, in seconds since the epoch by the supervising task's clock. ``looping`` is
    whether it is a crash loop: once it is, it stays one until a batch is committed or a window goes by
    without a failure.
    """

    position: str
    since: float
    times: tuple[float, ...]
    looping: bool = False

    @property
    def occasion(self) -> str:
        """Name this row of failures, for an alert that is told once."""
        return (
            f"{self.position}, since"
            f" {datetime.fromtimestamp(self.since, timezone.utc).isoformat(timespec='seconds')}"
        )


def note(home: FlowHome, now: float | None = None) -> Failures:
    """Write down that a driver of the flow failed just now; give all failures that count.

    :raises StorageError: the state folder cannot be read or written.
    """
    moment = time.time() if now is None else now
    before, position = read(home), str(position_of(home))
    recent = (
        [seen for seen in before.times if moment - seen <= WINDOW]
        if before and before.position == position
        else []
    )
    if before is None or not recent:
        found = Failures(position, moment, (moment,))
    else:
        times = (*recent, moment)[-FAILURES:]
        found = replace(before, times=times, looping=before.looping or len(times) >= FAILURES)
    home.storage.overwrite(home.failures, to_json(asdict(found)))
    return found


def read(home: FlowHome) -> Failures | None:
    """Read the failures that were written down last; None if there never was one.

    :raises StorageError: the file holds something else.
    """
    value = read_json(home.storage, home.failures)
    if value is None:
        return None
    try:
        return Failures(**{**value, "times": tuple(float(seen) for seen in value["times"])})
    except (TypeError, ValueError, KeyError) as error:
        path = home.storage.path(home.failures)
        raise StorageError(
            f"{path} lists no failures: {error}. Remove it; the supervising task writes it anew."
        ) from error
