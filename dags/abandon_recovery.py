"""Gives up a recovery that stopped: its holds and locks are removed, and what it has changed stays."""

from __future__ import annotations

from streamkeeper_airflow.forms import form_dag
from streamkeeper_airflow.operate.abandon_task import AbandonRecovery

from streamkeeper.recover.requests.hold_flows import AbandonRequest

with form_dag(
    AbandonRequest,
    "abandon_recovery",
    description="Gives up a recovery that stopped; what it has changed stays.",
    tag="recovery",
    doc_md=__doc__,
) as dag:
    AbandonRecovery(task_id="abandon")
