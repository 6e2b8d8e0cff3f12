"""Who may approve a recovery, as the settings have it: some users alone, always somebody, or another person.

Airflow's tasks and the command line ask here. Whoever can write the state folder goes past it.
"""

from __future__ import annotations

from streamkeeper.errors import ApprovalRefused, PlanRefused
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings

_UNCHANGED = "Nothing was changed."


def check(settings: Settings, plan: Plan, user: str) -> None:
    """Check that a user may approve a plan.

    :raises ApprovalRefused: the settings give that to others.
    """
    if settings.approvers and user not in settings.approvers:
        raise ApprovalRefused(
            f"{user} may not approve {plan.recovery_id}: STREAMKEEPER_APPROVERS names"
            f" {', '.join(settings.approvers)}. {_UNCHANGED} Let one of them approve it in Airflow."
        )
    if settings.approver_differs and user == plan.by:
        raise ApprovalRefused(
            f"{user} asked for {plan.recovery_id} and may not approve it:"
            f" STREAMKEEPER_APPROVER_DIFFERS demands another person. {_UNCHANGED} Let somebody else approve"
            " it in Airflow."
        )


def check_off(settings: Settings) -> None:
    """Check that a person may let a plan be carried out without being asked.

    :raises PlanRefused: the settings forbid it.
    """
    if settings.approval_always:
        raise PlanRefused(
            f"STREAMKEEPER_APPROVAL_ALWAYS forbids people to switch the approval off. {_UNCHANGED} Ask again"
            " with approval switched on (on the command line, without --yes)."
        )
