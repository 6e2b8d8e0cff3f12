"""Makes a flow continue after an earlier batch, time or position; its table is kept, or restored too."""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("rewind", doc_md=__doc__)
