"""Rebuilds a table in a side table, and replaces the old one in a single commit."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("rebuild_without_downtime", doc_md=__doc__)
