"""`clean_up` removes what a pipeline no longer needs; `clean_up_daily` triggers it.

That is old checkpoints, leases and forgotten flows, and old deletes of AUTO CDC tables. `clean_up_daily`
triggers it with the form's defaults for each pipeline that schedules none itself. It then runs without
approval, since it removes nothing that is still needed.
"""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG
from streamkeeper_airflow.flow.flow_doc import name_of_another
from streamkeeper_airflow.recovery.dag import recovery_dag
from streamkeeper_airflow.timetables import by_the_clock

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings

dag = recovery_dag("clean_up", doc_md=__doc__)

with DAG(
    dag_id="clean_up_daily",
    dag_display_name=name_of_another("Clean up, daily"),
    description="Triggers clean_up for each pipeline.",
    schedule=by_the_clock("0 0 * * *"),
    catchup=False,
    max_active_runs=1,
    tags=["streamkeeper"],
    doc_md=__doc__,
) as daily:
    for pipeline in read_manifest(Settings.from_environment()).pipelines:
        if any(schedule.recovery == "clean_up" for schedule in pipeline.schedules):
            continue  # with retentions of its own: dp.schedule("clean_up", …)
        TriggerDagRunOperator(
            task_id=pipeline.name,
            trigger_dag_id="clean_up",
            trigger_run_id="{{ dag.dag_id }}__{{ run_id }}__{{ task.task_id }}",
            conf={"pipeline": pipeline.name, "approval": False, "reason": "daily"},
            skip_when_already_exists=True,
        )
