"""Drivers of a rehearsal: real ones, in processes of their own, that know nothing but the copy.

One reads what there is, until its bounds are reached. Then a hold in the copy's state folder lets it end its
batch. It is supervised: if the rehearsal is killed, it stops by itself.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.drivers import submit, supervision
from streamkeeper.errors import RecoveryError
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.plans.rehearsal import DriverEvidence
from streamkeeper.settings import Settings
from streamkeeper_jobs.trial.trial import Bounds

OWNER = "rehearsal"
AT_BOUNDS, ALL_READ = "at its bounds", "all input read"
_LOOK = 0.5
_PATIENCE = 120.0
"""Seconds for a driver to end its batch after its bounds; then it is killed."""


def run_driver(
    settings: Settings, flow: Flow, bounds: Bounds, check_stop: Callable[[], None]
) -> DriverEvidence:
    """Run a flow's driver until it has read all there is, or its bounds are reached.

    :param settings: those of the copy.
    :raises RecoveryError: it was parked, or failed otherwise.
    """
    home = open_home(settings, flow.full_name)
    job = submit.driver(settings, [flow], available_now=True)
    since, is_held = time.time(), False
    with subprocess.Popen(
        job.command(),
        env={**job.environment, submit.SUPERVISED_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
        stdout=sys.stdout,
        start_new_session=True,
    ) as driver:
        try:
            for count in itertools.count():
                if driver.poll() is not None:
                    break
                check_stop()
                supervision.beat(home, count, OWNER)
                if not is_held and bounds.are_reached(lambda: _has_read(home)):
                    holds.put(home, holds.person(OWNER), "the rehearsal has read enough", OWNER)
                    is_held = True
                if is_held and time.monotonic() >= bounds.began + bounds.seconds + _PATIENCE:
                    break
                time.sleep(_LOOK)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
        code = driver.wait()
    seconds = time.monotonic() - bounds.began
    if is_held:
        holds.release(home, holds.person(OWNER))
    _check(home, code, is_held)
    ended = "killed in its batch" if code < 0 else AT_BOUNDS if is_held else ALL_READ
    return evidence_of(home, flow.full_name, ended, seconds, since)


def _check(home: FlowHome, code: int, is_held: bool) -> None:
    park = holds.parked(home)
    if park is not None:
        raise RecoveryError(f"On the copy, {home.full_name} was parked: {park.reason}")
    if code not in (Outcome.STOPPED, Outcome.HELD) and not (is_held and code == -signal.SIGKILL):
        raise RecoveryError(
            f"On the copy, the driver of {home.full_name} ended with {described(code)}. See its output"
            " above, and rehearse again."
        )


def _has_read(home: FlowHome) -> bool:
    beat = leases.present_heartbeat(home)
    return beat is not None and beat.phase == "running" and beat.rows > 0 and beat.batch is not None


def evidence_of(home: FlowHome, name: str, ended: str, seconds: float, since: float) -> DriverEvidence:
    """Return what a driver did that ran for some seconds, since a moment.

    :param name: the flow's full name for people; a recovery's own flow has another home.
    """
    beat, newest = leases.present_heartbeat(home), generations.latest(home)
    assert newest is not None, "a driver that ran well has a generation"
    start = generations.read_start(home, newest.number)
    checkpoint = Checkpoint(home.storage, start.checkpoint) if start is not None else None
    durations = _durations(checkpoint, since) if checkpoint is not None else []
    return DriverEvidence(
        flow=name,
        ended=ended,
        whole=ended == ALL_READ,
        generation=newest.number,
        rows=beat.rows if beat is not None else 0,
        batches=len(durations),
        seconds=round(seconds, 1),
        slowest=round(max(durations, default=0.0), 1),
        state_bytes=sum(checkpoint.storage.sizes(checkpoint.name("state")).values()) if checkpoint else 0,
    )


def _durations(checkpoint: Checkpoint, since: float) -> list[float]:
    """Return the seconds of the batches that were planned since a moment and committed, by the logs."""
    durations = []
    for batch in sorted({*checkpoint.commit_batches()} & {*checkpoint.offset_batches()}):
        planned = checkpoint.offsets(batch).timestamp_ms / 1000
        ended = checkpoint.storage.modified(checkpoint.name(f"commits/{batch}"))
        if planned >= since and ended is not None:
            durations.append(max(0.0, ended - planned))
    return durations
