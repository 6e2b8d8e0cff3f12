"""The DAG ``clean_up``: old checkpoints, leases and forgotten flows of a pipeline go; AUTO CDC tables forget
old deletes. And ``clean_up_daily``, which triggers it with the form's defaults for each pipeline that
schedules none itself: nobody is asked, for nothing that is needed goes.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import daily_dag, recovery_dag

dag = recovery_dag("clean_up", doc_md=__doc__)
daily = daily_dag("clean_up", "0 0 * * *", doc_md=__doc__)
