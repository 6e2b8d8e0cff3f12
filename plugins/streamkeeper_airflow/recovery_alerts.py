"""Telling people how a recovery ended."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from streamkeeper import plans
from streamkeeper.alerts import AlertKind
from streamkeeper.settings import Settings
from streamkeeper_airflow.alerting import alert, page


def is_decided(step: str) -> bool:
    """Say whether a recovery that is at a step has decided something; what fails before is taken back whole."""
    return plans.STEPS.index(plans.Step(step)) > plans.STEPS.index(plans.Step.DECIDE)


def is_last_try(context: Context) -> bool:
    """Say whether Airflow will not try the task again."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def tell_finished(plan: dict[str, Any], context: Context, evidence: dict[str, Any]) -> None:
    """Tell that the last step is done; what it found may be less than progress, and is said then."""
    text = f"The recovery {plan['recovery']} of {plan['flow']} is done: its new generation works."
    if "held_by" in evidence:
        text = (
            f"The recovery {plan['recovery']} of {plan['flow']} is done, but the flow is held by {', '.join(evidence['held_by'])}: the "
            "new generation begins when these holds are released."
        )
    elif "superseded_by" in evidence:
        text = f"The recovery {plan['recovery']} of {plan['flow']} is done; generation {evidence['superseded_by']} came after it already."
    _tell(AlertKind.RECOVERY_FINISHED, plan, context, text, plan["recovery"])


def tell_failed(plan: dict[str, Any], context: Context, step: str, error: Exception, way_on: str) -> None:
    """Tell that a step failed for good. What fails before the decision is given up besides: that is one occasion, told once."""
    text = f"The recovery {plan['recovery']} of {plan['flow']} failed in its step {step}: {error}{way_on}"
    if not is_decided(step):
        text += "\nNothing was decided: the recovery is given up, and the flow keeps the checkpoint that it has."
    _tell(AlertKind.RECOVERY_FAILED, plan, context, text, f"{plan['recovery']} {step}" if is_decided(step) else plan["recovery"])


def tell_given_up(plan: dict[str, Any], context: Context, said: str) -> None:
    """Tell that a recovery was given up, unless a step told why already."""
    _tell(AlertKind.RECOVERY_FAILED, plan, context, said, plan["recovery"])


def _tell(kind: AlertKind, plan: dict[str, Any], context: Context, text: str, occasion: str) -> None:
    run = context["dag_run"]
    alert(Settings.from_environment(), kind, plan["flow"], text, occasion, link=page(run.dag_id, run.run_id))
