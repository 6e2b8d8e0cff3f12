"""The course of a recovery: the order of its steps and approvals, and what is decided before it begins.

Airflow's DAG has a task for each stage; the command line goes through the stages in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Kind, StepKind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps.shared import PLAN_AGAIN, check_accepted, check_possible


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


def trial(plan: Plan) -> tuple[StepKind, ...]:
    """Return the steps to carry out before the approval, with which a dry run ends.

    None if the plan cannot be carried out, whatever is accepted.
    """
    return () if any(item.impact is None for item in plan.refusals) else engine.unasked_steps(plan)


def check(plan: Plan, *, asks: bool) -> None:
    """Check that a plan may begin.

    :param asks: whether a person is asked, and accepts its impacts by the approval.
    :raises PlanRefused: it may not; the message says why.
    """
    (check_possible if asks else check_accepted)(plan)
