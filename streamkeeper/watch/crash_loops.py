"""Crash loops: drivers of a flow that fail repeatedly without a commit in between.

The supervising task writes each failure of a driver into one file beside the flow's checkpoint, with the
flow's position. The task itself cannot count: a try knows nothing of the one before, and a driver that cannot
even take its lease leaves no trace. A committed batch resets the count. Each driver counts once, however many
tries of the task saw it end.
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
    :data:`WINDOW` passes without a failure. ``epoch`` is the newest lease epoch whose driver counted.
    """

    position: str
    since: float
    times: tuple[float, ...]
    looping: bool = False
    epoch: int = 0

    @property
    def occasion(self) -> str:
        """Identifier of this series of failures, for an alert that is sent once."""
        return f"{self.position}, since {in_iso(self.since)}"


def note(home: FlowHome, now: float | None = None, *, epoch: int | None = None) -> Failures:
    """Record a failure of the flow's driver now; return all failures that count.

    :param epoch: the driver's lease epoch; None if it never took the lease. Two tries may watch one driver,
        and a task that is resumed twice judges it twice: who comes second counts nothing.
    :raises StorageError: the state folder cannot be read or written.
    """
    moment = time.time() if now is None else now
    before = read(home)
    counted_epoch = 0 if before is None else before.epoch
    if before is not None and epoch is not None and epoch <= counted_epoch:
        return before
    position, newest = str(position_of(Observed(home))), max(counted_epoch, epoch or 0)
    recent = (
        [failed_at for failed_at in before.times if moment - failed_at <= WINDOW]
        if before and before.position == position
        else []
    )
    if before is None or not recent:
        failures = Failures(position, moment, (moment,), epoch=newest)
    else:
        times, looping = (*recent, moment)[-FAILURES:], before.looping or len(recent) + 1 >= FAILURES
        failures = replace(before, times=times, looping=looping, epoch=newest)
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
