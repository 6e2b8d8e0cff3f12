"""Runs a flow that a recovery has derived from a declared one, in the process of the recovery's step.

No DAG watches it. It has a lease, a heartbeat and a checkpoint of its own: a step that was killed continues,
and never runs twice at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from streamkeeper.errors import LeaseHeld
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.driver.driver import DriverRequest, drive, present_generation
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.declaration_watch import Declaration
from streamkeeper_jobs.stream.watch import Watch

Tell = Callable[[dict[str, int]], None]
"""Receives a flow's progress: ``batch``, the last in the table, and ``rows``, read by this run."""
TELL_SECONDS = 10.0
FOR_NOW = (Outcome.FAILED, Outcome.RESTART)
"""Outcomes after which another run may continue by itself."""
RETRY_SECONDS = (1.0, 10.0, 60.0)
"""Seconds before each further try of a flow whose failure may pass."""
GONE_SECONDS = 24 * 3600.0
"""Seconds that the driver of an earlier run may take to end its batch."""


@dataclass(frozen=True)
class Ended:
    """How a run of a flow ended.

    ``reason`` says why it stopped before it had read all available data, None if it read all. ``batch`` is
    its last.
    """

    outcome: Outcome
    reason: str | None
    batch: int | None


def drive_derived_flow(
    settings: Settings,
    home: FlowHome,
    flow: Flow,
    tell: Tell,
    session: Callable[[Flow], SparkSession],
    *,
    check_stop: Callable[[], None],
) -> Ended:
    """Run a flow until it has read all available data; repeat after failures that may pass, as a DAG would.

    A park or a lease that an earlier run left behind does not prevent it.

    :param check_stop: called before each try after the first; it may raise.
    """
    for seconds in (*RETRY_SECONDS, None):
        ended = _drive(settings, home, flow, tell, session)
        if ended.outcome not in FOR_NOW or seconds is None:
            break
        check_stop()
        say(f"{home.full_name} is tried again in {seconds:g} s: {ended.reason}.")
        time.sleep(seconds)
        check_stop()
    return ended


def _drive(
    settings: Settings, home: FlowHome, flow: Flow, tell: Tell, session: Callable[[Flow], SparkSession]
) -> Ended:
    holds.release(home, holds.PARK)
    lease = _lease(home, settings)
    declaration = _Settled(settings, home.full_name)
    declaration.fingerprint = flow.fingerprint
    watch = _Telling(home, lease, settings, declaration, tell)
    outcome = drive(DriverRequest(settings, home, declaration, True, flow), lease, watch, session)
    order, park = watch.order(), holds.parked(home)
    reason = None
    if park is not None:
        reason = park.reason
    elif order is not None:
        reason = order.words
    elif outcome not in (Outcome.DONE, Outcome.STOPPED):
        reason = f"it ended ({outcome.words})"
    return Ended(outcome, reason, watch.heartbeat.batch)


def _lease(home: FlowHome, settings: Settings) -> Lease:
    """Take the lease of a derived flow, after the driver of an interrupted run has ended its batch."""
    try:
        return leases.acquire(home, present_generation(home), settings.lease_term)
    except LeaseHeld as error:
        say(f"{error} Waiting for it.")
        leases.wait_until_gone(home, GONE_SECONDS, settings.lease_term)
        return leases.acquire(home, present_generation(home), settings.lease_term)


class _Settled(Declaration):
    """A declaration that is not read again: a derived flow ends as it was planned."""

    def files_changed(self) -> bool:
        return False


class _Telling(Watch):
    """A watch that also reports the flow's progress to the ledger from time to time."""

    def __init__(
        self, home: FlowHome, lease: Lease, settings: Settings, declaration: Declaration, tell: Tell
    ) -> None:
        super().__init__(home, lease, settings.heartbeat_interval, declaration, term=settings.lease_term)
        self._tell, self._at, self._batch = tell, float("-inf"), -1

    def tell(self, **changes: object) -> None:
        super().tell(**changes)
        heartbeat = self.heartbeat
        if (
            heartbeat.batch is None
            or heartbeat.batch == self._batch
            or time.monotonic() - self._at < TELL_SECONDS
        ):
            return
        self._at, self._batch = time.monotonic(), heartbeat.batch
        self._tell({"batch": heartbeat.batch, "rows": heartbeat.rows})
