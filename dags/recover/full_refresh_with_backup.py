"""Backs a table up, empties it, and fills it again."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("full_refresh_with_backup", doc_md=__doc__)
