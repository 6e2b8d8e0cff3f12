"""Removes a person's hold, so that flows run again."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from streamkeeper_airflow import forms
from streamkeeper_airflow.operate.hold_tasks import ReleaseFlows

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.hold_flows import ReleaseRequest
from streamkeeper.settings import Settings

with DAG(
    dag_id="release_flows",
    description=(
        "Releases your hold, or a named person's, from flows; holds of others, parks and recoveries stay."
    ),
    schedule=None,
    catchup=False,
    params=forms.params(ReleaseRequest.form(read_manifest(Settings.from_environment()))),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["streamkeeper", "supervision"],
    doc_md=__doc__,
):
    ReleaseFlows(task_id="release")
