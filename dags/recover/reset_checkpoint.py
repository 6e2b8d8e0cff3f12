"""Starts the next generation of flows, with a new checkpoint at the position in the form."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("reset_checkpoint", doc_md=__doc__)
