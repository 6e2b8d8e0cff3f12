"""The spark-submit command, and the hook's internals that it leans on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from streamkeeper_airflow.flow import submit as submitting
from streamkeeper_airflow.flow.retries import WrongSettings
from streamkeeper_airflow.flow.submit import Hook
from streamkeeper_airflow.flow.supervise import FlowOperator
from streamkeeper_airflow.recovery.tasks import SparkStep

from streamkeeper.clusters import cluster_drivers
from streamkeeper.drivers import submit
from streamkeeper.errors import SettingsError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.support import connections
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.conftest import a_try
from tests.recorder import JARS, Call, Recorder

CONF = {"spark.executor.memory": "3g", "spark.sql.session.timeZone": "UTC"}
ONE_MACHINE = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.extraClassPath",
    "spark.sql.shuffle.partitions",
)
MASTERS = {
    "all cores of this machine": (
        '{"conn_type": "spark", "host": "local[*]"}',
        "local[*]",
        str(os.cpu_count()),
    ),
    "one machine": ('{"conn_type": "spark", "host": "local[3]"}', "local[3]", "3"),
    "standalone": (
        '{"conn_type": "spark", "host": "spark://there", "port": 7077}',
        "spark://there:7077",
        None,
    ),
    "standalone, deploy mode cluster": (
        '{"conn_type": "spark", "host": "spark://there", "port": 7077, "extra": {"deploy-mode": "cluster"}}',
        "spark://there:7077",
        None,
    ),
    "yarn": ('{"conn_type": "spark", "host": "yarn", "extra": {"queue": "streams"}}', "yarn", None),
    "yarn, deploy mode cluster": (
        '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster", "queue": "streams",'
        ' "cluster-page": "http://there:8088/"}}',
        "yarn",
        None,
    ),
    "kubernetes, deploy mode cluster": (
        '{"conn_type": "spark", "host": "k8s://https://there:6443",'
        ' "extra": {"deploy-mode": "cluster", "namespace": "streams"}}',
        "k8s://https://there:6443",
        None,
    ),
}
WAITS = {
    "spark": "spark.standalone.submit.waitAppCompletion",
    "yarn": "spark.yarn.submit.waitAppCompletion",
    "k8s": "spark.kubernetes.submission.waitAppCompletion",
}
"""Settings by which spark-submit waits for a job's end, by the begin of the master."""
SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": "s3cr3t",
    "AIRFLOW_CONN_STREAMKEEPER_AIRFLOW": "s3cr3t",
    "DATABASE_URL": "s3cr3t",
}


def a_driver(project: Path) -> None:
    settings, log = Settings.from_environment(), project / "driver.log"
    flow = read_manifest(settings).find("first.first_flow")
    command, environment = submitting.prepare(settings, flow, settings.connection, log)
    assert environment[submit.LOG_VARIABLE] == str(log)
    subprocess.run(command, env=environment, check=True)


def a_step(project: Path, connection: str = "streamkeeper_spark") -> None:
    made = Plan("full_refresh", "r1", "first", ("first_clean",), {"by": "ada"}, (), ("empty_tables",), "now")
    engine.propose(Settings.from_environment(), made)
    plan = {"kind": "full_refresh", "recovery": "r1", "pipeline": "first", "dry_run": False}
    plan["connection"] = connection
    try:
        SparkStep(kind_name="full_refresh", task_id="empty_tables").execute(handing_on(plan=plan))
    except AirflowException as error:  # the job was submitted, and what stands for it does nothing
        if "the ledger has no end of empty_tables" not in str(error):
            raise


def handing_on(**xcoms: Any) -> Context:
    return cast("Context", {"ti": SimpleNamespace(xcom_pull=lambda task_ids: xcoms[task_ids])})


LOCAL = {"AIRFLOW_CONN_STREAMKEEPER_SPARK": '{"conn_type": "spark", "host": "local[2]"}'}
JOBS: dict[str, tuple[Callable[[Path], None], Path, str]] = {
    "a flow's driver": (a_driver, submit.JOB, "first.first_flow"),
    "a step of a recovery": (a_step, submit.RECOVERY_JOB, "r1 empty_tables"),
}


@pytest.mark.parametrize(("connection", "master", "partitions"), MASTERS.values(), ids=MASTERS.keys())
@pytest.mark.parametrize(("job", "application", "name"), JOBS.values(), ids=JOBS.keys())
def test_every_job_is_submitted_with_what_suits_the_connections_master_and_with_what_its_flow_declares(
    *,
    job: Callable[[Path], None],
    application: Path,
    name: str,
    connection: str,
    master: str,
    partitions: str | None,
    project: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = project / "pipelines" / "first.py"
    file.write_text(file.read_text().replace('sources=["raw"]', f'sources=["raw"], spark_conf={CONF}'))
    given = {**SECRETS, "AIRFLOW_CONN_STREAMKEEPER_SPARK": connection, "HADOOP_CONF_DIR": "/conf"}
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    job(project)
    [call] = recorder.calls
    assert (call.option("--master"), call.option("--name")) == (master, name)
    local, jars = "local:" if master.startswith("k8s:") else "", f"{project}/jars"
    assert call.arguments[call.arguments.index(f"{local}{application}") - 1] != "--conf"
    assert CONF.items() <= call.conf.items()
    assert call.conf["spark.sql.streaming.offsetLog.formatVersion"] == "2"
    if partitions is None:
        assert set(ONE_MACHINE) & set(call.conf) == set(), "what suits one machine stays on one"
        jars = f"{local and 'local://'}{jars}"
        assert call.conf["spark.jars"] == ",".join(f"{jars}/{jar}" for jar in JARS)
    else:
        assert call.conf["spark.sql.shuffle.partitions"] == partitions
        assert call.conf["spark.driver.host"] == "127.0.0.1"
        assert call.conf["spark.driver.extraClassPath"] == f"{jars}/*"
        assert "spark.jars" not in call.conf
    in_cluster = "deploy-mode" in connection
    if in_cluster:
        fits_the_cluster(call, application, master)
    assert ("--queue" in call.arguments) == (master == "yarn"), "the rest of the connection holds, too"
    of_yarn = any("appMasterEnv" in argument for argument in call.arguments)
    assert of_yarn == (in_cluster and master == "yarn")
    assert not any("s3cr3t" in argument for argument in call.arguments)
    assert "s3cr3t" not in call.environment.values()
    assert not any(variable.startswith("AIRFLOW") for variable in call.environment)
    assert call.environment["HADOOP_CONF_DIR"] == "/conf"
    assert Settings.from_environment(call.environment) == Settings.from_environment()


def fits_the_cluster(call: Call, application: Path, master: str) -> None:
    """Check what deploy mode cluster asks for: of Spark, and of what starts the job there."""
    step, by = application == submit.RECOVERY_JOB, master.partition(":")[0]
    assert call.option("--deploy-mode") == "cluster"
    assert (call.conf.get(WAITS[by]) == "true") == step, "spark-submit waits for a step alone"
    if by == "yarn":
        own = "spark.yarn.appMasterEnv.STREAMKEEPER"
        assert call.conf[f"{own}_CLUSTER_PAGE"] == "http://there:8088"
        assert (f"{own}_SUPERVISED" in call.conf) != step
    elif by == "k8s":
        assert call.conf["spark.kubernetes.namespace"] == "streams"
        assert call.conf["spark.kubernetes.driverEnv.STREAMKEEPER_CLUSTER_PAGE"] == "https://there:6443"
        assert call.conf["spark.kubernetes.driver.pod.name"].endswith("-driver")
    else:
        assert call.option("--class") == "org.apache.spark.deploy.PythonRunner"
        jar = call.conf["spark.jars"].partition(",")[0]
        _, *arguments = call.arguments[call.arguments.index(jar) :]
        assert arguments[:2] == [str(application), ""], "no Python files beside it"
        assert call.environment[cluster_drivers.PAGE_VARIABLE] == "http://there:8080"


@pytest.mark.parametrize("job", [a_driver, a_step])
def test_values_of_a_connection_are_handed_over_by_a_file_of_the_owner_alone(
    job: Callable[[Path], None],
    project: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pipeline = project / "pipelines" / "first.py"
    option = """options={"a": "{conn:orders.db.password}", "b": "{conn:orders.db.extra.key}"}, schema="""
    pipeline.write_text(pipeline.read_text().replace("schema=", option, 1))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    if job is a_driver:
        with pytest.raises(SettingsError, match=r"no connection 'orders.db'"):
            job(project)
    connection = {"conn_type": "http", "password": "s3cr3t", "extra": {"key": "s3cr3t too"}}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS.DB", json.dumps(connection))
    copies: list[tuple[int, dict[str, str]]] = []
    hand_over = connections.hand_over

    def watched(values: Mapping[str, str], file: Path) -> None:
        hand_over(values, file)
        copies.append((file.stat().st_mode & 0o777, json.loads(file.read_text())))

    monkeypatch.setattr(connections, "hand_over", watched)
    job(project)
    [call] = recorder.calls
    values = {"orders.db.password": "s3cr3t", "orders.db.extra.key": "s3cr3t too"}
    assert copies == [(0o600, values)]
    assert not [text for text in (*call.arguments, *call.environment.values()) if "s3cr3t" in text]
    file = Path(call.environment[connections.FILE_VARIABLE])
    assert file.parent == tmp_path
    # A step's job has ended; a driver goes on, and reads it.
    assert file.exists() == (job is a_driver)
    if job is a_driver:
        extra = {"deploy-mode": "cluster"}
        connection = {"conn_type": "spark", "host": "spark://there:7077", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", json.dumps(connection))
        with pytest.raises(SettingsError, match=r"Use deploy mode client, or \{env:NAME\}"):
            job(project)


@pytest.mark.parametrize("job", [a_driver, a_step])
def test_no_job_is_submitted_without_a_connection_or_where_drivers_are_not_supervised(
    job: Callable[[Path], None], project: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        AirflowFailException, match=r"no connection 'streamkeeper_spark'.*AIRFLOW_CONN_STREAM"
    ):
        job(project)
    connection = '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}'
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", connection)
    with pytest.raises(AirflowFailException, match=r"deploy mode cluster on.*yarn.*cluster-page"):
        job(project)
    assert recorder.calls == []


def test_the_jobs_of_a_pipeline_with_a_connection_of_its_own_run_by_that(
    project: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_A", '{"conn_type": "spark", "host": "local[3]"}')
    a_step(project, "team_a")
    assert [call.option("--master") for call in recorder.calls] == ["local[3]"]
    operator = FlowOperator(task_id="run", flow="first.first_flow", connection="team_b")
    with pytest.raises(WrongSettings, match="no connection 'team_b'"):
        operator.execute(a_try())


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "no connection 'streamkeeper_spark'"),
        ({**LOCAL, "STREAMKEEPER_JARS": "/nowhere"}, "The folder of jars /nowhere is not there"),
        ({**LOCAL, "JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere, which has no bin/java"),
    ],
    ids=["connection", "jars", "Java"],
)
def test_a_flow_that_lacks_what_a_driver_needs_is_tried_again_and_told_and_its_run_does_not_fail(
    variables: dict[str, str],
    words: str,
    project: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**variables, "SPARK_CONF_DIR": ""}.items():
        monkeypatch.setenv(name, value)
    operator = FlowOperator(task_id="run", flow="first.first_flow")
    with pytest.raises(WrongSettings, match=words):
        operator.execute(a_try())
    [pending] = alerts.pending(open_home(Settings.from_environment(), "first.first_flow"))
    assert (pending.alert.kind, words in pending.alert.text) == (AlertKind.SETTINGS, True)
    assert recorder.calls == []


@pytest.mark.parametrize(
    ("master", "page", "said"),
    [
        ("standalone, deploy mode cluster", "http://there:8080", "driver-20261123010203-0007"),
        ("yarn, deploy mode cluster", "http://there:8088", "application_1795518870000_0007"),
    ],
)
def test_a_step_whose_task_is_killed_is_ended_by_its_cluster(
    project: Path, monkeypatch: pytest.MonkeyPatch, master: str, page: str, said: str
) -> None:
    connection, where, _ = MASTERS[master]
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", connection)
    monkeypatch.setenv("PATH", "/nowhere")  # no yarn there
    ended = list[ClusterDriver]()
    monkeypatch.setattr(cluster_drivers, "end", ended.append)
    settings = Settings.from_environment()
    flow = read_manifest(settings).find("first.first_flow")
    hook = Hook(submit.driver(settings, [flow], where).by_cluster(page, settings), "streamkeeper_spark")
    hook._process_spark_submit_log(iter([f"INFO Submitted {said}", "INFO it runs"]))
    hook.on_kill()
    assert ended == [], "spark-submit has ended, and so has the step"
    hook._submit_sp = subprocess.Popen(["/bin/sleep", "60"])
    hook.on_kill()
    assert ended == [ClusterDriver(page, said)]
    assert hook._submit_sp.wait(10) == -9


def test_a_step_whose_task_is_killed_ends_its_pod_and_needs_no_provider_of_kubernetes(
    project: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _, _ = MASTERS["kubernetes, deploy mode cluster"]
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", connection)
    ended = list[ClusterDriver]()
    monkeypatch.setattr(cluster_drivers, "end", ended.append)
    flow = read_manifest(Settings.from_environment()).find("first.first_flow")
    job = submit.driver(Settings.from_environment(), [flow], "k8s://https://there:6443")
    hook = Hook(job, "streamkeeper_spark")
    hook._process_spark_submit_log(iter(["\t pod name: step-0123456789abcdef-driver"]))
    hook.on_kill()
    assert ended == []
    hook._submit_sp = subprocess.Popen(["sleep", "60"])
    hook.on_kill()
    assert ended == [ClusterDriver("https://there:6443", "streams:step-0123456789abcdef-driver")]
    loaded = (
        "import sys; from streamkeeper_airflow.flow import submit; print('kubernetes.client' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT / 'plugins'}:{PROJECT}"}
    said = subprocess.run(
        [sys.executable, "-c", loaded], env=environment, capture_output=True, check=True
    ).stdout
    assert said.split()[-1] == b"False", "each file that is parsed would load it"


def test_the_hook_still_builds_its_command_and_starts_it_as_leaned_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PINNED", '{"conn_type": "spark", "host": "spark://there", "port": 7077}')
    hook = SparkSubmitHook(conn_id="pinned", conf={"a.b": "c"}, application_args=["--x"], name="n")
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
    assert hook._get_spark_binary_path() == ["spark-submit"]
    assert hook._env is None, "else it would start the command with the environment of Airflow"
