"""``streamkeeper setup`` and ``doctor`` in an Airflow of their own: what is lacking is said and made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.settings import PROJECT
from tests.airflow.conftest import configure

UNPAUSED = ("backfill", "monitor_flows", "reset_checkpoint")


def rows(command: list[str], stdin: str = "") -> list[dict[str, Any]]:
    """Run ``streamkeeper …`` and return the rows that it prints."""
    line = [sys.executable, "-m", "streamkeeper", *command, "--json"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, input=stdin)
    assert "Traceback" not in done.stderr
    value: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == any(row["state"] == "fail" for row in value)
    return value


def of(found: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    return [(row["state"], row["detail"]) for row in found if row["name"] == name]


def airflow(*arguments: str) -> None:
    program = Path(sys.executable).parent / "airflow"
    subprocess.run([str(program), *arguments], check=True, capture_output=True)


@pytest.fixture
def fresh(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Airflow with an empty database."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(project / "airflow"))
    monkeypatch.setenv("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
    monkeypatch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", str(PROJECT / "plugins"))
    return project


@pytest.mark.long
def test_what_airflow_lacks_is_said_and_made_once(fresh: Path) -> None:
    (database,) = of(rows(["doctor"]), "airflow database")
    assert database[0] == "fail" and "no such table: dag" in database[1]
    airflow("db", "migrate")
    configure(fresh, 'pool="team_a", connection="spark_a"')
    before = rows(["doctor"])
    assert [state for state, _ in of(before, "pool")] == ["fail", "fail"]
    assert [state for state, _ in of(before, "connections")] == ["fail", "fail", "warn"]
    assert of(before, "plugin")[0][0] == of(before, "airflow settings")[0][0] == "ok"
    assert of(before, "dags") == [("fail", "Airflow knows no DAG of Streamkeeper's.")]

    airflow("dags", "reserialize")
    (waiting, *_) = [detail for state, detail in of(rows(["doctor"]), "dags") if state == "warn"]
    assert all(name in waiting or "more" in waiting for name in UNPAUSED)
    command = [
        "setup",
        "--master",
        "spark://master:7077",
        "--airflow-url",
        "http://here:8080",
        "--login",
        "ada",
    ]
    made = rows(command, stdin="s3cr3t\n")
    assert "s3cr3t" not in json.dumps(made)
    pools = [detail.split(",")[0] for _, detail in of(made, "pool")]
    assert pools == ["streaming_flows is made", "team_a is made"]
    assert [detail for _, detail in of(made, "connections")] == [
        "streamkeeper_spark is made, and leads to spark://master:7077",
        "There is no connection 'spark_a', which first names, so no driver of it starts.",
        "streamkeeper_airflow is made, and leads to http://here:8080",
    ]
    assert of(made, "dags")[0][1].startswith("unpaused ")

    airflow("connections", "add", "spark_a", "--conn-type", "spark", "--conn-host", "local[2]")
    again = rows(command, stdin="s3cr3t\n")
    assert next(detail for _, detail in of(again, "dags")) == "none that must run was paused"
    assert [
        detail for name in ("pool", "connections") for _, detail in of(again, name) if "already" not in detail
    ] == ["spark_a leads to local[2]"]
    after = rows(["doctor"])
    assert [state for state, _ in of(after, "pool") + of(after, "connections")] == ["ok"] * 5
    states = of(after, "dags")
    assert [state for state, _ in states] == ["ok", "warn"]
    assert "flow__first__first_flow" in states[1][1], "a flow is started by nobody but its owner"
