"""Empties a table, and makes its flows read their sources again from the beginning."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("full_refresh", doc_md=__doc__)
