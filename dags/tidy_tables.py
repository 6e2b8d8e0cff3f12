"""Compacts small files of tables, and removes files that nothing needs any more."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from streamkeeper_airflow import forms
from streamkeeper_airflow.flow.flow_doc import name_of_another
from streamkeeper_airflow.recovery.tidying import PlanTidying, TidyTables
from streamkeeper_airflow.timetables import by_the_clock

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.requests.tidy_tables import TidyRequest
from streamkeeper.settings import Settings

with DAG(
    dag_id="tidy_tables",
    dag_display_name=name_of_another("Tidy tables"),
    description="OPTIMIZE and VACUUM, once a day; what running flows, their readers and a rewind need stays.",
    schedule=by_the_clock("30 3 * * *"),
    catchup=False,
    max_active_runs=1,
    params=forms.params(TidyRequest.form(read_manifest(Settings.from_environment()))),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    tags=["streamkeeper", "tables"],
    doc_md=__doc__,
):
    plan = PlanTidying(task_id="plan")
    tidy = TidyTables(task_id="tidy", plan_task_id="plan")

    plan >> tidy
