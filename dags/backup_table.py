"""The DAG ``backup_table``: a durable copy of a table, counted and checksummed, while its flows go on.
Airflow makes the form.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("backup_table", doc_md=__doc__)
