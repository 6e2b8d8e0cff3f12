"""``streamkeeper init``: what it writes is what Airflow, Helm, GitHub and the command line can read."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.settings import of_environment

COMMAND = re.compile(
    r"(?<![\w./-])(?<!from )streamkeeper ((?:--env )?[a-z]+[^\n`#]*?)(?=$|[`#]|, | and |\.?\n| \\)",
    re.MULTILINE,
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "streams")])
    assert done.exit_code == 0, done.output
    return tmp_path / "streams"


def texts(made: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(made.rglob("*")):
        if path.is_file():
            yield path, path.read_text()


def test_the_pipeline_passes_check_with_the_settings_beside_it(made: Path, tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (made / ".env").rename(tmp_path / "environments" / "new.env")
    line = [sys.executable, "-m", "streamkeeper", "--env", "new", "check", "--json"]
    plain = {"PATH": "/usr/bin:/bin", "STREAMKEEPER_ENVIRONMENTS": str(tmp_path / "environments")}
    done = subprocess.run(line, check=False, capture_output=True, text=True, env=plain)
    value = json.loads(done.stdout)
    assert ([flow["flow"] for flow in value["flows"]], value["errors"]) == (["orders.orders_flow"], {})
    settings = of_environment("new", plain)
    assert settings["STREAMKEEPER_STATE"] == str(made / "var" / "state")


def test_what_others_read_is_theirs(made: Path) -> None:
    values = yaml.safe_load((made / "values.yaml").read_text())
    variables = [item["name"] for item in values["env"]]
    assert {"STREAMKEEPER_STATE", "STREAMKEEPER_WAREHOUSE", "AIRFLOW_CONN_STREAMKEEPER_SPARK"} <= {*variables}
    assert values["airflowVersion"] == values["defaultAirflowTag"]
    (job,) = yaml.safe_load((made / ".github/workflows/pull_request.yml").read_text())["jobs"].values()
    steps = [step.get("run", "") for step in job["steps"]]
    assert any("check --analyze" in step for step in steps) and any("preflight" in step for step in steps)
    (lines,) = [text for path, text in texts(made) if path.name == "streamkeeper_dags.py"]
    _, imported, update = ast.parse(lines).body
    assert ast.unparse(imported) == "from streamkeeper_airflow import all_dags"
    assert ast.unparse(update) == "globals().update(all_dags())"
    assert "dag" in lines.lower() and "airflow" in lines.lower(), (
        "Airflow passes over files without both words"
    )
    assert not [path for path, text in texts(made) if re.search("@[A-Z]+@", text)]


def test_every_command_in_them_is_one_of_the_command_line(made: Path) -> None:
    program: Any = typer.main.get_command(app)
    context = program.make_context("streamkeeper", ["flows"])
    found = [(path.name, match[1]) for path, text in texts(made) for match in COMMAND.finditer(text)]
    assert {"check", "run", "setup", "doctor", "preflight", "jars"} <= {
        words.split()[0] for _, words in found
    }
    for name, words in found:
        called, *arguments = shlex.split(words)
        command = program.get_command(context, called)
        assert command is not None, f"{name}: streamkeeper {words}"
        command.make_context(called, arguments)


@pytest.mark.parametrize("name", ["Dockerfile", "pipelines/orders.py"])
def test_a_file_that_is_there_is_kept_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code != 0 and f"{tmp_path} has {name} already. Nothing was written." in str(
        done.exception
    )
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine"]
