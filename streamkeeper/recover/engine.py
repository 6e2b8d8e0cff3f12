"""Carries out a recovery, step by step. Airflow's tasks, the command line and the Spark job all use it.

Every step may be killed at any moment and run again: what it did is detected, and not done twice. Its end and
its evidence are in the ledger.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from streamkeeper.errors import PlanRefused, RecoveryError, RequestError, check_reason
from streamkeeper.flows import ledger
from streamkeeper.flows.ledger import ENDED, GIVEN_UP, OVER, PLANNED
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover.plans import advice, approvers, rehearsal
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Kind, StepKind, Work, kind
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps.shared import APPROVED, APPROVED_AGAIN, release_all
from streamkeeper.settings import Settings
from streamkeeper.storage import one_look, open_storage
from streamkeeper.tables import recovery_lock
from streamkeeper.trial import look

InSpark = Callable[[str, Work], dict[str, Any]]
"""Carries out a step that needs Spark: gets the name of its function and the work, returns the evidence."""


def recovery_id(recovery: str, run: str) -> str:
    """Return the id of a recovery for a run of its DAG, or for any text that identifies the run.

    It is the same for the same run. Its last word distinguishes it from all others, also if runs of two DAGs
    have one name: a backfill's own flow is named by it.
    """
    short = re.sub(r"[^0-9A-Za-z]+", "-", run).strip("-")[-40:]
    return f"{recovery}-{short}-{hashlib.sha256(f'{recovery}/{run}'.encode()).hexdigest()[:8]}"


@one_look()
def plan(settings: Settings, recovery_kind: Kind, request: Any, recovery: str, on_copy: bool = False) -> Plan:
    """Return the plan of a recovery as the ledger will keep it, without secrets, with pre-flight's verdict on
    each flow's declaration; change nothing.

    :param request: as ``recovery_kind.parse`` returns it.
    :param on_copy: whether this is the plan of a rehearsal, which no rehearsal is demanded of.
    :raises RequestError: the request does not fit the flows, or their checkpoints; or it names a rehearsal
        that there is not.
    :raises TableLocked: another recovery works on one of the tables.
    """
    check_reason(getattr(request, "reason", None))
    manifest = read_manifest(settings)
    draft = advice.advised(settings, recovery_kind.plan(settings, manifest, request, recovery))
    draft = draft if on_copy else rehearsal.settled(settings, manifest, draft, request)
    storage = open_storage(settings.state)
    for table in draft.tables:
        recovery_lock.check_free(storage, draft.pipeline_of(table), table, recovery)
    draft = replace(draft, flows=tuple(_judged(settings, manifest, flow) for flow in draft.flows))
    stored = plans.as_stored(draft)
    _check_whole(draft, stored)
    return stored


def _judged(settings: Settings, manifest: Manifest, flow: FlowPlan) -> FlowPlan:
    return replace(flow, verdict=look.in_a_plan(settings, manifest.find(flow.flow)))


def propose(settings: Settings, plan: Plan) -> Plan:
    """Write a plan to the ledger, once for each recovery, and return the valid one: the first.

    :raises RecoveryError: the recovery was given up.
    """
    work = _work(settings, plan)
    work.check_stop()
    planned = work.book.find(PLANNED)
    if planned is not None:
        return plans.from_json(planned.evidence)
    work.book.record(PLANNED, plans.to_json(plan))
    return plan


def approve(
    settings: Settings,
    pipeline: str,
    recovery: str,
    by: str,
    *,
    again: bool = False,
    accepted: Collection[str] = (),
    asked: bool = True,
) -> None:
    """Record who approved the plan or, with ``again``, the plan that got worse under the hold.

    :param accepted: the impacts that the question named, which the approval accepts.
    :param asked: whether somebody was asked; a schedule's recovery may go on without.
    :raises ApprovalRefused: who was asked may not approve it, by the settings.
    """
    if asked:
        approvers.check(settings, read_plan(settings, pipeline, recovery), by)
    event = APPROVED_AGAIN if again else APPROVED
    book = ledger.open(open_storage(settings.state), pipeline, recovery)
    if book.find(event) is None:
        book.record(event, {"by": by, **({"accepted": sorted(accepted)} if accepted else {})})


def read_plan(settings: Settings, pipeline: str, recovery: str) -> Plan:
    """Return a recovery's plan from the ledger.

    :raises RequestError: there is no such recovery.
    """
    storage = open_storage(settings.state)
    names = ledger.recoveries(storage, pipeline)
    planned = ledger.open(storage, pipeline, recovery).find(PLANNED) if recovery in names else None
    if planned is None:
        last_ids = ", ".join(names[-5:]) or "none"
        raise RequestError(f"There is no recovery {recovery!r} of {pipeline}. The last ones are: {last_ids}.")
    return plans.from_json(planned.evidence)


def carry_out(
    settings: Settings, pipeline: str, recovery: str, step: str, in_spark: InSpark | None = None
) -> dict[str, Any]:
    """Carry out one step and return its evidence as the ledger keeps it; a completed step is not done again.

    :param in_spark: carries out the steps that need Spark; only ``spark_jobs/run_recovery.py`` has one.
    :raises StreamkeeperError: the step could not be done; mend what the message names, and run it again.
    """
    planned = read_plan(settings, pipeline, recovery)
    chosen = kind(planned.recovery).step(step)
    if (
        step not in planned.steps
    ):  # a later release added the step: the approved plan is carried out without it
        return {"left_out": f"the plan of {recovery} has no step {step}"}
    work = _work(settings, planned, step)
    work.check_stop()
    done = work.evidence(step)
    if done is not None:
        _end(work)
        return done
    _check_turn(work)
    work.book.record(f"{step}.started", {})
    try:
        evidence = _act(chosen, work, in_spark)
    except Exception as error:
        work.book.record(f"{step}.failed", {"error": f"{type(error).__name__}: {error}"})
        raise
    stored = work.book.record(f"{step}.done", evidence).evidence
    _end(work)
    return stored


def without_spark(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any] | None:
    """Return the evidence of a Spark step that is done, left out, or has nothing to do; else None."""
    evidence = evidence_of(settings, pipeline, recovery, step)
    if evidence is not None:
        return evidence
    work = _work(settings, read_plan(settings, pipeline, recovery), step)
    if step in work.plan.steps and _idle(kind(work.plan.recovery).step(step), work) is None:
        return None
    return carry_out(settings, pipeline, recovery, step)


def unasked_steps(plan: Plan) -> tuple[StepKind, ...]:
    """Return the steps of a plan that change nothing, and are carried out before its approval."""
    return tuple(step for step in kind(plan.recovery).unasked if step.name in plan.steps)


def evidence_of(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any] | None:
    """Return the evidence of a completed step; else None."""
    done = ledger.open(open_storage(settings.state), pipeline, recovery).find(f"{step}.done")
    return done.evidence if done else None


def why_failed(settings: Settings, pipeline: str, recovery: str, step: str) -> str | None:
    """Return a step's last error, as ``type: message``; None if it never failed, or was started again."""
    failed = f"{step}.failed"
    events = ledger.open(open_storage(settings.state), pipeline, recovery).events()
    last = next((event for event in reversed(events) if event.event in (failed, f"{step}.started")), None)
    return str(last.evidence["error"]) if last is not None and last.event == failed else None


def was_approved(settings: Settings, plan: Plan, *, again: bool = False) -> bool:
    """Return whether the plan was approved or, with ``again``, the plan that got worse under the hold."""
    return _work(settings, plan).book.find(APPROVED_AGAIN if again else APPROVED) is not None


def give_up(settings: Settings, pipeline: str, recovery: str, reason: str) -> bool:
    """End a recovery that changed nothing, and remove its holds and locks.

    Return False if it changed something.

    A recovery that changed something, such as writing a generation, is past the point of no return: it can
    only be continued, or another recovery planned.
    """
    work = _work(settings, read_plan(settings, pipeline, recovery))
    if _changed(work):
        return False
    _give_up(work, reason)
    return True


def is_past_return(settings: Settings, pipeline: str, recovery: str) -> bool:
    """Return whether a recovery changed something: it can only be continued, or another recovery planned."""
    return _changed(_work(settings, read_plan(settings, pipeline, recovery)))


def pipeline_of(settings: Settings, recovery: str, *, or_over: bool = False) -> str:
    """Return the pipeline of a recovery that is not over, or with ``or_over`` may be.

    :raises RequestError: there is none of that id, or it is over.
    """
    storage = open_storage(settings.state)
    pipeline = ledger.pipeline_of(storage, recovery)
    if pipeline is None or not (or_over or ledger.open(storage, pipeline, recovery).end() is None):
        open_ids = ", ".join(ledger.open_recoveries(storage)) or "none"
        problem = "There is no recovery" if pipeline is None else "It is over already, the recovery"
        raise RequestError(
            f"{problem} {recovery!r}. Those that are not over: {open_ids}. Nothing was changed."
        )
    return pipeline


def abandon(settings: Settings, pipeline: str, recovery: str, by: str) -> None:
    """End a recovery at any point: its holds and locks are removed; its changes, and parks, stay."""
    work = _work(settings, read_plan(settings, pipeline, recovery))
    _give_up(work, f"abandoned by {by}")


def _give_up(work: Work, reason: str) -> None:
    release_all(work)
    if work.book.end() is None:
        work.book.record(GIVEN_UP, {"why": reason})
    recovery_kind = kind(work.plan.recovery)
    if rehearse.STEP in recovery_kind.unasked:
        rehearse.remove(work)
    taken_away = recovery_kind.given_up
    if taken_away is not None:
        taken_away(work)


def end_dry_run(settings: Settings, pipeline: str, recovery: str) -> None:
    """End a dry run that has carried out steps: it is carried out no further."""
    storage = open_storage(settings.state)
    if recovery in ledger.recoveries(storage, pipeline):
        give_up(settings, pipeline, recovery, "it was a dry run")


def is_open(settings: Settings, pipeline: str, recovery: str) -> bool:
    """Return whether a recovery was begun (its first step started) and neither ended nor given up."""
    names = set(ledger.open(open_storage(settings.state), pipeline, recovery).names())
    return any(name.endswith(".started") for name in names) and names.isdisjoint(OVER)


_FOR_PEOPLE = ("reason", "by")
"""Fields of a request that are only for people; a secret removed from them is no loss."""


def _check_whole(draft: Plan, stored: Plan) -> None:
    """Check that a plan can be carried out as it is kept: that no needed value was removed as a secret.

    :raises RequestError: one was.
    """
    for name, value in draft.request.items():
        if name not in _FOR_PEOPLE and json.loads(json.dumps(value)) != stored.request[name]:
            raise RequestError(
                f"{name} holds what reads like a secret ({stored.request[name]}). Plans and ledgers keep no"
                " secrets, so the plan could not be carried out as approved. Nothing was changed. Put"
                " secrets into the environment ({env:NAME} in an option), and write a condition on a"
                " column of such a name with IN or LIKE."
            )


def _idle(step: StepKind, work: Work) -> dict[str, Any] | None:
    return step.idle(work) if step.idle is not None else None


def _act(step: StepKind, work: Work, in_spark: InSpark | None) -> dict[str, Any]:
    nothing = _idle(step, work)
    if nothing is not None:
        return nothing
    if not isinstance(step.act, str):
        return step.act(work)
    if in_spark is None:
        raise RecoveryError(
            f"The step {step.name} needs Spark. Nothing was changed. Run it by its DAG, by streamkeeper"
            f" recover {work.plan.recovery} --resume {work.plan.recovery_id}, or by spark-submit with"
            " spark_jobs/run_recovery.py."
        )
    return in_spark(step.act, work)


def _changed(work: Work) -> bool:
    """Return whether a recovery started a step that may have changed something."""
    for step in kind(work.plan.recovery).steps:
        if (
            step.changes
            and work.book.find(f"{step.name}.started") is not None
            and (step.changed is None or step.changed(work))
        ):
            return True
    return False


def _end(work: Work) -> None:
    if work.step == work.plan.steps[-1] and work.book.find(ENDED) is None:
        work.book.record(ENDED, {})


def _check_turn(work: Work) -> None:
    """Check that the step before is done and, at the first step after approval, that the plan is approved.

    :raises RecoveryError: the step before was not done.
    :raises PlanRefused: the plan was not approved.
    """
    steps, unasked = work.plan.steps, unasked_steps(work.plan)
    place = steps.index(work.step)
    if place == len(unasked) and work.book.find(APPROVED) is None:
        raise PlanRefused(
            "The plan of this recovery is not approved yet. Nothing was changed. Approve it in the DAG"
            " run, or on the command line that asked for it."
        )
    if place > 0 and work.evidence(steps[place - 1]) is None:
        raise RecoveryError(
            f"The step {work.step} needs the step {steps[place - 1]}, which is not done. Nothing was"
            " changed. Run that step first."
        )


def _work(settings: Settings, plan: Plan, step: str = "") -> Work:
    return Work(
        settings, plan, ledger.open(open_storage(settings.state), plan.pipeline, plan.recovery_id), step
    )
