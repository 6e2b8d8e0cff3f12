"""`remove_driver_logs` removes, once a day, the logs of drivers that ended long ago."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.operate.driver_logs import RemoveDriverLogs
from streamkeeper_airflow.timetables import by_the_clock

from streamkeeper.settings import Settings, dag_id

with DAG(
    dag_id=dag_id("remove_driver_logs"),
    dag_display_name="remove_driver_logs",
    description=(
        "Removes driver logs that were not written for STREAMKEEPER_LOG_RETENTION (30 days); those of"
        " living drivers stay."
    ),
    schedule=by_the_clock("0 0 * * *"),
    catchup=False,
    max_active_runs=1,
    **dag_options(Settings.from_environment(), "monitor"),
    doc_md=__doc__,
) as dag:
    RemoveDriverLogs(task_id="remove", retries=3, retry_delay=timedelta(minutes=1))
