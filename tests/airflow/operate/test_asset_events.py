"""The tables as Airflow's assets: who posts their events, and the DAG that they schedule."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Context, PartitionedAssetTimetable
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import write_deltalake
from streamkeeper_airflow.flow.supervise import FlowOperator
from streamkeeper_airflow.operate import asset_events
from streamkeeper_airflow.operate.asset_events import PostAssetEvents
from streamkeeper_airflow.table_asset import table_asset

from streamkeeper.checkpoint import OffsetEntry, write_offsets
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT
from tests.airflow.conftest import a_try
from tests.recorder import lay_jars
from tests.worlds.small_world import World
from tests.worlds.tables.delta_logs import Table

FIRST, SECOND = table_asset("first_clean"), table_asset("second_clean")


def post(task: PostAssetEvents) -> dict[str, dict[str, Any]]:
    """Let the task succeed, and give what it posts: ``extra`` by URI."""
    outlets = OutletEventAccessors()
    task.execute(Context(outlet_events=outlets))
    return {asset.uri: outlets[asset].extra for asset in task.outlets}


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> PostAssetEvents:
    """The task, and an Airflow that has every event that it was handed."""
    monkeypatch.setattr(asset_events, "is_posted", lambda _asset, _event_id: True)
    return PostAssetEvents(task_id="post_asset_events")


def test_a_table_with_new_rows_has_an_event_and_no_other_table(project: Path, task: PostAssetEvents) -> None:
    Table(project / "warehouse" / "first_clean")
    (extra,) = post(task).values()
    assert task.outlets == [FIRST]
    assert (extra["table"], extra["version"], extra["rows"], extra["flows"]) == ("first_clean", 0, 5, {})


def test_a_table_that_cannot_be_read_does_not_keep_the_others_events_back(
    project: Path, task: PostAssetEvents, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first_clean", "second_clean"):
        Table(project / "warehouse" / name)
    (project / "warehouse" / "first_clean" / "_delta_log" / f"{0:020d}.json").write_text("no JSON\n")
    assert list(post(task)) == [SECOND.uri]
    assert "What is new in first_clean cannot be told" in capsys.readouterr().out


def test_hours_are_partitions_of_one_event(
    project: Path, home: FlowHome, task: PostAssetEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("2026-01-01T10:00:00", "2026-01-01T11:00:00")
    event = asset_events.AssetEvent({"id": "e"}, keys)
    monkeypatch.setattr(
        asset_events, "next_event", lambda _storage, table, *_: event if table.name == "first_clean" else None
    )
    outlets = OutletEventAccessors()
    task.execute(Context(outlet_events=outlets))
    assert (outlets[FIRST].extra, outlets[FIRST].partition_keys) == ({"id": "e"}, {*keys})


def test_the_task_of_a_flow_has_the_asset_and_posts_no_event_when_it_succeeds(
    project: Path, home: FlowHome
) -> None:
    run = DagBag(str(PROJECT / "dags" / "flows.py")).dags["flow__first__first_flow"].task_dict["run"]
    assert run.outlets == [FIRST]
    task = FlowOperator(task_id="run", flow="first.first_flow", once=True, outlets=[FIRST])
    generations.decide(home, generations.first(home, "f"))
    generations.finish(home, 1, 0)
    task.execute(a_try())
    assert task.outlets == [], "its success posts nothing"


@pytest.fixture
def totals(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped pipeline ``order_totals``, with a table of two hours."""
    shipped = PROJECT / "spark_jobs" / "pipelines" / "order_totals.py"
    (project / "pipelines" / "order_totals.py").write_text(shipped.read_text())
    monkeypatch.setenv("ORDER_TOTALS", "1")
    hours = [datetime(2026, 1, 1, hour, tzinfo=timezone.utc) for hour in (10, 10, 11)]
    rows = {
        "customer_id": pa.array([2, 1, 1], pa.int32()),
        "hour": pa.array(hours, pa.timestamp("us", tz="UTC")),
        "orders": [1, 2, 3],
        "amount": pa.array([Decimal("1.50"), Decimal("2.25"), Decimal("9.00")], pa.decimal128(20, 2)),
    }
    write_deltalake(str(project / "warehouse" / "order_totals"), pa.table(rows))
    return project


def test_the_example_dag_reports_the_hour_of_its_partition(totals: Path) -> None:
    dag = DagBag(str(PROJECT / "dags" / "order_report.py")).dags["order_report"]
    schedule = dag.timetable
    assert isinstance(schedule, PartitionedAssetTimetable)
    assert schedule.asset_condition == table_asset("order_totals")
    run = type("Run", (), {"partition_date": datetime(2026, 1, 1, 10, tzinfo=timezone.utc)})
    path = dag.task_dict["report"].python_callable(dag_run=run)
    assert path == str(totals / "data" / "order_reports" / "2026-01-01T10.json")
    assert json.loads(Path(path).read_text()) == [
        {"customer_id": 1, "orders": 2, "amount": "2.25"},
        {"customer_id": 2, "orders": 1, "amount": "1.50"},
    ]


def test_the_example_dag_is_offered_with_its_pipeline_alone(project: Path) -> None:
    assert DagBag(str(PROJECT / "dags" / "order_report.py")).dags == {}


POSTER = """
from airflow.sdk import DAG
from streamkeeper_airflow.operate.asset_events import PostAssetEvents

with DAG("poster", schedule=None):
    PostAssetEvents(task_id="post_asset_events")
"""
IN_AIRFLOW = """
import sys
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.asset import AssetEvent, AssetPartitionDagRun
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.db import initdb
from airflow.utils.session import create_session

initdb()
with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
bag = DagBag(sys.argv[1], bundle_path=None, bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors
sync_bag_to_db(bag, "dags-folder", None)
for _ in range(2):
    bag.dags["poster"].test()
    with create_session() as session:
        for event in session.query(AssetEvent).order_by(AssetEvent.id):
            print("told", event.source_task_id, event.uri, event.partition_key, event.extra.get("table"))
        for run in session.query(AssetPartitionDagRun).order_by(AssetPartitionDagRun.id):
            print("told", run.target_dag_id, run.partition_key)
"""


@pytest.mark.long
def test_airflow_takes_the_events_once_and_queues_a_run_for_each_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database and its own task runner; no scheduler."""
    names = {"name": "hourly_totals", "table": "order_totals", "pipeline": "order_totals"}
    world = World(tmp_path, **names, source="orders_files", folder="orders")
    lay_jars(world.settings.jars)
    world.declare((PROJECT / "spark_jobs" / "pipelines" / "order_totals.py").read_text(), "order_totals.py")
    world.enter(monkeypatch)
    monkeypatch.setenv("ORDER_TOTALS", "1")
    folder = world.processed(2).checkpoint
    for batch, watermark in enumerate(("10:10", "12:30")):
        ms = int(datetime.fromisoformat(f"2026-01-01T{watermark}Z").timestamp() * 1000)
        entry = OffsetEntry(
            batch, 2, ms, 1, {}, {"orders_files": {"logOffset": batch}}, {"sourceMetadataInfo": {}}
        )
        world.home.storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(entry))
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in ("flows.py", "order_report.py"):
        shutil.copy(PROJECT / "dags" / name, dags)
    (dags / "poster.py").write_text(POSTER)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "PYTHONPATH": f"{PROJECT / 'plugins'}:{PROJECT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_AIRFLOW, str(dags)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    told = [line.removeprefix("told ") for line in done.stdout.splitlines() if line.startswith("told ")]
    uri = table_asset("order_totals").uri
    hours = [f"2026-01-01T{hour}" for hour in ("10", "11")]
    once = [
        *(f"order_report {hour}" for hour in hours),
        *(f"post_asset_events {uri} {hour}:00:00 order_totals" for hour in hours),
    ]
    assert sorted(told) == sorted(once + once), "the second look finds them in Airflow"
