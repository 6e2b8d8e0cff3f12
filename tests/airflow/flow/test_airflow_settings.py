"""Which settings of Airflow a driver is not started with, and what its parts say of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from airflow.jobs.job import Job
from streamkeeper_airflow.flow import airflow_settings
from streamkeeper_airflow.flow.airflow_settings import (
    check_airflow,
    check_supervisor_timeout,
    check_triggerer_lives,
    check_worker_lasts,
    on_starting,
)
from streamkeeper_airflow.flow.retries import WrongSettings

from streamkeeper.settings import Settings


def settings_with(supervisor_timeout: float) -> Settings:
    return Settings.from_environment({"STREAMKEEPER_SUPERVISOR_TIMEOUT": str(supervisor_timeout)})


@pytest.mark.parametrize(("lost", "timeout"), [(300, 600), (30, 300)], ids=["by default", "both shorter"])
def test_times_that_fit_are_let_pass(lost: int, timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_environment({}).supervisor_timeout == 600
    monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", str(lost))
    check_supervisor_timeout(settings_with(timeout))


@pytest.mark.parametrize(
    ("lost", "timeout", "words"),
    [
        pytest.param(
            300,
            569,
            r"569 s.*for 570 s.*\(300 s\).*240 s.*30 s.*to 570 or more.*to 299 s",
            id="a second too few",
        ),
        pytest.param(900, 600, r"600 s.*for 1170 s.*to 1170 or more.*to 330 s", id="airflow waits long"),
        pytest.param(
            300, 120, r"120 s.*for 570 s.*to 570 or more, and start Airflow again", id="below the cap itself"
        ),
    ],
)
def test_times_that_cannot_fit_are_refused_with_numbers(
    lost: int, timeout: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", str(lost))
    with pytest.raises(WrongSettings, match=words):
        check_supervisor_timeout(settings_with(timeout))


@pytest.mark.parametrize("executor", ["CeleryExecutor", "LocalExecutor,CeleryExecutor"])
def test_a_broker_that_would_hand_a_running_task_to_another_worker_is_refused(
    monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", "redis://:secret@redis:6379/0")
    with pytest.raises(WrongSettings, match=r"visibility_timeout is 86400 s.*Set it to 31536000") as refused:
        check_airflow(Settings.from_environment())
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT", "31536000")
    check_airflow(Settings.from_environment())


@pytest.mark.parametrize(
    ("executor", "broker"), [("LocalExecutor", "redis://redis"), ("CeleryExecutor", "amqp://rabbit")]
)
def test_what_hands_on_no_running_task_needs_no_such_setting(
    monkeypatch: pytest.MonkeyPatch, executor: str, broker: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setenv("AIRFLOW__CELERY__BROKER_URL", broker)
    check_airflow(Settings.from_environment())


@pytest.mark.parametrize(
    ("section", "name", "value", "words"),
    [
        ("WORKERS", "MIN_HEARTBEAT_INTERVAL", "120", r"is 120 s.*600 s.*last 120 s.*below 120, .* above 600"),
        ("EXECUTION_API", "JWT_EXPIRATION_TIME", "5", r"is 5 s.*5 s\).*last 5 s.*below 5, .* above 25"),
        ("CORE", "DAGBAG_IMPORT_TIMEOUT", "25", r"is 25 s.*may take 25 s.*Set it to 30 or more"),
        ("DAG_PROCESSOR", "DAG_FILE_PROCESSOR_TIMEOUT", "29", r"is 29 s.*the 30 s.*Set it to 50 or more"),
    ],
)
def test_a_time_that_is_too_short_is_refused_with_what_to_set(
    section: str, name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_airflow(Settings.from_environment())
    monkeypatch.setenv(f"AIRFLOW__{section}__{name}", value)
    with pytest.raises(WrongSettings, match=words):
        check_airflow(Settings.from_environment())


def test_parsing_without_a_limit_needs_a_process_that_lives_as_long_as_an_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT", "0")
    check_airflow(Settings.from_environment())
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT", "24")
    with pytest.raises(WrongSettings, match="the 25 s that parsing may take"):
        check_airflow(Settings.from_environment())


@pytest.fixture
def triggerer(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What an API server tells of the triggerer, which watches the drivers of two flows."""
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", "deferred")
    status: dict[str, Any] = {"status": "healthy", "latest_triggerer_heartbeat": "2026-11-27T10:00:00Z"}

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"triggerer": status}).encode())

    server = HTTPServer(("127.0.0.1", 0), Health)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/execution/"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", address)
    monkeypatch.setattr(airflow_settings, "TRIGGERER_SECONDS", 0)
    yield status
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("CAPACITY", "1", r"capacity is 1, but 2 drivers .* Set it to 2 or more"),
        (
            "TRIGGERER_HEALTH_CHECK_THRESHOLD",
            "571",
            r"is 600 s, .* after 601 s: .*\(571 s\).* to 601 or more",
        ),
    ],
)
def test_a_triggerer_that_cannot_watch_every_flow_is_refused_with_the_figure(
    setting: str, value: str, words: str, triggerer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW__TRIGGERER__{setting}", value)
    with pytest.raises(WrongSettings, match=words):
        check_airflow(Settings.from_environment())
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", "slot")
    check_airflow(Settings.from_environment())


def test_without_a_triggerer_that_lives_no_driver_is_started(
    triggerer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_environment()
    check_triggerer_lives(settings)
    triggerer |= {"status": "unhealthy", "latest_triggerer_heartbeat": None}
    with pytest.raises(WrongSettings, match=r"last heartbeat: never.* stop after 600 s.*airflow triggerer"):
        check_triggerer_lives(settings)
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", "slot")
    check_triggerer_lives(Settings.from_environment())
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "http://127.0.0.1:9/execution/")
    check_triggerer_lives(settings)
    assert "Whether a triggerer is alive is unknown" in caplog.text


def test_a_driver_beside_its_task_needs_a_worker_that_outlives_the_deferral(
    triggerer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes = "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor"
    settings = Settings.from_environment()
    for executor in ("LocalExecutor", f"CeleryExecutor,{kubernetes}"):
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
        check_worker_lasts(settings)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", kubernetes)
    with pytest.raises(WrongSettings, match="executor is KubernetesExecutor, whose workers may end"):
        check_worker_lasts(settings)


def test_a_part_of_airflow_says_at_its_start_what_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME", "5")
    with caplog.at_level(logging.ERROR):
        Job()
    assert "jwt_expiration_time, 5 s" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STREAMKEEPER_STATE", "relative", "STREAMKEEPER_STATE is 'relative', a relative path"),
        ("AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME", "soon", "could not check Airflow's settings"),
    ],
    ids=["of ours", "of Airflow's"],
)
def test_a_part_of_airflow_starts_whatever_a_setting_is(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    on_starting(Job())
    assert words in caplog.text
