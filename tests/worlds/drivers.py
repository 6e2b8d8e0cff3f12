"""Drivers that are killed between two commits, or come back late."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import StreamkeeperError
from tests.killing import dying
from tests.worlds.flow_world import Driver, Flowbed, heartbeat

SLOW = """.where(F.expr('''CASE WHEN n >= 1000
    THEN length(coalesce(reflect('java.lang.Thread', 'sleep', bigint(4000)), 'slept')) > 0
    ELSE true END'''))"""
"""Events from number 1000 on take four seconds each: time enough to catch a batch in its middle."""


def batch_of(bed: Flowbed) -> int | None:
    found = heartbeat(bed)
    return found.batch if found else None


def kill_after_the_sinks_commit(
    bed: Flowbed,
    driver: Driver,
    arrive: Callable[[int], object] | None = None,
    commits: Callable[[], object] | None = None,
) -> None:
    """Stop the driver when a commit appears in the sink; kill it if the checkpoint has not its own yet, else
    go on and try again.

    :param arrive: puts an event into the flow's source; a file of it by default.
    :param commits: gives another value once there is a commit; the version of the flow's table by default.
    """
    seen = commits or partial(delta_log.latest_version, str(bed.table))
    for attempt in range(30):
        before = seen()
        (arrive or bed.arrive)(100 + attempt)
        deadline = time.monotonic() + 60
        while seen() == before:
            assert time.monotonic() < deadline, driver.said()[-3000:]
        driver.signal(signal.SIGSTOP)
        committed = bed.checkpoint(1).last_commit()
        if committed != bed.checkpoint(1).offset_batches()[-1]:
            driver.signal(signal.SIGKILL)
            driver.end()
            return
        driver.signal(signal.SIGCONT)
        driver.until(partial(has_said, bed, committed))
    raise AssertionError("30 batches, and none was caught between the two commits")


def has_said(bed: Flowbed, batch: int | None) -> bool:
    """Whether a batch, or one after it, is told of: one without rows may follow at once."""
    said = batch_of(bed)
    return said is not None and (batch is None or said >= batch)


def run_late(bed: Flowbed) -> None:
    """Run generation 1's query once more, as a driver does that was thought gone: no lease, no hold, no look
    at what was decided.
    """
    from streamkeeper_jobs.stream.data_frame import flow_frame
    from streamkeeper_jobs.stream.query import writer_of

    frame = flow_frame(bed.spark, bed.flow(), {})
    writer_of(frame, "late", bed.checkpoint(1).path(), None).format("delta").start(
        str(bed.table)
    ).awaitTermination()


def cut_off(target: Any, name: str, at: int, patch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Let a batch end in the n-th call of a function: what a killed driver leaves behind, for one that goes
    on in this process.
    """
    dying(target, name, at, patch, after=after, end=lambda: StreamkeeperError("cut off"))
