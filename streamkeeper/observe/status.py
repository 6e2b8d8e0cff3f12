"""Status of each flow, from its holds, lease and checkpoint. Nothing is changed, no JVM is started."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.holds import Hold
from streamkeeper.flows.leases import Heartbeat, Lease, Life
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.storage import Storage
from streamkeeper.support.times import describe_age


class FlowState(StrEnum):
    """State of a flow."""

    DECLARED = "declared"
    """Never started."""
    DONE = "done"
    """A once flow that has read all its input."""
    STARTING = "starting"
    RUNNING = "running"
    CHANGE_REFUSED = "change refused"
    """Running with the code that it had: a changed declaration does not fit, or waits for a person."""
    STOPPING = "stopping"
    """Held, and its driver still ends its batch."""
    HELD = "held"
    PARKED = "parked"
    STOPPED = "stopped"
    """Its last driver ended normally, as with ``--available-now``, and none was started since."""
    DOWN = "down"
    """Its last driver did not end normally: its supervisor retries, or there is none."""


@dataclass(frozen=True)
class FlowStatus:
    """Status of one flow, as in ``streamkeeper flows``.

    ``age`` is seconds since the last committed batch.
    """

    flow: str
    state: FlowState
    generation: int | None
    batch: int | None
    age: float | None
    epoch: int | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Return the status as a JSON object."""
        return asdict(self)


def look(storage: Storage, flow: Flow) -> FlowStatus:
    """Return the status of one flow."""
    return look_at(Observed(FlowHome(storage, flow.pipeline.name, flow.name)), flow)


def look_at(observed: Observed, flow: Flow) -> FlowStatus:
    """Return the status of one flow, from what was observed of it."""
    newest, lease, written = observed.newest, observed.lease, observed.committed_at
    state, detail = _state(observed, flow)
    return FlowStatus(
        flow.full_name,
        state,
        newest.number if newest else None,
        observed.last_commit,
        None if written is None else max(0.0, time.time() - written),
        lease.epoch if lease else None,
        detail,
    )


def _state(observed: Observed, flow: Flow) -> tuple[FlowState, str]:
    home, flow_holds, lease, life = observed.home, observed.holds, observed.lease, observed.life
    may_live = life in (Life.ALIVE, Life.UNKNOWN)
    if flow_holds:
        park = any(hold.owner == holds.PARK for hold in flow_holds)
        reasons = "; ".join(map(_in_words, flow_holds))
        if len(flow_holds) == 1 and holds.lifted_by(flow_holds[0], flow.present):
            return (
                FlowState.STARTING if may_live else FlowState.DOWN
            ), "its declaration changed, so the next start tries the new one once"
        return (FlowState.STOPPING if may_live else FlowState.PARKED if park else FlowState.HELD), reasons
    if lease is None:
        return FlowState.DECLARED, "never started"
    if not may_live and flow.declaration.once and (number := generations.finished(home)) is not None:
        return FlowState.DONE, f"it runs once and has read all its input, in generation {number}"
    if not may_live:
        reason = leases.told_leaving(home, lease).get("why")
        stopped = reason == Outcome.STOPPED.name.lower()
        how = "ended normally" if stopped else f"ended ({reason.replace('_', ' ')})" if reason else "is gone"
        return FlowState.STOPPED if stopped else FlowState.DOWN, f"its driver {how}: {leases.describe(lease)}"
    beat = observed.heartbeat
    state = FlowState.RUNNING if beat and beat.phase == "running" else FlowState.STARTING
    progress = progress_in(beat)
    detail = f"{leases.describe(lease)}; {progress}" if progress else leases.describe(lease)
    return (state, detail) if life is Life.ALIVE else _far_away(home, lease, state)


def _in_words(hold: Hold) -> str:
    """Return who holds a flow, unless it is parked, and the first line of why."""
    reason = (hold.reason.splitlines() or [""])[0]
    if hold.owner == holds.PARK:
        return reason
    return f"by {hold.by}: {reason}" if hold.owner.startswith(holds.PERSON) else f"{hold.owner}: {reason}"


def _far_away(home: FlowHome, lease: Lease, state: FlowState) -> tuple[FlowState, str]:
    """Return state and description of a driver on another host or boot."""
    written = home.storage.modified(home.heartbeat(lease.epoch)) or home.storage.modified(
        home.lease(lease.epoch)
    )
    silent = max(0.0, time.time() - written) if written is not None else 0.0
    detail = f"{leases.describe(lease)}; on another host or boot, last heartbeat {describe_age(silent)} ago"
    return (FlowState.DOWN if silent > leases.SILENT_SECONDS else state), detail


REBUILDING = "rebuilding"
"""Phase of a driver that rebuilds a state; its heartbeat has ``rebuild``: step, of, rows, epoch."""


def rebuild_progress(home: FlowHome, first: int = 0) -> str | None:
    """Return as text how far the flow's current driver has rebuilt a state; None if it rebuilds none.

    :param first: the lowest generation that counts.
    """
    return progress_in(leases.present_heartbeat(home), first)


def progress_in(beat: Heartbeat | None, first: int = 0) -> str | None:
    """Return as :func:`rebuild_progress`, from a heartbeat that was read already."""
    if beat is None or beat.phase != REBUILDING or beat.generation < first or "rebuild" not in beat.details:
        return None
    rebuild = beat.details["rebuild"]
    return (
        f"state of generation {beat.generation} rebuilt by {rebuild['step']} of {rebuild['of']} steps,"
        f" {rebuild['rows']} rows"
    )
