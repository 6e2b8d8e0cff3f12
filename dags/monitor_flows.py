"""Checks once a minute whether each flow makes progress, and alerts the pipeline's notifiers if not.

Posts the events of the tables' assets, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.operate.asset_events import PostAssetEvents
from streamkeeper_airflow.operate.monitor import MonitorFlows

from streamkeeper.settings import Settings, dag_id

with DAG(
    dag_id=dag_id("monitor_flows"),
    dag_display_name="monitor_flows",
    description=(
        "Alerts when a flow makes no progress although input is waiting, and when it commits again."
    ),
    schedule=timedelta(minutes=1),
    start_date=datetime(2020, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    # An execution_timeout would do as well, but it shares its alarm clock with the limit of the notifiers.
    dagrun_timeout=timedelta(minutes=10),
    **dag_options(Settings.from_environment(), "monitor"),
    doc_md=__doc__,
) as dag:
    # The default pool: flows have one of their own and cannot fill it. The retries are for tasks that a busy
    # Airflow could not start.
    MonitorFlows(task_id="look", retries=2, retry_delay=timedelta(seconds=10))
    # A task of its own: it posts when it succeeds, and the look fails while one flow cannot be read.
    PostAssetEvents(task_id="post_asset_events", retries=2, retry_delay=timedelta(seconds=10))
