"""The DAG ``reset_checkpoint``: a flow's next generation, with a new checkpoint that starts where its form says. Airflow makes the form."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, TriggerRule
from streamkeeper_airflow import forms
from streamkeeper_airflow.recovery import ASKS, GiveUp, PlanApproval, RecoveryStep, ResetPlan, RunAgain, WorsePriceApproval

from streamkeeper.manifest import read_manifest
from streamkeeper.requests import reset_form
from streamkeeper.settings import Settings

with DAG(
    dag_id="reset_checkpoint",
    description="Gives a flow a new checkpoint, from exactly where it stood or from where you say; its table is kept.",
    schedule=None,
    catchup=False,
    params=forms.params(reset_form(read_manifest(Settings.from_environment()))),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["streamkeeper", "recovery"],
    doc_md=__doc__,
):
    plan = ResetPlan(task_id="plan")
    approve = PlanApproval(task_id="approve", retries=ASKS)
    hold = RecoveryStep(task_id="hold")
    plan_again = RecoveryStep(task_id="plan_again")
    approve_again = WorsePriceApproval(task_id="approve_again", retries=ASKS)
    decide = RecoveryStep(task_id="decide")
    verify_tables = RecoveryStep(task_id="verify_tables")
    release = RecoveryStep(task_id="release")
    run_again = RunAgain(task_id="run_again")
    verify_progress = RecoveryStep(task_id="verify_progress", patient=True, trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    give_up = GiveUp(task_id="give_up")

    decide >> give_up
    release >> run_again >> verify_progress
    plan >> approve >> hold >> plan_again >> approve_again >> decide >> verify_tables >> release >> verify_progress
