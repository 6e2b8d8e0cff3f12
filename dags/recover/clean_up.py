"""`clean_up` removes what a pipeline no longer needs; `clean_up_daily` triggers it.

That is old checkpoints, leases and forgotten flows, and old deletes of AUTO CDC tables. `clean_up_daily`
triggers it with the form's defaults for each pipeline that schedules none itself. It then runs without
approval, since it removes nothing that is still needed.
"""

from __future__ import annotations

from streamkeeper_airflow.recovery.dag import daily_dag, recovery_dag

dag = recovery_dag("clean_up", doc_md=__doc__)
daily = daily_dag("clean_up", "0 0 * * *", doc_md=__doc__)
