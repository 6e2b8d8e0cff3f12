"""One DAG for each recovery that a pipeline declares with ``dp.schedule``.

At its time it triggers the recovery's own DAG, without approval.
"""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG
from streamkeeper_airflow.dag_options import dag_options
from streamkeeper_airflow.timetables import by_the_clock

from streamkeeper import settings
from streamkeeper.declare.model import Pipeline, Schedule
from streamkeeper.manifest.manifest import read_manifest, settings_of
from streamkeeper.recover.plans.schedules import conf_of, dag_id
from streamkeeper.settings import Settings

SETTINGS = Settings.from_environment()


def schedule_dag(pipeline: Pipeline, schedule: Schedule) -> DAG:
    """Return the DAG of one schedule.

    The run that it triggers is named after its own run, so that a cleared task triggers no second one.
    """
    suffix = schedule.name.removeprefix(f"{schedule.recovery}__")
    with DAG(
        dag_id=dag_id(pipeline, schedule),
        dag_display_name=f"{pipeline.name} · {schedule.recovery}, scheduled · {suffix}",
        description=f"Triggers {schedule.recovery} with the values that {schedule.location} declares.",
        schedule=by_the_clock(schedule.cron),
        catchup=False,
        max_active_runs=1,
        **dag_options(settings_of(SETTINGS, [pipeline]), "schedule", pipeline.name),
        doc_md=__doc__,
    ) as dag:
        TriggerDagRunOperator(
            task_id="trigger",
            trigger_dag_id=settings.dag_id(schedule.recovery),
            trigger_run_id="{{ dag.dag_id }}__{{ run_id }}",
            conf=conf_of(pipeline, schedule),
            skip_when_already_exists=True,
        )
    return dag


for pipeline in read_manifest(SETTINGS).pipelines:
    for schedule in pipeline.schedules:
        globals()[dag_id(pipeline, schedule)] = schedule_dag(pipeline, schedule)
