"""An Airflow that is not ours: a virtual environment, a database and DAGs of its own, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from demo.airflow.service import AirflowService
from streamkeeper.settings import PROJECT
from tools.constraints import DATABASE, constraints

THEIR_DAG = """
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("backfill", start_date=datetime(2025, 1, 1), schedule=None):
    BashOperator(task_id="mine", bash_command="true")
"""
"""A DAG with an id that one of Streamkeeper's has without a prefix."""
NEWEST = "newest"
PIP = '#!/bin/sh\nact=$1; shift\nexec "{python}" -m uv pip "$act" --python "{venv}/bin/python" --quiet "$@"\n'
"""``pip`` by uv, whose cache has the packages."""


@dataclass(frozen=True)
class Versions:
    """A pair of releases with its constraints file, and the Python that it runs on; or :data:`NEWEST` for the
    newest of all packages that the wheel allows.
    """

    airflow: str
    spark: str
    python: str

    def __str__(self) -> str:
        return f"airflow-{self.airflow}-spark-{self.spark}-python-{self.python.rpartition('/')[2]}"

    @property
    def constraints(self) -> Path:
        """Versions of all packages; an empty file for the newest."""
        return Path(os.devnull) if self.airflow == NEWEST else constraints(self.airflow, self.spark)


@dataclass
class OwnAirflow(AirflowService):
    """Airflow with its default settings but for ports and database, of the virtual environment beside
    :attr:`home`.

    :param home: ``AIRFLOW_HOME``.
    :param versions: what is installed.
    :param shell: the variables of the terminal that this Airflow is installed in and started from.
    """

    versions: Versions = field(kw_only=True)
    shell: dict[str, str] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        """Its virtual environment."""
        return self.home.parent / "venv"

    @property
    def program(self) -> Path:
        """Its ``airflow``."""
        return self.venv / "bin" / "airflow"

    def environment(self) -> dict[str, str]:
        """Return the terminal's variables."""
        return self.shell

    def _fit_out(self) -> None:
        """Leave it as it is: what it lacks is the page's to make."""

    def install(self) -> None:
        """Make the virtual environment with Airflow alone, its database, and a DAG of its owner's."""
        uv = [sys.executable, "-m", "uv"]
        python = str(self.venv / "bin" / "python")
        _run([*uv, "venv", "--quiet", "--python", self.versions.python, str(self.venv)])
        exactly = "" if self.versions.airflow == NEWEST else f"=={self.versions.airflow}"
        packages = [f"apache-airflow{exactly}", *DATABASE, "-c", str(self.versions.constraints)]
        _run([*uv, "pip", "install", "--quiet", "--python", python, *packages])
        pip = self.venv / "bin" / "pip"
        pip.write_text(PIP.format(python=sys.executable, venv=self.venv))
        pip.chmod(0o755)
        (self.home / "dags").mkdir(parents=True)
        (self.home / "dags" / "theirs.py").write_text(THEIR_DAG)
        self.shell = {**_bare(), **self._own()}
        self.run("airflow db migrate")

    def _own(self) -> dict[str, str]:
        port = self.ports.api
        return {
            "PATH": os.pathsep.join([str(self.venv / "bin"), os.environ["PATH"]]),
            "VIRTUAL_ENV": str(self.venv),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports.worker_log),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports.trigger_log),
            **self.extra,
        }

    def run(self, command: str, stdin: str = "") -> str:
        """Run a command in the terminal, which keeps the variables that it sets; return its output.

        :raises AssertionError: it failed; the message has its output.
        """
        after = self.home.parent / "variables"
        script = f"{command}\nstatus=$?; env -0 > {after}; exit $status"
        done = subprocess.run(
            ["bash", "-c", script], cwd=PROJECT, env=self.shell, input=stdin, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        pairs = (line.partition("=") for line in after.read_text().split("\0") if line)
        self.shell = {name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
        return done.stdout


def _bare() -> dict[str, str]:
    """Return this process's variables without those of Airflow, Streamkeeper and Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("AIRFLOW", "MAKE", "STREAMKEEPER", "PYTHON", "VIRTUAL_ENV", "PYTEST", "SPARK")
        )
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
