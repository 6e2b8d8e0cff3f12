"""The DAG files: what they parse to, and what parsing them does not do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables import trigger
from airflow.timetables.base import TimeRestriction
from airflow.timetables.simple import ContinuousTimetable
from streamkeeper_airflow.operate.notify import page
from streamkeeper_airflow.recovery.dag import recovery_dag
from streamkeeper_airflow.recovery.tasks import SparkStep, UnaskedStep

from streamkeeper.flows import holds
from streamkeeper.flows.files import open_home
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.settings import PROJECT, Settings, dag_id, dag_name
from tests.airflow.conftest import configure, lay_out

SCHEDULES = {
    "first": 'dp.schedule("reset_checkpoint", flow="first_flow", cron="30 4 * * *")',
    "second": 'dp.schedule("backup_table", table="second_clean", cron="0 3 * * *")',
}


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagBag]:
    """The DAGs of two pipelines with a schedule each, parsed once; the settings point to their project."""
    with pytest.MonkeyPatch.context() as patch:
        root = lay_out(tmp_path_factory.mktemp("dags"), patch)
        for name, line in SCHEDULES.items():
            (root / "pipelines" / f"{name}.py").open("a").write(f"\n{line}\n")
        yield DagBag(str(PROJECT / "dags"))


def test_every_dag_has_a_description_and_a_name_that_begins_as_one_types_it(bag: DagBag) -> None:
    assert bag.import_errors == {}
    names = {dag_id: dag.dag_display_name for dag_id, dag in bag.dags.items()}
    assert names["flow__first__first_flow"] == "first · first_flow"
    scheduled = "second · backup_table, scheduled · second_clean"
    assert names["schedule__second__backup_table__second_clean"] == scheduled
    others = [dag_id for dag_id in names if not dag_id.startswith(("flow__", "schedule__"))]
    assert {"reset_checkpoint", "hold_flows", "monitor_flows"} <= set(others)
    assert [names[dag_id] for dag_id in others] == others, "what messages call a DAG finds it"
    tagged = {dag_id for dag_id, dag in bag.dags.items() if "flow" in dag.tags}
    assert tagged == {"flow__first__first_flow", "flow__second__second_flow"}
    assert [dag_id for dag_id, dag in bag.dags.items() if not dag.description or "`" in dag.description] == []
    assert bag.dags["flow__first__first_flow"].description == "Appends to first_clean, every 10 seconds."


def test_what_all_tasks_have_in_common_is_that_of_the_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"POOL": "etl", "CONNECTION": "spark_default", "DAG_TAGS": "prod, streaming"}
    values |= {"DAG_OWNER": "data team", "DAG_QUEUE": "spark", "DAG_PRIORITY": "7"}
    for name, value in values.items():
        monkeypatch.setenv(f"STREAMKEEPER_{name}", value)
    dags = DagBag(str(PROJECT / "dags")).dags
    assert {
        name for name, dag in dags.items() if not {"streamkeeper", "prod", "streaming"} <= dag.tags
    } == set()
    tasks = [task for dag in dags.values() for task in dag.tasks]
    assert {(task.owner, task.queue, task.priority_weight) for task in tasks} == {("data team", "spark", 7)}
    assert dags["flow__first__first_flow"].task_dict["run"].pool == "etl"
    assert dags["flow__first__first_flow"].task_dict["run"].connection == "spark_default"
    step = next(task for task in dags["reset_checkpoint"].tasks if isinstance(task, SparkStep))
    assert step._conn_id == "spark_default"
    assert dags["tidy_tables"].tasks[0].retry_delay.total_seconds() == 300, "a DAG's own arguments stay"


def test_owner_tags_pool_and_connection_of_a_pipelines_dags_are_those_that_it_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_DAG_OWNER", "everybody")
    configure(project, 'owner="team a", tags=["silver"], pool="team_a", connection="spark_a"')
    with (project / "pipelines" / "first.py").open("a") as file:
        file.write(SCHEDULES["first"])
    dags = DagBag(str(PROJECT / "dags")).dags
    own, other = dags["flow__first__first_flow"], dags["flow__second__second_flow"]
    run, other_run = own.task_dict["run"], other.task_dict["run"]
    assert (run.owner, run.pool, run.connection) == ("team a", "team_a", "spark_a")
    assert own.tags == {"streamkeeper", "flow", "first", "silver"}
    trigger = dags["schedule__first__reset_checkpoint__first_flow"].task_dict["trigger"]
    assert (trigger.owner, trigger.pool) == ("team a", "default_pool")
    expected = ("everybody", "streaming_flows", "streamkeeper_spark")
    assert (other_run.owner, other_run.pool, other_run.connection) == expected


def test_the_second_run_of_a_flow_does_not_get_the_logical_date_of_the_first(bag: DagBag) -> None:
    timetable = ContinuousTimetable()
    limits = TimeRestriction(
        earliest=bag.dags["flow__first__first_flow"].start_date, latest=None, catchup=False
    )
    first = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=limits)
    second = timetable.next_dagrun_info(last_automated_data_interval=first.data_interval, restriction=limits)
    assert first.logical_date < second.logical_date


def test_what_stands_beside_the_steps_of_a_reset_gives_up_and_runs_a_once_flow_again(bag: DagBag) -> None:
    tasks = bag.dags["reset_checkpoint"].task_dict
    assert (tasks["give_up"].upstream_task_ids, tasks["give_up"].trigger_rule) == ({"decide"}, "all_done")
    assert (tasks["run_again"].upstream_task_ids, tasks["run_again"].downstream_task_ids) == (
        {"release", "once_flows"},
        {"verify_progress"},
    )
    assert (tasks["once_flows"].upstream_task_ids, tasks["run_again"].is_mapped) == ({"approve"}, True)
    rule = tasks["verify_progress"].trigger_rule
    assert rule == "none_failed_min_one_success", "it waits for no task that is skipped"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_of_recovery_has_a_dag_with_its_form_and_its_steps_in_their_order(
    name: str, bag: DagBag
) -> None:
    dag, of = bag.dags[name], kind(name)
    names = [
        task.task_id
        for task in dag.topological_sort()
        if task.task_id in ("plan", "approve", "rehearse", *of.step_names)
    ]
    unasked = [step.name for step in of.unasked]
    assert names == ["plan", *unasked, "approve", *(step.name for step in of.after_approval)]
    assert all(type(dag.task_dict[step]) is UnaskedStep for step in unasked)
    for earlier, later in pairwise(names):
        between = dag.task_dict[earlier].downstream_task_ids
        assert later in between or between & dag.task_dict[later].upstream_task_ids, (
            f"{later} follows {earlier}"
        )
    assert [step.name for step in of.steps if isinstance(dag.task_dict[step.name], SparkStep)] == [
        step.name for step in of.steps if step.needs_spark
    ]
    changes = of.first_change is not None or bool(of.unasked)
    assert ("give_up" in dag.task_dict) == changes, "one that changed nothing ends: holds, locks, copies"
    assert ("approve_again" in dag.task_dict) == ("plan_again" in of.step_names), (
        "an impact that got worse is asked about"
    )
    form = of.form(read_manifest(Settings.from_environment()))
    assert list(dag.params) == [field.name for field in form if field.name != "accept"], (
        "an impact is accepted with the plan in view"
    )
    assert (dag.description, dag.catchup) == (of.description, False)
    assert "Before you trigger it" in dag.doc_md, "a run of a paused DAG waits for ever"


def test_a_declared_schedule_has_a_dag_that_triggers_its_recovery_with_nobody_asked(bag: DagBag) -> None:
    dag = bag.dags["schedule__first__reset_checkpoint__first_flow"]
    trigger = dag.task_dict["trigger"]
    assert trigger.trigger_dag_id == "reset_checkpoint"
    assert trigger.conf == {"reason": "scheduled: 30 4 * * *", "flow": "first.first_flow", "approval": False}
    assert (trigger.skip_when_already_exists, trigger.trigger_run_id) == (
        True,
        "{{ dag.dag_id }}__{{ run_id }}",
    )
    assert (dag.timetable.expression, dag.catchup, dag.max_active_runs) == ("30 4 * * *", False, 1)
    assert (dag.start_date, dag.timetable.run_immediately) == (None, timedelta(minutes=5)), (
        "who is switched on later waits for its time"
    )


@pytest.mark.parametrize("name", ["clean_up", "tidy_tables"])
def test_what_is_done_daily_is_triggered_for_each_pipeline_that_does_not_schedule_it_itself(
    name: str, project: Path
) -> None:
    (project / "pipelines" / "first.py").open("a").write(f'\ndp.schedule("{name}", cron="@weekly")\n')
    bag = DagBag(str(PROJECT / "dags"))
    assert bag.import_errors == {}
    [trigger] = bag.dags[f"{name}_daily"].tasks
    assert (trigger.trigger_dag_id, trigger.conf) == (
        name,
        {"pipeline": "second", "approval": False, "reason": "daily"},
    )
    own = bag.dags[f"schedule__first__{name}"].task_dict["trigger"].conf
    assert own == {"reason": "scheduled: @weekly", "pipeline": "first", "approval": False}


@pytest.mark.parametrize(
    ("dag_id", "hours", "minutes"),
    [
        ("clean_up_daily", 0, 0),
        ("remove_driver_logs", 0, 0),
        ("tidy_tables_daily", 3, 30),
        ("schedule__first__reset_checkpoint__first_flow", 4, 30),
    ],
)
def test_what_runs_by_the_clock_waits_for_its_next_time_and_never_runs_for_a_night_that_is_over(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch, dag_id: str, hours: int, minutes: int
) -> None:
    dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags[dag_id]))
    today = datetime(2026, 11, 22, tzinfo=timezone.utc)
    its_time = today + timedelta(hours=hours, minutes=minutes)

    def first_run(at: datetime) -> datetime:
        monkeypatch.setattr(trigger, "utcnow", lambda: at)
        return dag.next_dagrun_info(last_automated_run_info=None).run_after  # type: ignore[no-any-return]

    assert first_run(today + timedelta(hours=12)) == its_time + timedelta(days=1)
    assert first_run(its_time - timedelta(hours=1)) == its_time
    assert first_run(its_time + timedelta(minutes=1)) == its_time, "parsed again before its run began"


def test_a_flow_that_runs_once_has_a_dag_that_runs_once_and_again_when_it_is_asked_to(project: Path) -> None:
    file = project / "pipelines" / "first.py"
    file.write_text(file.read_text().replace('name="first_flow"', 'name="first_flow", once=True'))
    dag = DagBag(str(PROJECT / "dags")).dags["flow__first__first_flow"]
    assert type(dag.timetable).__name__ == "OnceTimetable"
    assert sorted(str(kind.value) for kind in dag.allowed_run_types) == [
        "manual",
        "operator_triggered",
        "scheduled",
    ]
    assert dag.task_dict["run"].once
    assert "once; `reset_checkpoint` runs it again" in dag.doc_md


def test_a_parked_flow_stands_first_and_is_chosen_where_a_recovery_ends_its_park(project: Path) -> None:
    manifest = read_manifest(Settings.from_environment())
    second = open_home(Settings.from_environment(), "second.second_flow")
    holds.put(second, holds.PARK, "why", "a driver")
    assert holds.parked_flows(second.storage, [flow.full_name for flow in manifest.flows()]) == (
        "second.second_flow",
    )
    dags = DagBag(str(PROJECT / "dags")).dags
    for name, empty in (("reset_checkpoint", [None]), ("rewind", [])):
        flow = dags[name].params.get_param("flow")
        assert (flow.schema["enum"], flow.value) == (
            ["second.second_flow", "first.first_flow", *empty],
            "second.second_flow",
        ), name
        assert flow.schema["values_display"] == {
            "second.second_flow": "second.second_flow (parked)",
            **({"None": "–"} if empty else {}),
        }, name
    assert not dags["adopt"].params.get_param("flow").has_value, "a flow that is parked has begun"


@pytest.mark.parametrize("name", [*sorted(KINDS), "hold_flows", "release_flows", "abandon_recovery"])
def test_no_form_has_code_marks_which_airflow_draws_over_the_lines_beside_them(
    name: str, bag: DagBag
) -> None:
    params = bag.dags[name].params
    assert params
    assert [field for field in params if "`" in params.get_param(field).schema["description_md"]] == []


def test_a_pipeline_file_that_raises_takes_down_no_other_flow_and_is_listed_as_an_import_error(
    project: Path,
) -> None:
    DagBag(str(PROJECT / "dags"))
    raises = 'raise ValueError("half written\\n```\\n# Approved")'
    (project / "pipelines" / "second.py").write_text(f"from streamkeeper import pipelines as dp\n{raises}\n")
    bag = DagBag(str(PROJECT / "dags"))
    assert {"flow__first__first_flow", "flow__second__second_flow", "reset_checkpoint"} <= set(bag.dags)
    [(file, message)] = bag.import_errors.items()
    assert file.endswith("pipeline_errors.py")
    assert "second.py, line 2: the file raises ValueError: half written" in message
    assert "half written" in bag.dags["flow__second__second_flow"].doc_md
    assert "\n````\n" in bag.dags["flow__second__second_flow"].doc_md, "what it says stays within its fence"
    assert "half written" not in bag.dags["flow__first__first_flow"].doc_md


OWN = re.compile(r"streamkeeper__[a-z_]+|flows?__[a-z_]+|schedule__[a-z_]+")


def test_no_id_is_one_that_somebody_elses_dag_has_by_accident(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(project, "")
    with (project / "pipelines" / "first.py").open("a") as file:
        file.write('dp.schedule("clean_up", cron="0 0 * * *")\n')
    monkeypatch.delenv("STREAMKEEPER_DAG_PREFIX")
    dags = DagBag(PROJECT / "dags").dags
    strange = [found for found in dags if not OWN.fullmatch(found)]
    assert not strange
    assert dags["streamkeeper__backfill"].dag_display_name == "backfill"
    triggered = {
        task.trigger_dag_id
        for dag in dags.values()
        for task in dag.tasks
        if dag.dag_id.startswith("schedule__") or dag.dag_id.endswith("_daily")
    }
    assert triggered == {"streamkeeper__clean_up", "streamkeeper__tidy_tables"}
    assert page(dag_id("reset_checkpoint")).endswith("/dags/streamkeeper__reset_checkpoint")
    assert (dag_name("streamkeeper__rewind"), dag_name("rewind")) == ("rewind", "rewind")


def test_parsing_imports_neither_spark_nor_the_user_s_code(project: Path) -> None:
    (project / "pipelines" / "first.py").open("a").write(
        "\nimport sys; sys.modules['the_user_s_code'] = sys\n"
    )
    parse = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; bag ="
        f" DagBag({str(PROJECT / 'dags')!r}); assert len(bag.dags) > 3, bag.import_errors; print(sorted(name"
        " for name in sys.modules if name.split('.')[0] in ('pyspark', 'delta', 'the_user_s_code')))"
    )
    done = subprocess.run([sys.executable, "-c", parse], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_process_that_runs_a_task_makes_the_dag_of_its_own_flow_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "flow__second__second_flow")
    assert list(DagBag(str(PROJECT / "dags" / "flows.py")).dags) == ["flow__second__second_flow"]


def test_the_plugin_loader_leaves_the_package_alone() -> None:
    listing = (
        "import sys; from airflow import plugins_manager; plugins_manager.ensure_plugins_loaded();"
        " print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    names = set(done.stdout.split("['", 1)[1].split("', '"))
    assert not names & {"gate", "operators", "recovery", "drivers"}


def test_a_dag_file_fits_on_a_screen() -> None:
    lengths = {file.name: len(file.read_text().splitlines()) for file in (PROJECT / "dags").rglob("*.py")}
    assert max(lengths.values()) <= 60, lengths


def test_a_recovery_s_dag_names_the_roles_that_may_trigger_it(bag: DagBag) -> None:
    granted = {"table owners": {"DAGs": {"can_read", "can_edit"}, "DAG Runs": {"can_create", "can_read"}}}
    assert bag.dags["rewind"].access_control is None
    assert recovery_dag("rewind", access_control=granted).access_control == granted
