"""One DAG for each driver, which keeps it running and waits while it is held or parked.

The DAG is ``flow__<pipeline>__<flow>``, or ``flows__<pipeline>`` if the flows of a pipeline share a driver.
The DAG of a once flow runs until the flow is done. The flows come from the manifest, never from the pipeline
files themselves.
"""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from airflow.sdk import DAG, get_parsing_context
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.flow.flow_doc import description, documentation, name_of_flows
from streamkeeper_airflow.flow.gate import HoldGate
from streamkeeper_airflow.flow.supervise import FlowOperator
from streamkeeper_airflow.table_asset import table_asset

from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest, settings_of
from streamkeeper.settings import Settings

# Any past date: without one, a @continuous DAG's second run gets the first one's date, and is never created.
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
AGAIN = ("manual", "operator_triggered")
SETTINGS = Settings.from_environment()


def flow_dag(flows: list[Flow], manifest: Manifest) -> DAG:
    """Return the DAG of one flow, or of those that share a driver."""
    once = flows[0].declaration.once  # a once flow shares no driver
    names = [flow.full_name for flow in flows]
    tables = dict.fromkeys(flow.declaration.target for flow in flows if flow.sink is None)
    settings, shared = settings_of(SETTINGS, [flows[0].pipeline]), flows[0].pipeline.shared_driver
    which: dict[str, Any] = {"flows": names} if shared else {"flow": names[0]}
    with DAG(
        dag_id=flows[0].dag_id,
        dag_display_name=name_of_flows(flows),
        description=description(flows),
        schedule="@once" if once else "@continuous",
        start_date=LONG_AGO,
        max_active_runs=1,
        catchup=False,
        allowed_run_types=["scheduled", *AGAIN] if once else ["scheduled"],  # type: ignore[list-item]  # the enum is private, its values not
        disable_bundle_versioning=True,
        **dag_options(settings, "flow", flows[0].pipeline.name),
        doc_md=documentation(flows, manifest),
    ) as dag:
        gate = HoldGate(task_id="gate", **which)
        which |= {"pool": settings.pool, "connection": settings.connection}
        gate >> FlowOperator(task_id="run", once=once, outlets=[*map(table_asset, tables)], **which)
    return dag


manifest, task_of = read_manifest(SETTINGS), get_parsing_context().dag_id
for dag_id, flows in groupby(manifest.flows(), lambda flow: flow.dag_id):
    # A task's process needs its own DAG alone, and would take seconds to make a thousand.
    if task_of in (None, dag_id):
        globals()[dag_id] = flow_dag(list(flows), manifest)
