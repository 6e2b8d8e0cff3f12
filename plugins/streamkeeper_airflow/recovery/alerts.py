"""Reports how a recovery ended: by alerts, and by the note of its run if the plan was refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings
from streamkeeper.watch.alerts import AlertKind
from streamkeeper_airflow.operate.notify import page, record_alert
from streamkeeper_airflow.operate.run_note import set_run_note

_LOG = logging.getLogger(__name__)


def is_last_try(context: Context) -> bool:
    """Return whether Airflow will not try the task again."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def tell_undone(plan: dict[str, Any], context: Context, outcome: str) -> None:
    """Alert that a recovery was not begun, or was given up; once, and not if a step reported the reason."""
    _tell(AlertKind.RECOVERY_FAILED, plan, context, f"{_name(plan)} {outcome}", plan["recovery"])


def end_refused(context: Context, error: Exception) -> NoReturn:
    """End the run of a recovery whose plan was refused, with the reasons in the run's note.

    Airflow's list of runs shows only the first line of a note: it holds the first reason.

    :raises AirflowSkipException: a person asked for the run.
    :raises AirflowFailException: a schedule did; nobody looks at such a run, so it is red.
    """
    lines = str(error).splitlines()
    first, *others = [line.removeprefix("- ") for line in lines if line.startswith("- ")] or lines
    _LOG.warning("The plan is refused: %s", error)
    run = context["dag_run"]
    advice = (
        "Nothing was changed. The plan, if there is one, is in the log of the task. Trigger the DAG again"
        " with other values."
    )
    set_run_note(run.dag_id, run.run_id, "\n\n".join([f"Refused: {first}", *others, advice]))
    if run.run_type != "manual":
        raise AirflowFailException(str(error)) from error
    raise AirflowSkipException(f"The plan is refused: {error}") from error


def tell_finished(plan: dict[str, Any], context: Context, evidence: dict[str, Any]) -> None:
    """Alert that the last step is done, and for which flows it found less than progress."""
    shortfalls = [
        part
        for name, flow_evidence in evidence.get("flows", {}).items()
        for part in _less_than_progress(name, flow_evidence)
    ]
    done = "its new generation runs." if len(evidence.get("flows", {})) == 1 else "the new generations run."
    text = f"{_name(plan)} is done{': ' + done if 'flows' in evidence else '.'}"
    if shortfalls:
        text = f"{_name(plan)} is done, but {'; '.join(shortfalls)}."
    _tell(AlertKind.RECOVERY_FINISHED, plan, context, text, plan["recovery"])


def _less_than_progress(flow: str, flow_evidence: dict[str, Any]) -> Iterator[str]:
    if "held_by" in flow_evidence:
        yield (
            f"the flow {flow} is held by {', '.join(flow_evidence['held_by'])}: the new generation starts"
            " when these holds are released"
        )
    elif "superseded_by" in flow_evidence:
        yield f"on {flow} generation {flow_evidence['superseded_by']} has replaced it already"


def tell_failed(plan: dict[str, Any], context: Context, step: str, error: Exception, way_on: str) -> None:
    """Record the alert that a step failed for good.

    A failure before anything was changed also ends in the recovery being given up; both are one occasion,
    reported once.

    :param way_on: how to proceed after a change; empty if there was none.
    """
    undone = (
        "\nNothing was changed: the recovery is given up, and every flow keeps the checkpoint that it has."
    )
    text = f"{_name(plan)} failed in its step {step}: {error}{way_on or undone}"
    occasion = f"{plan['recovery']} {step}" if way_on else plan["recovery"]
    _tell(AlertKind.RECOVERY_FAILED, plan, context, text, occasion)


def _name(plan: dict[str, Any]) -> str:
    return f"The recovery {plan['recovery']} of {plan['subject']}"


def _tell(kind: AlertKind, plan: dict[str, Any], context: Context, text: str, occasion: str) -> None:
    if plan["flow"] is None:
        _LOG.warning(
            "No alert is sent, because the pipeline %s has no flow: %s", plan["pipeline"], redact_text(text)
        )
        return
    run = context["dag_run"]
    link = page(run.dag_id, run.run_id)
    record_alert(Settings.from_environment(), kind, plan["flow"], redact_text(text), occasion, link=link)
