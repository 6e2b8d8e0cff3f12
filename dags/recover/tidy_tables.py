"""`tidy_tables` compacts small files of a pipeline's tables, and removes files that nothing needs any more.

`tidy_tables_daily` triggers it with the form's defaults for each pipeline that schedules none itself. It then
runs without approval, since no row changes. One run follows another, so that no two jobs compete for the
machine.
"""

from __future__ import annotations

from datetime import timedelta

from streamkeeper_airflow.recovery.dag import daily_dag, recovery_dag

RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=5)}

dag = recovery_dag("tidy_tables", max_active_runs=1, default_args=RETRIES, doc_md=__doc__)
daily = daily_dag("tidy_tables", "30 3 * * *", doc_md=__doc__)
