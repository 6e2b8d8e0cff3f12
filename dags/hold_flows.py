"""Stops flows, and keeps them from running until they are released."""

from __future__ import annotations

from streamkeeper_airflow.forms import form_dag
from streamkeeper_airflow.operate.hold_tasks import HOLD, HoldFlows, StopDrivers

from streamkeeper.recover.requests.hold_flows import HoldRequest

with form_dag(
    HoldRequest,
    "hold_flows",
    description=(
        "Stops flows after their batch, and keeps them from running; by force only after the deadline."
    ),
    tag="supervision",
    doc_md=__doc__,
) as dag:
    hold = HoldFlows(task_id=HOLD)
    stop = StopDrivers(task_id="stop")

    hold >> stop
