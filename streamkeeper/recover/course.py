"""The course of a recovery: the order of its steps and approvals, and what is decided before it begins.

Airflow's DAG has a task for each stage; the command line goes through the stages in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamkeeper.errors import PlanRefused
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Kind, StepKind, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps.shared import PLAN_AGAIN, check_accepted, check_possible

Evidence = dict[str, dict[str, Any]]
"""The evidence of each step that was carried out, by its name."""


@dataclass(frozen=True)
class Approval:
    """The stage at which a person approves the plan or, with ``again``, the plan that got worse under the
    hold. Where nobody is asked, the former is granted, and the latter ends the recovery.
    """

    name: str
    again: bool = False


APPROVE = Approval("approve")
APPROVE_AGAIN = Approval("approve_again", again=True)


def stages(recovery_kind: Kind) -> Iterator[StepKind | Approval]:
    """Yield the steps and approvals of a kind of recovery, in their order."""
    yield from recovery_kind.unasked
    yield APPROVE
    for step in recovery_kind.after_approval:
        yield step
        if step.name == PLAN_AGAIN.name:
            yield APPROVE_AGAIN


class Undone(StrEnum):
    """Why a recovery is given up that changed nothing, as the ledger keeps it."""

    REJECTED = "the plan was not approved"
    WORSE = "the impact got worse, and was not approved again"
    LOCKED = "another recovery had the table"
    TRIAL_FAILED = "its rehearsal failed"
    BEFORE_CHANGE = "rejected, or failed before anything was changed"


def carry_through(
    plan: Plan, step: Callable[[str], dict[str, Any]], approval: Callable[[Approval, Evidence], None]
) -> Evidence:
    """Go through the stages of a recovery in one process, and return the evidence of its steps.

    :param step: carries out one of them, by its name.
    :param approval: asks, or raises; is handed what was carried out so far.
    """
    evidence: Evidence = {}
    for stage in stages(kind(plan.recovery)):
        if isinstance(stage, Approval):
            approval(stage, evidence)
        elif stage.name in plan.steps:
            evidence[stage.name] = step(stage.name)
    return evidence


def asks_at(stage: Approval, evidence: dict[str, Any], *, asks: bool) -> bool:
    """Return whether a person must answer at an approval; nobody must where the impact got no worse.

    :param evidence: of the step that planned again, if the approval is of that.
    :param asks: whether there is somebody to ask.
    :raises PlanRefused: the impact got worse, and there is nobody to ask.
    """
    if not stage.again:
        return asks
    if evidence["worse"] and not asks:
        raise PlanRefused(
            "The impact got worse since the plan was made, and was not approved again, since nobody is asked."
            " It changed nothing. Start it again where a person is asked."
        )
    return bool(evidence["worse"])


def trial(plan: Plan) -> tuple[StepKind, ...]:
    """Return the steps before the approval, with which a dry run ends; none if the plan is impossible."""
    return () if any(item.impact is None for item in plan.refusals) else engine.unasked_steps(plan)


def check(plan: Plan, *, asks: bool) -> None:
    """Check that a plan may begin.

    :param asks: whether a person is asked, and accepts its impacts by the approval.
    :raises PlanRefused: it may not; the message says why.
    """
    (check_possible if asks else check_accepted)(plan)
