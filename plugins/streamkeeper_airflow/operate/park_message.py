"""The message on a parked flow: what broke and which recovery fits, for the task's log and the run's note."""

from __future__ import annotations

from typing import Any

from streamkeeper.drivers import failures
from streamkeeper.drivers.failures import Failure, FailureClass
from streamkeeper.flows.holds import Hold
from streamkeeper.recover.kinds.reset_checkpoint import RECOVERY as RESET
from streamkeeper.settings import dag_id
from streamkeeper_airflow.operate.notify import page


def describe_park(flow: str, park: Hold, once: bool = False) -> str:
    """Return which recovery fits a parked ``pipeline.flow``, with the page of its form, and what parked it.

    The recovery comes first, since Airflow's list shows only the first line of a note. A park without a
    classified failure has only its reason.

    :param once: whether the flow runs once.
    """
    failure = failures.read(park.details)
    description = failures.describe(flow, failure) if failure else f"The flow {flow} is parked: {park.reason}"
    note = _with_form(flow, description, park.details.get("recovery"), failure)
    if once:
        note += f"\n\nIt runs once: {RESET} triggers its DAG again; after a correction, trigger it yourself."
    return note


def describe_retried(flow: str, details: dict[str, Any]) -> str:
    """Return what ended a driver of ``pipeline.flow`` that is retried as declared; see :func:`describe_park`.

    :param details: of :func:`streamkeeper.flows.leases.failure_of`, which may be empty.
    """
    failure = failures.read(details)
    description = (
        failures.describe(flow, failure, retried=True)
        if failure
        else f"The flow {flow} failed. It is retried, as its declaration says."
    )
    return _with_form(flow, description, details.get("recovery"), failure)


def _with_form(flow: str, description: str, recovery: str | None, failure: Failure | None) -> str:
    if recovery:
        form = f"{recovery}, at {page(dag_id(recovery))} (button Trigger, flow {flow})"
        return f"Recovery: {form}\n\n{description}"
    if failure is not None and failure.classed is not FailureClass.NEEDS_RECOVERY:
        return f"To be corrected: {failure.meaning}\n\n{description}"
    return description
