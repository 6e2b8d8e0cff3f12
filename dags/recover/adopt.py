"""Makes a checkpoint of any Structured Streaming job generation 1 of a declared flow.

The checkpoint is copied, and stays as it is.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("adopt", doc_md=__doc__)
