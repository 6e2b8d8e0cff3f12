"""The steps that recoveries share: hold, plan again, decide, verify, release.

Each goes through all flows of the plan. It may be killed at any moment and run again: what it did to some
flows is detected, and not done twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import PlanRefused, RecoveryError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.flows.generations import Generation
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.observe import status
from streamkeeper.recover.moves import put_back
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import StepKind, Work, kind
from streamkeeper.recover.plans.plan import FlowPlan, Plan, Refusal
from streamkeeper.settings import Settings
from streamkeeper.support.times import now
from streamkeeper.tables import recovery_lock

PROGRESS_SECONDS = 600.0
"""Seconds for new generations to show progress before the last step fails; another run waits again."""

_LOG = logging.getLogger(__name__)

APPROVED = "approved"
"""The event of a plan's approval, with the impacts that it names (``accepted``)."""
APPROVED_AGAIN = "approved_again"
"""The event of the approval of a plan that got worse under the hold."""


def check_possible(plan: Plan) -> None:
    """Check that a plan can be carried out once its impacts are accepted.

    :raises PlanRefused: it cannot, whatever is accepted.
    """
    impossible = [item for item in plan.refusals if item.impact is None]
    _refuse("The plan cannot be carried out. Nothing was changed:", _listed(impossible))


def check_accepted(plan: Plan, accepted: Collection[str] = ()) -> None:
    """Check that all impacts of a plan are accepted.

    :param accepted: what was accepted with the approval.
    :raises PlanRefused: one is not; the message says which, and how to accept it.
    """
    unaccepted = [item for item in plan.refusals if item.impact is None or item.impact not in accepted]
    _refuse("The plan has an impact that was not accepted. Nothing was changed:", _listed(unaccepted))


def _listed(refusals: Sequence[Refusal]) -> list[str]:
    return [f"- {item.message}" for item in refusals]


def _refuse(heading: str, reasons: Sequence[str]) -> None:
    if reasons:
        raise PlanRefused("\n".join([heading, *reasons]))


def _check_consent(work: Work) -> None:
    approved = work.book.find(APPROVED)
    check_accepted(work.plan, approved.evidence.get("accepted", ()) if approved else ())


def release_all(work: Work) -> None:
    """Remove the recovery's own holds and locks."""
    for flow in work.plan.flows:
        holds.release(work.home(flow), holds.recovery(work.plan.recovery_id), work.plan.by)
    for table in work.plan.tables:
        recovery_lock.give_back(work.book.storage, work.plan.pipeline_of(table), table, work.plan.recovery_id)


def lock(work: Work) -> dict[str, Any]:
    """Lock every table, in the order of their names, and hold no flow."""
    _check_consent(work)
    _lock_tables(work)
    return {"tables": list(work.plan.tables)}


def _lock_tables(work: Work) -> None:
    for table in sorted(work.plan.tables):
        pipeline = work.plan.pipeline_of(table)
        recovery_lock.take(work.book.storage, pipeline, table, work.plan.recovery_id)


@dataclass(frozen=True)
class Held:
    """What the hold found: the last driver of each flow, in words, and the version of each table, if any."""

    drivers: dict[str, str]
    table_versions: dict[str, int | None]


def hold(work: Work) -> dict[str, Any]:
    """Lock every table, by name, hold every flow, and wait until all drivers are gone."""
    plan = work.plan
    _lock_tables(work)
    reason = f"{plan.recovery} {plan.recovery_id} is running"
    owner = holds.recovery(plan.recovery_id)
    names = [flow.flow for flow in plan.flows]
    of_each(work.book.storage, names, lambda home: holds.put(home, owner, reason, plan.by))
    drivers = {}
    for flow in plan.flows:
        past = leases.wait_until_gone(work.home(flow), work.settings.stop_timeout, work.settings.lease_term)
        drivers[flow.flow] = leases.describe(past) if past else "it never had a driver"
    return asdict(Held(drivers, {table: _version(work.settings, table) for table in plan.tables}))


def planned_now(work: Work, manifest: Manifest) -> Plan:
    """Return the plan of a recovery as it would be made now, as the ledger keeps one."""
    recovery_kind, plan = kind(work.plan.recovery), work.plan
    request = recovery_kind.read_request(plan.request)
    return plans.as_stored(recovery_kind.plan(work.settings, manifest, request, plan.recovery_id))


@dataclass(frozen=True)
class PlannedAgain:
    """The plan that was made again under the hold, and the reasons why it is worse than the approved one."""

    worse: bool
    reasons: tuple[str, ...]
    plan: Plan


def plan_again(work: Work) -> dict[str, Any]:
    """Make the plan again while all flows stand still, and compare it with the approved one.

    :raises PlanRefused: it cannot be carried out any more.
    :raises RecoveryError: a flow has another generation or declaration now, or other flows write the table.
    """
    plan, manifest = work.plan, read_manifest(work.settings)
    for flow in plan.flows:
        _check_same(work.home(flow), flow, plan, manifest)
    again = planned_now(work, manifest)
    impossible = [item.message for item in again.refusals if item.impact is None]
    _refuse("The plan can no longer be carried out. Nothing was changed:", impossible)
    check_same_flows(plan, again)
    reasons = plans.worse(plan, again)
    return asdict(PlannedAgain(bool(reasons), tuple(reasons), again))


def check_same_flows(plan: Plan, again: Plan) -> None:
    """Check that a plan made again is for the flows of the approved one, since only these are held.

    :raises RecoveryError: it is not; nothing was changed.
    """
    others = sorted({flow.flow for flow in plan.flows} ^ {flow.flow for flow in again.flows})
    if others:
        raise RecoveryError(
            f"Other flows write {', '.join(plan.tables)} now than when the plan was made:"
            f" {', '.join(others)}. Only the flows of the plan are held. Nothing was changed. Give this"
            f" recovery up (streamkeeper abandon {plan.recovery_id}) and plan again."
        )


def plan_under_hold(work: Work) -> Plan:
    """Return the plan as it was made under the hold; without such a step, the approved one."""
    again = _planned_again(work)
    return again.plan if again else work.plan


def _planned_again(work: Work) -> PlannedAgain | None:
    return None if work.evidence(PLAN_AGAIN.name) is None else work.result(PLAN_AGAIN.name, PlannedAgain)


def check_go(work: Work) -> None:
    """Check that the impact is accepted, and approved again if it got worse.

    Steps that change something call this first.

    :raises PlanRefused: it is not.
    """
    _check_consent(work)
    again = _planned_again(work)
    if again is not None and again.worse and work.book.find(APPROVED_AGAIN) is None:
        heading = "The impact got worse since the plan was approved, and the new impact is not approved:"
        _refuse(heading, again.reasons)


def decide(work: Work) -> dict[str, Any]:
    """Write the next generation of every flow that gets one.

    :raises RecoveryError: something was written to a table to be restored since the plan was made under the
        hold; nothing was changed.
    """
    check_go(work)
    # The plan made under the hold: a generation that was only decided at the time of the first plan may have
    # begun since.
    plan = plan_under_hold(work)
    if not is_decided(work):
        put_back.check_unchanged(work, plan, put_back.before_decided(plan))
    decided = {}
    for flow in plan.flows:
        if flow.next_generation is not None:
            home = work.home(flow)
            decided[flow.flow] = asdict(generations.decide(home, generation_of(plan, flow, home)))
    return {"generations": decided}


def is_decided(work: Work) -> bool:
    """Return whether this recovery wrote the next generation of any flow."""
    for flow in plan_under_hold(work).flows:
        if flow.next_generation is not None:
            generation = generations.read(work.home(flow), flow.next_generation)
            if generation is not None and generation.recovery == work.plan.recovery_id:
                return True
    return False


def generation_of(plan: Plan, flow: FlowPlan, home: FlowHome) -> Generation:
    """Return a plan's decision for one flow.

    :param plan: made under the hold, if it was made again; its remaining impacts were approved again, and are
        accepted.
    """
    assert flow.next_generation is not None, "only flows that get a generation are decided"
    previous = generations.read_start(home, flow.previous) if flow.previous is not None else None
    return generations.with_number(
        Generation(
            number=flow.next_generation,
            previous=flow.previous,
            start=flow.start,
            state=flow.state,
            query_id="",
            reason=plan.reason or f"{plan.recovery} {flow.start.mode}",
            by=plan.by,
            at=now(),
            fingerprint=flow.fingerprint,
            recovery=plan.recovery_id,
            schemas=previous.schemas if previous is not None and flow.keeps_schemas else {},
            accepted=tuple(
                dict.fromkeys(
                    (*plan.accept, *(item.impact for item in plan.refusals if item.impact is not None))
                )
            ),
        ),
        home,
        flow.next_generation,
    )


def verify_tables(work: Work) -> dict[str, Any]:
    """Check that every table exists, and is not behind its version at the hold."""
    versions_at_hold = work.result(HOLD.name, Held).table_versions
    tables = {}
    for table in work.plan.tables:
        before = versions_at_hold[table]
        version, path = _version(work.settings, table), work.settings.table_path(table)
        if before is not None and (version is None or version < before):
            raise RecoveryError(
                f"The table {table} at {path} is at version {version}; it was at version {before} when the"
                " hold was put. Someone removed or replaced it. Restore it, and run this step again; the"
                " flows stay held until then."
            )
        tables[table] = {"table": path, "version": version, "version_at_hold": before}
    return {"tables": tables}


def release(work: Work) -> dict[str, Any]:
    """Lift the parks of the generations that end, and remove the recovery's own holds and locks."""
    lifted, flows = {}, plan_under_hold(work).flows
    for flow in flows:
        park = holds.parked(work.home(flow))
        lifted[flow.flow] = (
            park is not None
            and flow.next_generation is not None
            and park.details.get("generation", 0) <= (flow.generation or 0)
        )
        if lifted[flow.flow]:
            holds.release(work.home(flow), holds.PARK, work.plan.by)
    release_all(work)
    return {
        "flows": {
            flow.flow: {"park_lifted": lifted[flow.flow], "holds_left": work.home(flow).owners()}
            for flow in flows
        }
    }


def verify_progress(work: Work) -> dict[str, Any]:
    """Wait until every new generation has read its sources, or a reason shows that it will not soon.

    With a state that is rebuilt from history, each step of the rebuild counts as progress.
    """
    deadline = time.monotonic() + PROGRESS_SECONDS
    flows = plan_under_hold(work).flows
    waiting = {flow.flow: flow for flow in flows if flow.next_generation is not None}
    progress: dict[str, Any] = {}
    rebuilt: dict[str, str] = {}
    while waiting:
        for name, flow in list(waiting.items()):
            rebuild_progress = status.rebuild_progress(work.home(flow), flow.next_generation or 0)
            if rebuild_progress is not None and rebuilt.get(name) != rebuild_progress:
                _LOG.info("%s: %s", name, rebuild_progress)
                rebuilt[name], deadline = rebuild_progress, time.monotonic() + PROGRESS_SECONDS
            flow_progress = _progress(work.home(flow), flow)
            if flow_progress is not None:
                progress[name] = flow_progress
                del waiting[name]
        if waiting and time.monotonic() >= deadline:
            stalled = ", ".join(
                f"generation {flow.next_generation} of {name}" for name, flow in waiting.items()
            )
            raise RecoveryError(
                f"{stalled[:1].upper()}{stalled[1:]} made no progress in {PROGRESS_SECONDS:g} s. Check the"
                " log of the flow's task, and that its DAG is not paused; then run this step again."
            )
        if waiting:
            time.sleep(0.5)
    return {"flows": progress}


def _progress(home: FlowHome, flow: FlowPlan) -> dict[str, Any] | None:
    number = flow.next_generation
    assert number is not None, "only flows with a new generation are waited for"
    newest = generations.latest(home)
    if newest is not None and newest.number > number:
        return {"superseded_by": newest.number}
    park = holds.parked(home)
    if park is not None and park.details.get("generation") == number:
        raise RecoveryError(
            f"Generation {number} of {flow.flow} was parked before it made progress: {park.reason}"
        )
    if generations.finished(home) == number:
        return {"done": True, "note": "the flow runs once and has read all its input"}
    beat = leases.present_heartbeat(home)
    start = generations.read_start(home, number)
    if start is not None and beat is not None and beat.generation == number and beat.triggers > 0:
        numbers = {"batch": beat.batch, "triggers": beat.triggers, "epoch": beat.epoch}
        return {"start": start.evidence, "positions": start.positions, **numbers}
    others = home.owners()
    return (
        {"held_by": others, "note": "the new generation starts when these holds are released"}
        if others
        else None
    )


def _check_same(home: FlowHome, flow: FlowPlan, plan: Plan, manifest: Manifest) -> None:
    """Check that a flow has the generation and the declaration for which the plan was made.

    :raises RecoveryError: it has not.
    """
    replan = f"Give this recovery up (streamkeeper abandon {plan.recovery_id}) and plan again."
    newest = generations.latest(home)
    number = newest.number if newest is not None else None
    if number != flow.generation:
        raise RecoveryError(
            f"{flow.flow} is on generation {number} now; the plan was made for generation"
            f" {flow.generation}. {replan}"
        )
    fingerprint = manifest.find(flow.flow).fingerprint
    if fingerprint != flow.fingerprint:
        raise RecoveryError(
            f"The declaration of {flow.flow} changed since the plan was made ({flow.fingerprint} →"
            f" {fingerprint}). {replan}"
        )


def _version(settings: Settings, table: str) -> int | None:
    return delta_log.latest_version(settings.table_path(table))


LOCK = StepKind(
    "lock", "take the tables' locks, so that no other recovery changes them; their flows keep running", lock
)
HOLD = StepKind(
    "hold",
    "take the tables' locks, hold the flows, and wait until their drivers have ended their batch and stopped",
    hold,
)
PLAN_AGAIN = StepKind(
    "plan_again",
    "make the plan again while the flows are stopped, and compare its impact with the approved one",
    plan_again,
)
DECIDE = StepKind(
    "decide",
    "write the next generation of each flow: immutable; the old checkpoints stay as they are",
    decide,
    changes=True,
    changed=is_decided,
)
VERIFY_TABLES = StepKind(
    "verify_tables",
    "check that the tables exist, are readable, and are at the version of the hold or a later one",
    verify_tables,
)
RELEASE = StepKind(
    "release",
    "release holds, parks and locks; each flow's next driver fences the old generation in the sink, creates"
    " the new checkpoint, and runs",
    release,
)
VERIFY_PROGRESS = StepKind(
    "verify_progress",
    "wait until each new generation has committed a batch, or has found no new input",
    verify_progress,
    patient=True,
)

STOP = (HOLD, PLAN_AGAIN)
"""How a recovery begins that changes flows."""
RUN_AGAIN = (VERIFY_TABLES, RELEASE, VERIFY_PROGRESS)
"""How it ends."""
