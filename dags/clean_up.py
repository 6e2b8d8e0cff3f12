"""The DAG ``clean_up``: old checkpoints, leases and forgotten flows of a pipeline go; AUTO CDC tables forget old deletes."""

from __future__ import annotations

from streamkeeper_airflow.recovery import recovery_dag

dag = recovery_dag("clean_up", doc_md=__doc__)
