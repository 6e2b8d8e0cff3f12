"""The DAG ``full_refresh_beside``: a table is built anew beside the old one, and put in its place by one
commit. Airflow makes the form.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("full_refresh_beside", doc_md=__doc__)
