"""The DAG ``backfill``: rows that come once more, through a flow's views into its table, while it runs on.
Airflow makes the form.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("backfill", doc_md=__doc__)
