"""Removes a person's hold, so that flows run again."""

from __future__ import annotations

from streamkeeper_airflow.forms import form_dag
from streamkeeper_airflow.operate.hold_tasks import ReleaseFlows

from streamkeeper.recover.requests.hold_flows import ReleaseRequest

with form_dag(
    ReleaseRequest,
    "release_flows",
    description=(
        "Releases your hold, or a named person's, from flows; holds of others, parks and recoveries stay."
    ),
    tag="supervision",
    doc_md=__doc__,
) as dag:
    ReleaseFlows(task_id="release")
