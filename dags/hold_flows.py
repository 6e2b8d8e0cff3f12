"""Stops flows, and keeps them from running until they are released."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from streamkeeper_airflow import forms
from streamkeeper_airflow.operate.hold_tasks import HOLD, HoldFlows, StopDrivers

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.hold_flows import HoldRequest
from streamkeeper.settings import Settings

with DAG(
    dag_id="hold_flows",
    description=(
        "Stops flows after their batch, and keeps them from running; by force only after the deadline."
    ),
    schedule=None,
    catchup=False,
    params=forms.params(HoldRequest.form(read_manifest(Settings.from_environment()))),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["streamkeeper", "supervision"],
    doc_md=__doc__,
):
    hold = HoldFlows(task_id=HOLD)
    stop = StopDrivers(task_id="stop")

    hold >> stop
