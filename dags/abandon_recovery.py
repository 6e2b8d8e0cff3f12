"""Gives up a recovery that stopped: its holds and locks are removed, and what it has changed stays."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from streamkeeper_airflow import forms
from streamkeeper_airflow.operate.abandon_task import AbandonRecovery

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.hold_flows import AbandonRequest
from streamkeeper.settings import Settings

with DAG(
    dag_id="abandon_recovery",
    description="Gives up a recovery that stopped; what it has changed stays.",
    schedule=None,
    catchup=False,
    params=forms.params(AbandonRequest.form(read_manifest(Settings.from_environment()))),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["streamkeeper", "recovery"],
    doc_md=__doc__,
):
    AbandonRecovery(task_id="abandon")
