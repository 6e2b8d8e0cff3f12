"""Restores a table from a backup, or to an earlier version; its flows continue from there."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("restore_table", doc_md=__doc__)
