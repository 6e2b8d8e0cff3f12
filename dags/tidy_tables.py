"""The DAG ``tidy_tables``: puts small files of a pipeline's tables together and removes those that nobody
needs any more. And ``tidy_tables_daily``, which triggers it with the form's defaults for each pipeline that
schedules none itself. Nobody is asked, for no row changes; one run follows another, so that never two jobs
compete for the machine.
"""

from __future__ import annotations

from datetime import timedelta

from streamkeeper_airflow.recovery.dag import daily_dag, recovery_dag

RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=5)}

dag = recovery_dag("tidy_tables", max_active_runs=1, default_args=RETRIES, doc_md=__doc__)
daily = daily_dag("tidy_tables", "30 3 * * *", doc_md=__doc__)
