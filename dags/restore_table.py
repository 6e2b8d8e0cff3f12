"""The DAG ``restore_table``: puts a backup, or an earlier version, of a table back; its flows go on from
there. Airflow makes the form.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("restore_table", doc_md=__doc__)
