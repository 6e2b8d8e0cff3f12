"""Carrying out a recovery, step by step. Airflow's tasks and the command line call the very same functions.

Every step may be killed at any moment and run again: what it did is found, not done twice. Its end and evidence are in the ledger.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import asdict
from typing import Any, NoReturn

from streamkeeper import delta_log, generations, holds, leases, ledger, locks, plans, resets
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError
from streamkeeper.home import FlowHome
from streamkeeper.ledger import Ledger
from streamkeeper.manifest import read_manifest
from streamkeeper.plans import Plan, Step
from streamkeeper.requests import ResetRequest
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

STOP_SECONDS = 300.0
"""How long a driver may take to end its batch before the hold step gives up; running the step again waits on."""

PROGRESS_SECONDS = 600.0
"""How long the new generation may take to show progress before the last step gives up; running it again waits on."""

PLANNED, APPROVED, APPROVED_AGAIN, ENDED, GIVEN_UP = "planned", "approved", "approved_again", "ended", "given_up"


def recovery_id(recovery: str, run: str) -> str:
    """Give the id of a recovery for a run of its DAG, or any text that names the run: the same for the same run."""
    short = re.sub(r"[^0-9A-Za-z]+", "-", run).strip("-")[-40:]
    return f"{recovery}-{short}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def plan(settings: Settings, request: ResetRequest, recovery: str) -> Plan:
    """Plan a reset; nothing is touched.

    :raises RequestError: the request does not fit the flow, or its checkpoint.
    :raises TableLocked: another recovery works on the flow's table.
    """
    flow = read_manifest(settings).find(request.flow)
    locks.check_free(open_storage(settings.state), flow.pipeline.name, flow.declaration.target, recovery)
    return resets.plan(settings, flow, request, recovery)


def check_accepted(plan: Plan) -> None:
    """Make sure that a plan has no price that nobody accepted.

    :raises PlanRefused: it has; the message says which, and how to accept them.
    """
    if plan.refusals:
        raise PlanRefused(
            "\n".join(
                ["The plan has a price that was not accepted; nothing was touched:", *(f"- {item.message}" for item in plan.refusals)]
            )
        )


def propose(settings: Settings, plan: Plan) -> Plan:
    """Write a plan to the ledger, once a recovery, and give the one that holds: the first.

    :raises RecoveryError: the recovery was given up.
    """
    book = _book(settings, plan.flow, plan.recovery_id)
    _check_open(book, plan.recovery_id)
    found = book.find(PLANNED)
    if found is not None:
        return plans.from_json(found.evidence)
    book.record(PLANNED, plans.to_json(plan))
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


def carry_out(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any]:
    """Carry out one step and give its evidence; a step that is done already only gives its evidence.

    :raises StreamkeeperError: the step could not be done; what it says may be mended and the step run again.
    """
    chosen = Step(step)
    planned = read_plan(settings, pipeline, recovery)
    book = _book(settings, planned.flow, recovery)
    _check_open(book, recovery)
    done = book.find(f"{chosen.value}.done")
    if done is not None:
        _end(book, chosen)
        return done.evidence
    _check_turn(book, chosen)
    book.record(f"{chosen.value}.started", {})
    try:
        evidence = _act(settings, planned, chosen)
    except Exception as error:
        book.record(f"{chosen.value}.failed", {"error": f"{type(error).__name__}: {error}"})
        raise
    book.record(f"{chosen.value}.done", evidence)
    _end(book, chosen)
    return evidence


def is_done(settings: Settings, plan: Plan, step: Step) -> bool:
    """Whether a step of a recovery was carried out to its end."""
    return _book(settings, plan.flow, plan.recovery_id).find(f"{step.value}.done") is not None


def was_approved(settings: Settings, plan: Plan) -> bool:
    """Whether someone approved the plan."""
    return _book(settings, plan.flow, plan.recovery_id).find(APPROVED) is not None


def was_approved_again(settings: Settings, plan: Plan) -> bool:
    """Whether someone approved the plan that got worse under the hold."""
    return _book(settings, plan.flow, plan.recovery_id).find(APPROVED_AGAIN) is not None


def give_up(settings: Settings, pipeline: str, recovery: str, why: str) -> bool:
    """End a recovery that did not decide anything: take its own hold and lock away; give False if it had decided already.

    A recovery that wrote its generation is past the point of no return: it can only be run on (or another recovery planned).
    """
    planned = read_plan(settings, pipeline, recovery)
    book = _book(settings, planned.flow, recovery)
    if book.find(f"{Step.DECIDE.value}.started") is not None and _decided(settings, planned):
        return False
    _let_go(settings, planned)
    if book.find(GIVEN_UP) is None:
        book.record(GIVEN_UP, {"why": why})
    return True


def abandon(settings: Settings, pipeline: str, recovery: str, by: str) -> None:
    """End a recovery wherever it is: its hold and lock go; a generation that it decided stays decided, and a park stays a park."""
    planned = read_plan(settings, pipeline, recovery)
    _let_go(settings, planned)
    book = _book(settings, planned.flow, recovery)
    if book.find(GIVEN_UP) is None and book.find(ENDED) is None:
        book.record(GIVEN_UP, {"why": f"abandoned by {by}"})


def is_open(settings: Settings, pipeline: str, recovery: str) -> bool:
    """Whether a recovery was begun (its first step started) and neither ended nor given up."""
    book = ledger.open(open_storage(settings.state), pipeline, recovery)
    names = {event.event for event in book.events()}
    return f"{Step.HOLD.value}.started" in names and not names & {ENDED, GIVEN_UP}


def _act(settings: Settings, plan: Plan, step: Step) -> dict[str, Any]:
    home = _home(settings, plan)
    match step:
        case Step.HOLD:
            return _hold(settings, plan, home)
        case Step.PLAN_AGAIN:
            return _plan_again(settings, plan, home)
        case Step.DECIDE:
            return _decide(settings, plan, home)
        case Step.VERIFY_TABLES:
            return _verify_table(settings, plan, home)
        case Step.RELEASE:
            return _release(settings, plan, home)
        case Step.VERIFY_PROGRESS:
            return _verify_progress(plan, home)
        case _:
            raise AssertionError(_never(step))


def _hold(settings: Settings, plan: Plan, home: FlowHome) -> dict[str, Any]:
    locks.take(home.storage, home.pipeline, plan.target, plan.recovery_id)
    holds.put(home, holds.recovery(plan.recovery_id), f"{plan.recovery} {plan.recovery_id} is at work", plan.request.by)
    past = leases.wait_until_gone(home, STOP_SECONDS, settings.lease_term)
    return {"driver": leases.describe(past) if past else "there never was one", "table_version": _version(settings, plan)}


def _plan_again(settings: Settings, plan: Plan, home: FlowHome) -> dict[str, Any]:
    flow = read_manifest(settings).find(plan.flow)
    newest = generations.latest(home)
    if newest is None or newest.number != plan.generation:
        raise RecoveryError(
            f"{plan.flow} is on generation {newest.number if newest else None} now; the plan was made on {plan.generation}. Give this "
            f"recovery up (streamkeeper abandon {plan.recovery_id}) and plan anew."
        )
    if flow.fingerprint != plan.fingerprint:
        raise RecoveryError(
            f"The declaration of {plan.flow} changed since the plan was made ({plan.fingerprint} → {flow.fingerprint}). Give this "
            f"recovery up (streamkeeper abandon {plan.recovery_id}) and plan anew."
        )
    again = resets.plan(settings, flow, plan.request, plan.recovery_id)
    return {
        "worse": bool(plans.worse(plan, again)),
        "why": plans.worse(plan, again),
        "position": again.position,
        "plan": plans.to_json(again),
    }


def _decide(settings: Settings, plan: Plan, home: FlowHome) -> dict[str, Any]:
    check_accepted(plan)
    book = _book(settings, plan.flow, plan.recovery_id)
    again = book.find(f"{Step.PLAN_AGAIN.value}.done")
    assert again is not None, "_check_turn saw to it"
    if again.evidence["worse"] and book.find(APPROVED_AGAIN) is None:
        raise PlanRefused(
            "\n".join(["The price got worse since the plan was approved, and nobody approved it again:", *again.evidence["why"]])
        )
    # The plan as it was made under the hold: a generation that was only decided when the first one was made may have begun since.
    held = plans.from_json(again.evidence["plan"])
    return asdict(generations.decide(home, resets.generation_of(held, home)))


def _verify_table(settings: Settings, plan: Plan, home: FlowHome) -> dict[str, Any]:
    held = ledger.open(home.storage, home.pipeline, plan.recovery_id).find(f"{Step.HOLD.value}.done")
    before = held.evidence.get("table_version") if held else None
    version = _version(settings, plan)
    path = settings.table_path(plan.target)
    if before is not None and (version is None or version < before):
        raise RecoveryError(
            f"The table {plan.target} at {path} is at version {version}; it was at {before} when the hold was put. Someone removed or "
            "replaced it. Put it back before the flow goes on; the flow stays held."
        )
    return {"table": path, "version": version, "version_at_hold": before}


def _release(settings: Settings, plan: Plan, home: FlowHome) -> dict[str, Any]:
    parked = holds.parked(home)
    lifted = parked is not None and parked.details.get("generation", 0) <= plan.generation
    if lifted:
        holds.release(home, holds.PARK)
    _let_go(settings, plan)
    return {"park_lifted": lifted, "holds_left": home.owners()}


def _verify_progress(plan: Plan, home: FlowHome) -> dict[str, Any]:
    deadline = time.monotonic() + PROGRESS_SECONDS
    number = plan.next_generation
    while time.monotonic() < deadline:
        newest = generations.latest(home)
        if newest is not None and newest.number > number:
            return {"superseded_by": newest.number}
        park = holds.parked(home)
        if park is not None and park.details.get("generation") == number:
            raise RecoveryError(f"Generation {number} of {plan.flow} was parked before it made progress: {park.reason}")
        if generations.finished(home) == number:
            return {"done": True, "note": "the flow runs once, and has read all there was"}
        lease = leases.current(home)
        beat = leases.read_heartbeat(home, lease.epoch) if lease else None
        start = generations.read_start(home, number)
        if start is not None and beat is not None and beat.generation == number and beat.triggers > 0:
            return {
                "start": start.evidence,
                "positions": start.positions,
                "batch": beat.batch,
                "triggers": beat.triggers,
                "epoch": beat.epoch,
            }
        others = home.owners()
        if others:
            return {"held_by": others, "note": "the new generation begins when these holds are released"}
        time.sleep(0.5)
    raise RecoveryError(
        f"Generation {number} of {plan.flow} made no progress in {PROGRESS_SECONDS:g} s. See the log of its flow's task (is its DAG "
        "paused?), and run this step again."
    )


def _version(settings: Settings, plan: Plan) -> int | None:
    return delta_log.latest_version(settings.table_path(plan.target))


def _decided(settings: Settings, plan: Plan) -> bool:
    found = generations.read(_home(settings, plan), plan.next_generation)
    return found is not None and found.recovery == plan.recovery_id


def _let_go(settings: Settings, plan: Plan) -> None:
    home = _home(settings, plan)
    holds.release(home, holds.recovery(plan.recovery_id))
    locks.give_back(home.storage, home.pipeline, plan.target, plan.recovery_id)


def _home(settings: Settings, plan: Plan) -> FlowHome:
    """Give where the flow is kept; it need not be declared any more."""
    pipeline, _, flow = plan.flow.partition(".")
    return FlowHome(open_storage(settings.state), pipeline, flow)


def _end(book: Ledger, step: Step) -> None:
    if step is plans.STEPS[-1] and book.find(ENDED) is None:
        book.record(ENDED, {})


def _check_turn(book: Ledger, step: Step) -> None:
    """Make sure that the step before was done or, before the first step, that the plan was approved.

    :raises RecoveryError: the step before was not done.
    :raises PlanRefused: the plan was not approved.
    """
    if step is plans.STEPS[0] and book.find(APPROVED) is None:
        raise PlanRefused("Nobody approved the plan of this recovery yet, so nothing was touched. Approve it where it was asked for.")
    before = plans.STEPS[: plans.STEPS.index(step)]
    if before and book.find(f"{before[-1].value}.done") is None:
        raise RecoveryError(
            f"The step {step.value} comes after {before[-1].value}, which was not done. Nothing was changed; run that one first."
        )


def _check_open(book: Ledger, recovery: str) -> None:
    given_up = book.find(GIVEN_UP)
    if given_up is not None:
        raise RecoveryError(f"The recovery {recovery} was given up ({given_up.evidence.get('why')}). Plan a new one.")


def _book(settings: Settings, flow: str, recovery: str) -> Ledger:
    return ledger.open(open_storage(settings.state), flow.partition(".")[0], recovery)


def _never(value: NoReturn) -> str:
    """Let mypy see that every step has its case (typing.assert_never came with Python 3.11)."""
    return f"{value!r} is no step"
