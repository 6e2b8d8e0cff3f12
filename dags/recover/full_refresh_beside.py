"""Builds a table again beside the old one, and replaces the old one in a single commit."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("full_refresh_beside", doc_md=__doc__)
