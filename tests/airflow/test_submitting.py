"""The spark-submit command, and the hook's internals that it leans on."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowFailException
from streamkeeper_airflow.flow import submit as submitting

from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.settings import Settings

LOCAL = '{"conn_type": "spark", "host": "local[3]"}'


@pytest.fixture
def flow(project: Path) -> Flow:
    return read_manifest(Settings.from_environment()).find("first.first_flow")


def prepare(flow: Flow, log: Path) -> tuple[list[str], dict[str, str]]:
    return submitting.prepare(Settings.from_environment(), flow, submitting.CONNECTION, log)


def test_the_command_has_the_connection_s_master_and_every_setting_of_the_flow(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", LOCAL)
    command, _ = prepare(flow, tmp_path / "driver.log")
    assert command[0] == submit.spark_submit()
    assert command[command.index("--master") + 1] == "local[3]"
    settings = submit.spark_settings(Settings.from_environment(), flow.declaration, "local[3]")
    assert {f"{name}={value}" for name, value in settings.items()} <= set(command)
    assert command[-3:] == [str(submit.JOB), "--flow", "first.first_flow"]


def test_the_driver_sees_the_settings_and_its_log_but_nothing_of_airflow(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", LOCAL)
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_AIRFLOW", '{"password": "secret"}')
    _, environment = prepare(flow, tmp_path / "driver.log")
    assert environment["STREAMKEEPER_STATE"] == str(tmp_path / "state")
    assert environment[submit.LOG_VARIABLE] == str(tmp_path / "driver.log")
    assert [name for name in environment if name.startswith("AIRFLOW")] == []


def test_a_missing_connection_is_said_and_not_replaced_by_yarn(flow: Flow, tmp_path: Path) -> None:
    with pytest.raises(
        AirflowFailException, match=r"no connection 'streamkeeper_spark'.*AIRFLOW_CONN_STREAMKEEPER_SPARK"
    ):
        prepare(flow, tmp_path / "driver.log")


def test_cluster_mode_is_refused_with_the_reason(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_STREAMKEEPER_SPARK",
        '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}',
    )
    with pytest.raises(AirflowFailException, match=r"deploy mode cluster.*Set it to client"):
        prepare(flow, tmp_path / "driver.log")


def test_the_hook_still_builds_its_command_and_keeps_its_environment_as_leaned_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PINNED", '{"conn_type": "spark", "host": "spark://there", "port": 7077}')
    hook = SparkSubmitHook(
        conn_id="pinned", conf={"a.b": "c"}, application_args=["--x"], name="n", env_vars={"E": "1"}
    )
    assert (hook._connection["master"], hook._connection["deploy_mode"]) == ("spark://there:7077", None)
    expected = [
        "spark-submit",
        "--master",
        "spark://there:7077",
        "--conf",
        "a.b=c",
        "--name",
        "n",
        "job.py",
        "--x",
    ]
    assert hook._build_spark_submit_command("job.py") == expected
    assert hook._env == {"E": "1"}
