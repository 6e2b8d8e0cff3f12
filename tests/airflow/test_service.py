"""The demo's Airflow, as far as it can be told without starting one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from demo.airflow.service import AirflowService, Ports
from demo.processes import end_process, started
from streamkeeper.settings import Settings


def test_every_address_of_airflow_follows_its_port(project: Path, tmp_path: Path) -> None:
    service = AirflowService(tmp_path / "airflow", Settings.from_environment(), Ports(4001, 4002, 4003))
    environment = service.environment()
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:4001/execution/"
    assert environment["AIRFLOW__API__BASE_URL"] == service.url == "http://127.0.0.1:4001"
    assert environment["AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT"] == "4002"
    assert environment["AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT"] == "4003"
    assert environment["STREAMKEEPER_STATE"] == Settings.from_environment().state


def test_the_password_is_made_once_and_is_for_nobody_else_to_read(project: Path, tmp_path: Path) -> None:
    service = AirflowService(tmp_path / "airflow", Settings.from_environment(), Ports(4001, 4002, 4003))
    assert service.password == service.password
    [file] = service.home.glob("*.generated")
    assert file.stat().st_mode & 0o077 == 0


def test_a_process_is_ended_only_if_it_is_still_the_one_that_was_meant() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    since = started(process.pid)
    assert since is not None
    end_process(process.pid, since + 1, grace=0.2)
    assert process.poll() is None
    end_process(process.pid, since, grace=10)
    assert process.wait() < 0
