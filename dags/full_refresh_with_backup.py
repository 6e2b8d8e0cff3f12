"""The DAG ``full_refresh_with_backup``: a table is backed up, emptied, and filled again. Airflow makes the
form.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("full_refresh_with_backup", doc_md=__doc__)
