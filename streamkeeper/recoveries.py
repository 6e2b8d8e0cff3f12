"""Carrying out a recovery, step by step. Airflow's tasks, the command line and the Spark job call the very same functions.

Every step may be killed at any moment and run again: what it did is found, not done twice. Its end and evidence are in the ledger.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from streamkeeper import ledger, locks, plans
from streamkeeper.common_steps import APPROVED_AGAIN, let_go
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError
from streamkeeper.manifest import read_manifest
from streamkeeper.plans import Plan
from streamkeeper.recovery_kinds import GIVEN_UP, Kind, StepKind, Work, kind
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

PLANNED, APPROVED, ENDED = "planned", "approved", "ended"

InSpark = Callable[[str, Work], dict[str, Any]]
"""Does a step that needs Spark: gets the name of its function and the work, gives the evidence."""


def recovery_id(recovery: str, run: str) -> str:
    """Give the id of a recovery for a run of its DAG, or any text that names the run: the same for the same run."""
    short = re.sub(r"[^0-9A-Za-z]+", "-", run).strip("-")[-40:]
    return f"{recovery}-{short}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def plan(settings: Settings, of: Kind, request: Any, recovery: str) -> Plan:
    """Plan a recovery; nothing is touched. The plan is as the ledger will keep it: secrets are taken out.

    :param request: as ``of.parse`` gives it.
    :raises RequestError: the request does not fit the flows, or their checkpoints.
    :raises TableLocked: another recovery works on one of the tables.
    """
    made = plans.kept(of.plan(settings, read_manifest(settings), request, recovery))
    storage = open_storage(settings.state)
    for table in made.tables:
        locks.check_free(storage, made.pipeline, table, recovery)
    return made


def propose(settings: Settings, plan: Plan) -> Plan:
    """Write a plan to the ledger, once a recovery, and give the one that holds: the first.

    :raises RecoveryError: the recovery was given up.
    """
    work = _work(settings, plan)
    work.check_stop()
    found = work.book.find(PLANNED)
    if found is not None:
        return plans.from_json(found.evidence)
    work.book.record(PLANNED, plans.to_json(plan))
    return plan


def approve(settings: Settings, pipeline: str, recovery: str, by: str, again: bool = False) -> None:
    """Write down who approved the plan or, with ``again``, the plan that got worse under the hold."""
    event = APPROVED_AGAIN if again else APPROVED
    book = ledger.open(open_storage(settings.state), pipeline, recovery)
    if book.find(event) is None:
        book.record(event, {"by": by})


def read_plan(settings: Settings, pipeline: str, recovery: str) -> Plan:
    """Read a recovery's plan back from the ledger.

    :raises RequestError: there is no such recovery.
    """
    storage = open_storage(settings.state)
    names = ledger.recoveries(storage, pipeline)
    found = ledger.open(storage, pipeline, recovery).find(PLANNED) if recovery in names else None
    if found is None:
        known = ", ".join(names[-5:]) or "none"
        raise RequestError(f"There is no recovery {recovery!r} of {pipeline}. The last ones are: {known}.")
    return plans.from_json(found.evidence)


def carry_out(settings: Settings, pipeline: str, recovery: str, step: str, in_spark: InSpark | None = None) -> dict[str, Any]:
    """Carry out one step and give its evidence; a step that is done already only gives its evidence.

    :param in_spark: does the steps that need Spark; only ``spark_jobs/run_recovery.py`` has one.
    :raises StreamkeeperError: the step could not be done; what it says may be mended and the step run again.
    """
    planned = read_plan(settings, pipeline, recovery)
    chosen = kind(planned.recovery).step(step)
    if step not in planned.steps:  # it came with a release after the one that made the plan: what was approved goes without it
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
    work.book.record(f"{step}.done", evidence)
    _end(work)
    return evidence


def without_spark(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any] | None:
    """Give the evidence of a Spark step that is done, or that has nothing to do by its plan and is done by saying so; else None."""
    found = evidence_of(settings, pipeline, recovery, step)
    if found is not None:
        return found
    work = _work(settings, read_plan(settings, pipeline, recovery), step)
    idle = kind(work.plan.recovery).step(step).idle
    evidence = idle(work) if idle is not None else None
    if evidence is None:
        return None
    return carry_out(settings, pipeline, recovery, step, lambda _act, _work: evidence)


def evidence_of(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any] | None:
    """Give the evidence of a step that was carried out to its end; else None."""
    done = ledger.open(open_storage(settings.state), pipeline, recovery).find(f"{step}.done")
    return done.evidence if done else None


def is_done(settings: Settings, plan: Plan, step: str) -> bool:
    """Whether a step of a recovery was carried out to its end."""
    return _work(settings, plan).evidence(step) is not None


def why_failed(settings: Settings, pipeline: str, recovery: str, step: str) -> str | None:
    """Give the error that a step failed with last, as ``type: message``; None if it never failed, or was started again since."""
    failed = f"{step}.failed"
    events = ledger.open(open_storage(settings.state), pipeline, recovery).events()
    last = next((event for event in reversed(events) if event.event in (failed, f"{step}.started")), None)
    return str(last.evidence["error"]) if last is not None and last.event == failed else None


def was_approved(settings: Settings, plan: Plan) -> bool:
    """Whether someone approved the plan."""
    return _work(settings, plan).book.find(APPROVED) is not None


def was_approved_again(settings: Settings, plan: Plan) -> bool:
    """Whether someone approved the plan that got worse under the hold."""
    return _work(settings, plan).book.find(APPROVED_AGAIN) is not None


def give_up(settings: Settings, pipeline: str, recovery: str, why: str) -> bool:
    """End a recovery that did not change anything: take its own holds and locks away; give False if it had changed something already.

    A recovery that changed something, such as writing a generation, is past the point of no return: it can only be run on (or another
    recovery planned).
    """
    work = _work(settings, read_plan(settings, pipeline, recovery))
    if _changed(work):
        return False
    let_go(work)
    if work.book.find(GIVEN_UP) is None:
        work.book.record(GIVEN_UP, {"why": why})
    return True


def abandon(settings: Settings, pipeline: str, recovery: str, by: str) -> None:
    """End a recovery wherever it is: its holds and locks go; what it changed stays changed, and a park stays a park."""
    work = _work(settings, read_plan(settings, pipeline, recovery))
    let_go(work)
    if work.book.find(GIVEN_UP) is None and work.book.find(ENDED) is None:
        work.book.record(GIVEN_UP, {"why": f"abandoned by {by}"})


def is_open(settings: Settings, pipeline: str, recovery: str) -> bool:
    """Whether a recovery was begun (its first step started) and neither ended nor given up."""
    names = {event.event for event in ledger.open(open_storage(settings.state), pipeline, recovery).events()}
    return any(name.endswith(".started") for name in names) and not names & {ENDED, GIVEN_UP}


def _act(step: StepKind, work: Work, in_spark: InSpark | None) -> dict[str, Any]:
    if not isinstance(step.act, str):
        return step.act(work)
    if in_spark is None:
        raise RecoveryError(
            f"The step {step.name} needs Spark. Nothing was changed. Run it by its DAG, by streamkeeper recover {work.plan.recovery} "
            f"--resume {work.plan.recovery_id}, or by spark-submit with spark_jobs/run_recovery.py."
        )
    return in_spark(step.act, work)


def _changed(work: Work) -> bool:
    """Say whether a recovery started a step that changes something, and that step may have changed something."""
    for step in kind(work.plan.recovery).steps:
        if step.changes and work.book.find(f"{step.name}.started") is not None and (step.changed is None or step.changed(work)):
            return True
    return False


def _end(work: Work) -> None:
    if work.step == work.plan.steps[-1] and work.book.find(ENDED) is None:
        work.book.record(ENDED, {})


def _check_turn(work: Work) -> None:
    """Make sure that the step before was done or, before the first step, that the plan was approved.

    :raises RecoveryError: the step before was not done.
    :raises PlanRefused: the plan was not approved.
    """
    steps = work.plan.steps
    place = steps.index(work.step)
    if place == 0 and work.book.find(APPROVED) is None:
        raise PlanRefused("Nobody approved the plan of this recovery yet, so nothing was touched. Approve it where it was asked for.")
    if place > 0 and work.evidence(steps[place - 1]) is None:
        raise RecoveryError(
            f"The step {work.step} comes after {steps[place - 1]}, which was not done. Nothing was changed; run that one first."
        )


def _work(settings: Settings, plan: Plan, step: str = "") -> Work:
    return Work(settings, plan, ledger.open(open_storage(settings.state), plan.pipeline, plan.recovery_id), step)
