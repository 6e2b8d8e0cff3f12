"""The DAG of a kind of recovery, made from the kind's steps:

    plan >> … >> approve >> hold >> plan_again >> approve_again >> decide >> … >> verify_progress
    decide >> give_up

``plan`` checks all values of the form before anything is changed. Between it and ``approve`` are the steps
that the kind runs before approval. A recovery that ends before the first step that changes something leaves
nothing behind: ``give_up`` removes its holds and locks. ``approve_again`` and ``run_again`` exist if the kind
plans again and waits for progress.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, BaseOperator, TriggerRule, chain

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import course
from streamkeeper.recover.course import Approval
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.kind import Kind, StepKind, kind
from streamkeeper.recover.plans.rehearsal import REHEARSE
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings, dag_id
from streamkeeper.storage import open_storage
from streamkeeper.trial.change import ill
from streamkeeper_airflow import forms
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.recovery.approvals import ASKS, PlanApproval, WorseImpactApproval
from streamkeeper_airflow.recovery.tasks import (
    GiveUp,
    Go,
    OnceFlows,
    PlanRecovery,
    RecoveryStep,
    SparkStep,
    UnaskedStep,
    run_again,
)
from streamkeeper_airflow.timetables import by_the_clock

NOT_PAUSED = (
    "**Before you trigger it:** neither this DAG nor those of its flows (`flow__…`) may be paused. Runs of a"
    " paused DAG wait for ever; `streamkeeper setup` unpauses this one, `airflow dags unpause` a flow's."
)
RETRIES = {
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=1),
}
"""Default retries of a recovery's tasks; a DAG file may set others.

Over three minutes, since an API server that is started again costs each task a try meanwhile. What another
try would meet again ends a task at once.
"""


def recovery_dag(name: str, **more: Any) -> DAG:
    """Return the DAG of a kind of recovery.

    :param name: the kind's, which is the DAG's id after its prefix.
    :param more: passed to :class:`airflow.sdk.DAG` as it is, such as ``schedule``.
    :raises RequestError: there is no such kind.
    """
    recovery_kind = kind(name)
    settings = Settings.from_environment()
    manifest = read_manifest(settings)
    params = forms.params(recovery_kind.form(manifest, ill(open_storage(settings.state), manifest)))
    compared = f"**Recoveries from a park, compared**\n\n{explain.trade_offs()}\n"
    more["doc_md"] = f"{more.get('doc_md') or ''}\n\n{NOT_PAUSED}\n\n{compared}"
    shared = dag_options(settings, "recovery", **{**RETRIES, **more.pop("default_args", {})})
    common = {"schedule": None, "catchup": False, "description": recovery_kind.description, **shared}
    with DAG(
        dag_id(recovery_kind.name),
        params=params,
        **{**common, "dag_display_name": recovery_kind.name, **more},
    ) as dag:
        tasks: list[BaseOperator] = [PlanRecovery(task_id="plan", kind_name=recovery_kind.name)]
        tasks += [_task(recovery_kind, stage) for stage in course.stages(recovery_kind)]
        if recovery_kind.name == REHEARSE:
            tasks.append(Go(task_id="go"))
        chain(*tasks)
        by_name = {task.task_id: task for task in tasks}
        first = recovery_kind.first_change or next(iter(recovery_kind.unasked), None)
        if first is not None:
            by_name[first.name] >> GiveUp(task_id="give_up", after=first.name)
        if shared_steps.VERIFY_PROGRESS in recovery_kind.steps:
            release, verify = by_name[shared_steps.RELEASE.name], by_name[shared_steps.VERIFY_PROGRESS.name]
            once_flows = OnceFlows(task_id="once_flows")
            again = run_again(once_flows)
            by_name[course.APPROVE.name] >> once_flows
            release >> again >> verify
    return dag


def daily_dag(name: str, cron: str, **more: Any) -> DAG:
    """Make the DAG that triggers a kind of recovery once a day, with the form's defaults and nobody asked,
    for each pipeline that schedules none of that kind itself.

    :param more: goes to :class:`airflow.sdk.DAG` as it is.
    """
    settings = Settings.from_environment()
    with DAG(
        dag_id=dag_id(f"{name}_daily"),
        dag_display_name=f"{name}_daily",
        description=f"Triggers {name} for each pipeline.",
        schedule=by_the_clock(cron),
        catchup=False,
        max_active_runs=1,
        **{**dag_options(settings), **more},
    ) as dag:
        for pipeline in read_manifest(settings).pipelines:
            if any(schedule.recovery == name for schedule in pipeline.schedules):
                continue  # with values of its own: dp.schedule("clean_up", …)
            TriggerDagRunOperator(
                task_id=pipeline.name,
                trigger_dag_id=dag_id(name),
                trigger_run_id="{{ dag.dag_id }}__{{ run_id }}__{{ task.task_id }}",
                conf={"pipeline": pipeline.name, "approval": False, "reason": "daily"},
                skip_when_already_exists=True,
            )
    return dag


def _task(recovery_kind: Kind, stage: StepKind | Approval) -> BaseOperator:
    if isinstance(stage, Approval):
        question = WorseImpactApproval if stage.again else PlanApproval
        return question(task_id=stage.name, retries=ASKS)
    arguments: dict[str, Any] = {
        "task_id": stage.name,
        "kind_name": recovery_kind.name,
        "patient": stage.patient,
    }
    if stage is shared_steps.VERIFY_PROGRESS:
        arguments["trigger_rule"] = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
    if stage.unasked:
        return UnaskedStep(**arguments)
    return SparkStep(**arguments) if stage.needs_spark else RecoveryStep(**arguments)
