"""``tidy_tables``: its form, its plan, and the command of its job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from streamkeeper_airflow.recovery.tidying import PlanTidying, TidyTables

from streamkeeper.drivers.submit import TIDYING_JOB
from streamkeeper.recover.kinds import tidy_tables
from streamkeeper.settings import PROJECT
from tests.recorder import Recorder

pytestmark = pytest.mark.usefixtures("project")


def run_of(**values: Any) -> Context:
    run = SimpleNamespace(conf=values, triggering_user_name="ann", run_type="manual")
    return cast("Context", {"params": {}, "dag_run": run, "ti": SimpleNamespace()})


def make_table(project: Path, name: str) -> None:
    log = project / "warehouse" / name / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text('{"metaData":{"id":"t"}}\n')


def test_the_dag_runs_by_itself_once_a_day_and_by_its_form() -> None:
    bag = DagBag(str(PROJECT / "dags"))
    assert bag.import_errors == {}
    dag = bag.dags["tidy_tables"]
    assert [task.task_id for task in dag.topological_sort()] == ["plan", "tidy"]
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.params.get_param("tables").schema["items"]["enum"] == [
        "first.first_clean",
        "second.second_clean",
    ]
    dag.params.validate()
    assert {task.pool for task in dag.tasks} == {"default_pool"}


def test_the_plan_names_what_is_tidied_and_what_is_left_alone(project: Path) -> None:
    make_table(project, "first_clean")
    found = tidy_tables.from_text(PlanTidying(task_id="plan").execute(run_of()))
    assert [(tidy.table, tidy.left_alone) for tidy in found] == [
        ("first_clean", None),
        ("second_clean", "there is no table yet"),
    ]


def test_only_the_plan(project: Path) -> None:
    make_table(project, "first_clean")
    with pytest.raises(AirflowSkipException, match="Only the plan"):
        PlanTidying(task_id="plan").execute(run_of(dry_run=True))


def test_without_any_table_nothing_is_started() -> None:
    with pytest.raises(AirflowSkipException, match="no table to tidy"):
        PlanTidying(task_id="plan").execute(run_of())


def test_a_bad_value_fails_at_once_in_words() -> None:
    with pytest.raises(AirflowFailException, match="nothing was touched"):
        PlanTidying(task_id="plan").execute(run_of(retention_hours=1))


def test_the_job_is_submitted_on_the_flows_connection_with_the_plan(
    project: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    make_table(project, "first_clean")
    plan = PlanTidying(task_id="plan").execute(run_of())
    handed_on = cast("Context", {"ti": SimpleNamespace(xcom_pull=lambda task_ids: {"plan": plan}[task_ids])})
    TidyTables(task_id="tidy", plan_task_id="plan").execute(handed_on)
    [submitted] = recorder.calls
    assert submitted.option("--master") == "local[2]"
    assert submitted.arguments[-3:] == [str(TIDYING_JOB), "--plan", plan]
    assert submitted.conf["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert submitted.environment["STREAMKEEPER_STATE"] == str(project / "state")
