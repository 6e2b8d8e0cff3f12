"""Crash loops: drivers of a flow that fail repeatedly without a commit in between.

The supervising task writes each failure of a driver into one file beside the flow's checkpoint, with the
flow's position. The task itself cannot count: a try knows nothing of the one before, and a driver that cannot
even take its lease leaves no trace. A committed batch resets the count.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace

from streamkeeper.flows.files import FlowHome
from streamkeeper.observe.observed import Observed
from streamkeeper.storage import read_record, to_json
from streamkeeper.support.times import in_iso
from streamkeeper.watch.progress import position as position_of

FAILURES = 5
"""Failures without a committed batch in between …"""
WINDOW = 30 * 60.0
"""… that are a crash loop if they come within that many seconds."""


@dataclass(frozen=True)
class Failures:
    """Failures of a flow's drivers at one position.

    ``position`` is generation and last committed batch. ``since`` is the time of the first failure, and
    ``times`` are those of the newest ones, oldest first, in seconds since the epoch by the supervising task's
    clock. ``looping`` is whether it is a crash loop. It stays one until a batch is committed, or a whole
    :data:`WINDOW` passes without a failure.
    """

    position: str
    since: float
    times: tuple[float, ...]
    looping: bool = False

    @property
    def occasion(self) -> str:
        """Identifier of this series of failures, for an alert that is sent once."""
        return f"{self.position}, since {in_iso(self.since)}"


def note(home: FlowHome, now: float | None = None) -> Failures:
    """Record a failure of the flow's driver now; return all failures that count.

    :raises StorageError: the state folder cannot be read or written.
    """
    moment = time.time() if now is None else now
    before, position = read(home), str(position_of(Observed(home)))
    recent = (
        [failed_at for failed_at in before.times if moment - failed_at <= WINDOW]
        if before and before.position == position
        else []
    )
    if before is None or not recent:
        failures = Failures(position, moment, (moment,))
    else:
        times = (*recent, moment)[-FAILURES:]
        failures = replace(before, times=times, looping=before.looping or len(times) >= FAILURES)
    home.storage.overwrite(home.failures, to_json(asdict(failures)))
    return failures


def since_commit(observed: Observed) -> Failures | None:
    """Return the recorded failures that came after the last committed batch, at most :data:`FAILURES`; None
    if there is none.

    :raises StorageError: a file of the flow is damaged.
    """
    failures = read(observed.home)
    return None if failures is None or failures.position != str(position_of(observed)) else failures


def read(home: FlowHome) -> Failures | None:
    """Read the recorded failures; None if there never was one.

    :raises StorageError: the file is damaged.
    """
    way = "Remove it; the supervising task writes it again."
    return read_record(home.storage, home.failures, Failures, "a list of failures", way)
