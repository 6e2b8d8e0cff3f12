"""Makes a durable copy of a table, with row counts and checksums, while its flows run."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("backup_table", doc_md=__doc__)
