"""The DAG ``adopt``: a checkpoint that anybody's job made becomes generation 1 of a declared flow; it is
copied, and left as it is.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import recovery_dag

dag = recovery_dag("adopt", doc_md=__doc__)
