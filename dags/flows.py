"""One DAG a driver keeps it running, and waits while it is held or parked. Airflow finds them here.

It is ``flow__<pipeline>__<flow>``, or ``flows__<pipeline>`` where the flows of a pipeline share a driver.
The flows come from the manifest, never from the pipeline files themselves.
"""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from airflow.sdk import DAG
from streamkeeper_airflow.gate import HoldGate
from streamkeeper_airflow.operators import FlowOperator

from streamkeeper.manifest import Flow, Manifest, read_manifest
from streamkeeper.settings import Settings

# Any past moment will do. Without one, a @continuous DAG's second run gets the logical date of its first, and is never made.
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


def documentation(flows: list[Flow], manifest: Manifest) -> str:
    """Say what the flows do and, if their file cannot be read at present, why."""
    broken = manifest.errors.get(flows[0].pipeline.name)
    does = "**{0.full_name}** appends to `{1.target}` ({1.where}), every {1.trigger}."
    lines = [
        *(does.format(flow, flow.declaration) for flow in flows),
        "They share one Spark application, which ends and starts with all that may run." if len(flows) > 1 else "",
        "A flow is held by `streamkeeper hold`, a park or a recovery; a parked flow needs `reset_checkpoint` or a corrected declaration.",
        f"**Its file cannot be read; it goes on as last declared.**\n\n```\n{broken}\n```" if broken else "",
    ]
    return "\n\n".join(line for line in lines if line)


def flow_dag(flows: list[Flow], manifest: Manifest) -> DAG:
    """Give the DAG of one flow, or of those that share a driver."""
    names = [flow.full_name for flow in flows]
    which: dict[str, Any] = {"flows": names} if flows[0].pipeline.shared_driver else {"flow": names[0]}
    with DAG(
        dag_id=flows[0].dag_id,
        schedule="@continuous",
        start_date=LONG_AGO,
        max_active_runs=1,
        catchup=False,
        allowed_run_types=["scheduled"],  # type: ignore[list-item]  # the enum is private to the SDK, its values are not
        disable_bundle_versioning=True,
        tags=["streamkeeper", "flow", flows[0].pipeline.name],
        doc_md=documentation(flows, manifest),
    ) as dag:
        gate = HoldGate(task_id="gate", **which)
        run = FlowOperator(task_id="run", **which)
        gate >> run
    return dag


manifest = read_manifest(Settings.from_environment())
for dag_id, flows in groupby(manifest.flows(), lambda flow: flow.dag_id):
    globals()[dag_id] = flow_dag(list(flows), manifest)
