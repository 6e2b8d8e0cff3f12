"""Writes rows again, or for the first time, through a flow's views into its table, while the flow runs."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("backfill", doc_md=__doc__)
