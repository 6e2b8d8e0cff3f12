"""Stops flows, and keeps them from running until they are released."""

from __future__ import annotations

from streamkeeper_airflow.forms import form_dag
from streamkeeper_airflow.operate.hold_tasks import HOLD, HoldFlows, StopDrivers

from streamkeeper.recover.requests.hold_flows import HoldRequest


def trust_pages(connection: str) -> None:
    """Let the pages of the connection's cluster be asked."""
    from streamkeeper_airflow.flow import submit  # it loads Spark's provider, a second for each parsed file

    submit.trust_pages(connection)


with form_dag(
    HoldRequest,
    "hold_flows",
    description=(
        "Stops flows after their batch, and keeps them from running; by force only after the deadline."
    ),
    tag="supervision",
    doc_md=__doc__,
):
    hold = HoldFlows(task_id=HOLD)
    stop = StopDrivers(task_id="stop", trust=trust_pages)

    hold >> stop
