"""A batch DAG that a stream schedules: writes a report of each hour of ``order_totals``.

A run comes when the stream's watermark has passed the hour, and again for each hour that a rewind or a full
refresh opened and the stream has closed anew. The reports are ``{data}/order_reports/<hour>.json``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfHourMapper, task
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.table_asset import table_asset

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings, dag_id
from streamkeeper.storage import open_storage, to_json

TABLE = "order_totals"
ASSET = table_asset(TABLE)
TOTALS = "SELECT customer_id, orders, amount FROM totals WHERE hour = TIMESTAMP '{}' ORDER BY customer_id"


def write_report(settings: Settings, hour: datetime) -> str:
    """Write the report of an hour from the table as it is now, and return its path."""
    from deltalake import DeltaTable, QueryBuilder  # streamkeeper-airflow[delta]

    totals = QueryBuilder().register("totals", DeltaTable(settings.table_path(TABLE)))
    batches = totals.execute(TOTALS.format(hour.isoformat()))
    rows = [row for batch in batches for row in batch.to_struct_array().to_pylist()]
    reports, name = open_storage(settings.data), f"order_reports/{hour:%Y-%m-%dT%H}.json"
    reports.overwrite(name, to_json([{**row, "amount": str(row["amount"])} for row in rows]))
    return reports.path(name)


def order_report(settings: Settings) -> DAG:
    """Return the DAG: one run for each hour, named by the run's partition."""
    with DAG(
        dag_id=dag_id("order_report"),
        dag_display_name="order_report",
        description="Writes a report of each hour of order_totals, as soon as the stream has closed it.",
        schedule=PartitionedAssetTimetable(assets=ASSET, default_partition_mapper=StartOfHourMapper()),
        catchup=False,
        max_active_runs=1,
        **dag_options(settings, "example"),
        doc_md=__doc__,
    ) as dag:

        @task
        def report(dag_run: Any = None) -> str:
            return write_report(Settings.from_environment(), dag_run.partition_date)

        report()
    return dag


SETTINGS = Settings.from_environment()
if read_manifest(SETTINGS).pipeline(TABLE) is not None:
    dag = order_report(SETTINGS)
