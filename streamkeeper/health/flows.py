"""One row a flow: its state in a word that a person uses, since when, and its numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamkeeper.declare.checkpoint_window import trigger_seconds
from streamkeeper.drivers import failures
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.history.rows import Totals
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.observe import status
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.status import FlowState, FlowStatus
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, one_look, open_storage
from streamkeeper.support.times import in_iso, in_seconds
from streamkeeper.trial import change
from streamkeeper.watch import behind, crash_loops, progress
from streamkeeper.watch.batch_numbers import Batch, Numbers, told_by
from streamkeeper.watch.behind import Behind
from streamkeeper.watch.crash_loops import Failures

IDLE, SLOW, RETRYING, UNREADABLE = "idle", "slow", "retrying", "unreadable"
"""States beyond those of :class:`streamkeeper.observe.status.FlowState`.

*Idle* runs and found nothing to read, *slow* takes longer for a batch than its trigger allows,
*retrying* has no driver now, and a task that starts one.
"""
STATES = (*map(str, FlowState), IDLE, SLOW, RETRYING, UNREADABLE)
_ENDED = (FlowState.DOWN, FlowState.STOPPED, FlowState.DONE, RETRYING)
"""States of flows without a driver, which nothing holds."""
_FAILS = (FlowState.DOWN, FlowState.STARTING, RETRYING)
"""States between which a flow goes to and fro while its drivers fail."""


@dataclass(frozen=True)
class FlowHealth:
    """How a flow does.

    ``since`` is when it came into its state: its hold, the end of its last driver, or the start of its
    present one; for one that catches up, since when input waits, and for one whose drivers fail, the first
    failure. ``age`` is the seconds since its last
    commit. ``batch_numbers`` are those of the last batch of its present or last driver, ``totals`` that
    driver's. ``waiting_since`` is when the monitor first found input that waits, in seconds since 1970; None
    if it found none.
    ``last_recovery`` is why its generation began, empty for the first. ``lag`` is how far it is behind, as
    the monitor measured it; None if it never did, or the flow is done. ``driver_since`` is when its present
    or last driver took the lease, in seconds since 1970, ``failures`` how many drivers failed since the last
    commit, 5 at most.
    """

    flow: str
    pipeline: str
    table: str
    dag_id: str
    trigger: str
    state: str
    detail: str
    since: str | None = None
    generation: int | None = None
    batch: int | None = None
    age: float | None = None
    epoch: int | None = None
    batch_numbers: Batch | None = None
    totals: Totals = field(default_factory=Totals)
    waiting_since: float | None = None
    last_recovery: str = ""
    lag: Behind | None = None
    driver_since: float | None = None
    failures: int = 0

    @property
    def rows_per_second(self) -> float | None:
        """Rows that the last batch read for each second that it took; None if there was none."""
        last = self.batch_numbers
        return None if last is None or not last.seconds else last.rows / last.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        lag = None if self.lag is None else self.lag.to_json()
        return {**asdict(self), "rows_per_second": self.rows_per_second, "lag": lag}


Looked = tuple[Manifest, tuple[FlowHealth, ...]]
"""One look: what is declared, and a row for each flow."""


Ask = Callable[[str, Callable[[], FlowHealth]], FlowHealth]
"""Reads the row of a flow, by its full name, and may raise a StreamkeeperError where that takes too long."""


def at_once(_: str, read: Callable[[], FlowHealth]) -> FlowHealth:
    """Return the row of a flow, however long that takes."""
    return read()


def look_now(settings: Settings) -> Looked:
    """Return what is declared, and a row for each flow, however broken, in that order.

    :raises StreamkeeperError: the pipelines or the state folder cannot be read at all.
    """
    manifest = read_manifest(settings)
    return manifest, look_at_all(open_storage(settings.state), manifest)


def look_at_all(
    storage: Storage, manifest: Manifest, names: Collection[str] | None = None, ask: Ask = at_once
) -> tuple[FlowHealth, ...]:
    """Return a row for each declared flow, however broken, in the order of the manifest.

    :param names: full names of the flows to look at; all by default.
    """
    flows = {flow.full_name: flow for flow in manifest.flows() if names is None or flow.full_name in names}

    def row(home: FlowHome) -> FlowHealth:
        flow = flows[home.full_name]
        try:
            return ask(flow.full_name, lambda: look(home, flow))
        except StreamkeeperError as error:
            return _row(flow, UNREADABLE, str(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong in one flow, the others are shown
            return _row(flow, UNREADABLE, f"{type(error).__name__}: {error}")

    return tuple(of_each(storage, list(flows), row))


@one_look()
def look(home: FlowHome, flow: Flow) -> FlowHealth:
    """Return the row of one flow.

    :raises StreamkeeperError: a file of it cannot be read.
    """
    observed = Observed(home)
    flow_status, numbers = refused_or(observed, flow), told_by(observed.heartbeat)
    newest, lease = observed.newest, observed.lease
    recovered = newest is not None and newest.previous is not None
    state, failing = _in_a_word(home, flow, flow_status, numbers), crash_loops.since_commit(observed)
    failed = _newest_failure(observed) if failing is not None and state in _FAILS else None
    lag = None if flow_status.state is FlowState.DONE else behind.read(home)
    return replace(
        _row(flow, state, _detail(state, flow_status.detail, failing, failed)),
        since=_since(observed, flow, state, lag, failing),
        generation=flow_status.generation,
        batch=flow_status.batch,
        age=flow_status.age,
        epoch=flow_status.epoch,
        batch_numbers=numbers.batch,
        totals=numbers.totals,
        waiting_since=progress.waiting_since(home),
        driver_since=None if lease is None else in_seconds(lease.at),
        failures=0 if failing is None else len(failing.times),
        last_recovery=f"{newest.reason}, by {newest.by}, {newest.at}" if newest and recovered else "",
        lag=lag,
    )


def _newest_failure(observed: Observed) -> str | None:
    """Return what ended the last driver that said so: the newest, or, while that starts, the one before."""
    newest = 0 if observed.lease is None else observed.lease.epoch
    recorded_failures = (
        leases.failure_of(observed.home, epoch) for epoch in (newest, newest - 1) if epoch > 0
    )
    return next(
        (failures.brief(failure) for one in recorded_failures if (failure := failures.read(one or {}))), None
    )


def _detail(state: str, detail: str, failing: Failures | None, failed: str | None) -> str:
    """Return why a flow is in its state: how many drivers failed, what ended the newest, and the detail."""
    if failing is None or state not in _FAILS:
        return detail
    number = len(failing.times)
    drivers = "driver" if number == 1 else "drivers"
    at_least = "at least " if number >= crash_loops.FAILURES else ""
    return "; ".join(
        filter(None, (f"{at_least}{number} {drivers} failed since the last commit", failed, detail))
    )


def _since(
    observed: Observed, flow: Flow, state: str, lag: Behind | None, failing: Failures | None
) -> str | None:
    """Return since when a flow is in its state, by the clock of whoever noted it; None if it never started.

    A flow that runs does so since its driver took the lease, catches up since input waits, and retries since
    the first failure.
    """
    home, lease, beat = observed.home, observed.lease, observed.heartbeat
    if observed.holds:
        return min(hold.at for hold in observed.holds)
    if lease is None:
        return None
    if failing is not None and state in _FAILS:
        return in_iso(failing.since)
    if state in _ENDED:
        return leases.told_leaving(home, lease).get("at") or (lease.at if beat is None else beat.at)
    if state == SLOW and lag is not None and lag.since is not None:
        return in_iso(lag.since)
    changed = change.read(home, flow.fingerprint) if state == FlowState.CHANGE_REFUSED else None
    return lease.at if changed is None else changed.at or lease.at


def refused_or(observed: Observed, flow: Flow) -> FlowStatus:
    """Return a flow's status as it runs: with the code that it had, where a change of it is refused."""
    runs = change.to_run(observed.home, flow)
    flow_status = status.look_at(observed, runs)
    kept_out = change.read(observed.home, flow.fingerprint) if runs is not flow else None
    if kept_out is None or flow_status.state is not FlowState.RUNNING:
        return flow_status
    reason = "; ".join(kept_out.verdict.reasons) or kept_out.verdict.compatibility
    return replace(
        flow_status,
        state=FlowState.CHANGE_REFUSED,
        detail=f"{kept_out.state}: {reason}; {flow_status.detail}",
    )


def counts(rows: tuple[FlowHealth, ...]) -> Iterator[tuple[str, int]]:
    """Yield each state that a flow is in, and how many are."""
    for state in STATES:
        number = sum(row.state == state for row in rows)
        if number:
            yield state, number


def _row(flow: Flow, state: str, detail: str) -> FlowHealth:
    declared = flow.declaration
    return FlowHealth(
        flow.full_name, flow.pipeline.name, declared.target, flow.dag_id, declared.trigger, state, detail
    )


def _in_a_word(home: FlowHome, flow: Flow, flow_status: FlowStatus, numbers: Numbers) -> str:
    last = numbers.batch
    if flow_status.state is FlowState.RUNNING and numbers.idle:
        return IDLE
    if flow_status.state is FlowState.RUNNING and last is not None:
        late = last.rows > 0 and last.seconds > trigger_seconds(flow.declaration.trigger)
        return SLOW if late else flow_status.state
    if flow_status.state is FlowState.DOWN:
        beaten = home.storage.modified(home.supervisor)
        supervised = beaten is not None and time.time() - beaten < leases.SILENT_SECONDS
        return RETRYING if supervised else flow_status.state
    return flow_status.state
