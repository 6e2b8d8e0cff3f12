"""What Airflow leaves behind is removed, and a flow's run that began long ago and goes on is not: a database
of a real Airflow, and real files.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

OLD, NEW = 100, 1
"""Days since a run began, and since its log was written."""
SEED = """
import sys, uuid
from datetime import timedelta
from airflow._shared.timezones import timezone
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.dagbundle import DagBundleModel
from airflow.models.log import Log
from airflow.models.dag_version import DagVersion
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import insert

now = timezone.utcnow()
with create_session() as session:
    session.add(DagBundleModel(name="tests"))
    session.flush()
    versions = {}
    rows = [line.split() for line in sys.stdin.read().splitlines()]
    for dag in {row[0] for row in rows}:
        session.add(DagModel(dag_id=dag, bundle_name="tests", fileloc="x", relative_fileloc="x"))
        session.flush()
        versions[dag] = DagVersion(dag_id=dag, version_number=1, bundle_name="tests")
        session.add(versions[dag])
        session.flush()
    for dag, run, days, run_state, task_state in rows:
        began = now - timedelta(days=int(days))
        made = DagRun(
            dag_id=dag, run_id=run, run_type=DagRunType.SCHEDULED, state=run_state, start_date=began,
            logical_date=began, run_after=began, triggered_by=DagRunTriggeredByType.TIMETABLE,
        )
        made.end_date = None if run_state == "running" else began
        session.add(made)
        session.flush()
        session.execute(insert(TaskInstance).values(
            id=uuid.uuid4(), dag_id=dag, run_id=run, task_id="run", map_index=-1, state=task_state,
            pool="default_pool", start_date=began, try_number=2, dag_version_id=versions[dag].id,
            pool_slots=1, max_tries=9,
        ))
        entry = Log(event=f"{dag}.{run}")
        entry.dttm = began
        session.add(entry)
    asset = AssetModel(name="orders", uri="orders")
    session.add(asset)
    session.flush()
    for name, days in (("old", OLD), ("new", NEW)):
        session.add(AssetEvent(asset_id=asset.id, source_run_id=name, timestamp=now - timedelta(days=days)))
""".replace("OLD", str(OLD)).replace("NEW", str(NEW))
RUNS = f"""
flow__orders__clean first {OLD + 2} failed failed
flow__orders__clean last {OLD + 1} failed failed
flow__orders__clean running {OLD} running running
flow__orders__once done {OLD} success success
monitor_flows old {OLD} success success
monitor_flows newest {NEW} success success
reset_checkpoint waiting {OLD} running deferred
""".strip()


def run(home: Path, *arguments: str, given: str = "") -> None:
    """Run Python with an Airflow's home and database."""
    database = f"sqlite:///{home}/airflow.db"
    own = {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | own, input=given, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Airflow's home with runs, old and new, and a log of each, after the housekeeping."""
    home = tmp_path_factory.mktemp("airflow")

    run(home, "-m", "airflow", "db", "migrate")
    run(home, "-c", SEED, given=RUNS)
    for dag, run_id, days, *_ in map(str.split, RUNS.splitlines()):
        for number in (1, 2):
            log = home / "logs" / f"dag_id={dag}/run_id={run_id}/task_id=run/attempt={number}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            made = log.stat().st_mtime - int(days) * 86400
            os.utime(log, (made, made))
            os.utime(log.parent, (made, made))
    driver = home / "logs/drivers/orders.clean/1.log"
    driver.parent.mkdir(parents=True)
    driver.touch()
    os.utime(driver, (0, 0))
    run(home, "-m", "demo.airflow.housekeeping", str(home / "logs"), "30", str(home / "done"))
    return home


def rows(home: Path, query: str) -> set[str]:
    with closing(sqlite3.connect(home / "airflow.db")) as database:
        return {row[0] for row in database.execute(query)}


@pytest.mark.long
def test_a_run_that_goes_on_stays_with_its_task_however_old(home: Path) -> None:
    kept = {
        "flow__orders__clean.running",
        "flow__orders__once.done",
        "monitor_flows.newest",
        "reset_checkpoint.waiting",
    }
    assert rows(home, "SELECT dag_id || '.' || run_id FROM dag_run") == kept
    assert rows(home, "SELECT dag_id || '.' || run_id FROM task_instance") == kept


def test_old_rows_of_the_audit_log_and_old_asset_events_go_and_no_archive_stays(home: Path) -> None:
    assert rows(home, "SELECT source_run_id FROM asset_event") == {"new"}
    assert rows(home, "SELECT event FROM log WHERE event LIKE '%.%'") == {"monitor_flows.newest"}
    assert not rows(home, "SELECT name FROM sqlite_master WHERE name LIKE '\\_airflow_deleted%' ESCAPE '\\'")


def test_old_logs_go_but_those_of_tries_that_go_on(home: Path) -> None:
    found = {
        str(path.relative_to(home / "logs")).replace("/task_id=run", "")
        for path in (home / "logs").rglob("attempt=*.log")
    }
    assert found == {
        "dag_id=flow__orders__clean/run_id=running/attempt=2.log",
        "dag_id=reset_checkpoint/run_id=waiting/attempt=2.log",
        "dag_id=monitor_flows/run_id=newest/attempt=1.log",
        "dag_id=monitor_flows/run_id=newest/attempt=2.log",
    }
    assert not (home / "logs/dag_id=monitor_flows/run_id=old/task_id=run").exists(), "it is empty"
    assert json.loads((home / "done" / "done.json").read_text())["logs"] == 10


def test_an_old_log_of_a_driver_stays_for_the_dag_that_knows_which_drivers_live(home: Path) -> None:
    assert (home / "logs/drivers/orders.clean/1.log").exists()


@pytest.mark.long
def test_a_bare_clean_would_remove_the_run_that_goes_on(home: Path) -> None:
    """This is what the housekeeping is for; once it is false, `airflow db clean` will do."""
    code = (
        "from datetime import datetime, timezone; from airflow.utils.db_cleanup import run_cleanup;"
        "run_cleanup(clean_before_timestamp=datetime.now(timezone.utc), table_names=['task_instance'],"
        " confirm=False, skip_archive=True)"
    )
    run(home, "-c", code)
    assert not rows(home, "SELECT dag_id FROM task_instance WHERE state = 'running'")
