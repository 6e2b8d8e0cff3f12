"""docker-compose.yaml for real: built, up, the story told, every container killed, down, up again;
then the tables equal the oracle.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.story import FLOW
from streamkeeper.settings import PROJECT
from tests.compose.machine import base_image, compose, docker
from tests.compose.system import PATIENCE, System
from tools.ports import free_ports
from tools.waiting import NotYet, wait_until

pytestmark = pytest.mark.long

ORDERS = "orders.clean_orders"
SPARK = ("spark-master", "spark-worker-1", "spark-worker-2")
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer", "worker")
WORKING = ("running", "idle", "slow")
FEEDS = ("orders-feed", "customers-feed", "housekeeping")
STORES = ("redis", "postgres", "kafka")
SERVICES = (*STORES, *FEEDS, *SPARK, *AIRFLOW)
SNAPSHOT = "customers.customers_snapshot_flow"
ON_S3 = {
    "STREAMKEEPER_STATE": "s3://streamkeeper/state",
    "STREAMKEEPER_WAREHOUSE": "s3://streamkeeper/warehouse",
    "STREAMKEEPER_JARS": "/opt/streamkeeper/.cache/jars-s3",
}

LASTING = """
import json
from pathlib import Path
from confluent_kafka import Consumer, TopicPartition
from demo.story import FLOW
from streamkeeper.flows.files import open_home
from streamkeeper.settings import Settings
settings = Settings.from_environment()
consumer = Consumer({"bootstrap.servers": "kafka:9092", "group.id": "look"})
ends = [consumer.get_watermark_offsets(TopicPartition("orders", part), timeout=60)[1] for part in range(3)]
print(json.dumps({
    "generations": len(open_home(settings, FLOW).generations()),
    "files": len(list(Path(settings.data).glob("customers/cdc/*.json"))),
    "orders": sum(ends),
}))
"""
HOLDER = """
import json, sys
from streamkeeper.drivers import supervision
from streamkeeper.flows import leases
from streamkeeper.flows.files import open_home
from streamkeeper.settings import Settings
home = open_home(Settings.from_environment(), sys.argv[1])
lease, watched = leases.current(home), supervision.read(home)
print(json.dumps({
    "host": lease.process.host, "epoch": lease.epoch, "by": watched.by, "count": watched.count,
}))
"""
KILL_TASKS = """
import os, signal
from pathlib import Path
for entry in Path("/proc").glob("[0-9]*"):
    try:
        if (entry / "cmdline").read_bytes().startswith(b"airflow worker -- "):
            os.kill(int(entry.name), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
"""
FIRST_FILES = """
import json
from pathlib import Path
from demo.data.customers import Customers
from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
settings = Settings.from_environment()
Customers(Path(settings.data) / "customers").write(1)
flow = read_manifest(settings).find("customers.customers_snapshot_flow")
print(json.dumps(submit.driver(settings, [flow], "local[1]", True).command()))
"""
READ = "import sys; from urllib.request import urlopen; print(urlopen(sys.argv[1]).read().decode())"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    secrets, pipelines = (tmp_path_factory.mktemp("compose") / name for name in ("env", "pipelines"))
    subprocess.run(["sh", "docker/make_env.sh", secrets], cwd=PROJECT, check=True)
    # The story edits it as another user.
    shutil.copytree(PROJECT / "spark_jobs" / "pipelines", pipelines)
    subprocess.run(["chmod", "-R", "a+rwX", pipelines], check=True)
    with docker() as environment:
        given = {
            **environment,
            "BASE_IMAGE": base_image(environment),
            "COMPOSE_PROJECT_NAME": "streamkeeper-long",
            "STREAMKEEPER_TAG": "long",
            "AIRFLOW_PORT": str(free_ports(1)[0]),
            "PIPELINES": str(pipelines),
        }
        made = System(compose(), given, secrets)
        try:
            made.compose("build")
            yield made
        finally:
            profiles = [part for name in ("story", "s3", "metrics") for part in ("--profile", name)]
            made.compose(*profiles, "down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="module")
def story(built: System) -> str:
    return built.compose("run", "--rm", "story")


@pytest.fixture(scope="module")
def system(built: System, story: str) -> System:
    """The system after the story, which held the flow at its end."""
    built.inside("worker", "streamkeeper", "release", FLOW, "--any-person")
    built.compose("up", "-d", "--no-build")
    await_batches(built)
    return built


def flow(system: System, name: str) -> dict[str, Any]:
    found = json.loads(system.inside("worker", "streamkeeper", "flows", "--json"))
    [one] = [item for item in found if item["flow"] == name]
    return dict(one)


def goes_on(system: System, name: str, batch: int) -> bool:
    seen = flow(system, name)
    if seen["state"] not in WORKING or (seen["batch"] or -1) <= batch:
        raise NotYet(f"{seen}; it was at batch {batch}")
    return True


def healthy(system: System, service: str, starts: int) -> bool:
    seen = system.inspect(service, "{{.State.Health.Status}} {{.RestartCount}}")
    if seen.split()[0] != "healthy" or int(seen.split()[1]) < starts:
        raise NotYet(seen)
    return True


def await_batches(system: System) -> None:
    """Wait until both endless flows have committed another batch than the present one, and a task watches."""
    before = {name: flow(system, name)["batch"] or -1 for name in (FLOW, ORDERS)}
    for name, batch in before.items():
        wait_until(lambda name=name, batch=batch: goes_on(system, name, batch), PATIENCE, f"{name} goes on")
    beat = holder(system)
    wait_until(lambda: holder(system) != beat or None, PATIENCE, f"a task watches {FLOW}")


def lasting(system: System) -> dict[str, int]:
    """Return what must be there after a restart: Airflow's runs, generations, files and offsets."""
    found: dict[str, int] = json.loads(system.python("worker", LASTING))
    return {**found, "runs": int(records(system, "SELECT count(*) FROM dag_run"))}


def records(system: System, query: str) -> str:
    """Return what PostgreSQL answers a query of Airflow's records."""
    program = ["psql", "-h", "/tmp", "-U", "airflow", "-d", "postgres", "-tAc", query]
    password = f"PGPASSWORD={system.secret('POSTGRES_PASSWORD')}"
    return system.inside("postgres", "env", password, *program).strip()


def test_the_story_is_true_in_the_composed_system(story: str) -> None:
    assert "The story is true" in story


def test_drivers_compute_on_the_spark_cluster(system: System) -> None:
    found = json.loads(system.python("spark-master", READ, "http://spark-master:8080/json/"))
    assert {FLOW, ORDERS} <= {item["name"] for item in found["activeapps"]}


def kill(system: System, *services: str) -> None:
    """Kill all processes of services, and wait until each is healthy again."""
    starts = {service: int(system.inspect(service, "{{.RestartCount}}")) for service in services}
    for service in services:
        system.kill(service)
    for service, count in starts.items():
        wait_until(
            lambda service=service, count=count: healthy(system, service, count + 1),
            PATIENCE,
            f"{service} is healthy again",
        )


@pytest.mark.parametrize("services", [STORES, FEEDS, SPARK, AIRFLOW], ids=" ".join)
def test_services_whose_processes_are_killed_come_again_and_the_flows_go_on(
    services: tuple[str, ...], system: System
) -> None:
    kill(system, *services)
    await_batches(system)


def holder(system: System) -> dict[str, Any]:
    """Return host and epoch of the driver's lease, which try of the task watches it, and its beats."""
    return dict(json.loads(system.python("scheduler", HOLDER, FLOW)))


def test_a_task_on_another_host_finds_the_driver_and_watches_it(system: System) -> None:
    before = holder(system)
    celery = f"celery@{before['host']}"
    system.compose("up", "-d", "--no-build", "--scale", "worker=2")
    wait_until(lambda: has_workers(system, 2), PATIENCE, "the second worker takes tasks")
    # The first takes no further task, and its tasks end; the drivers, beside them, do not.
    system.inside("scheduler", "airflow", "celery", "remove-queue", "-H", celery, "-q", "default")
    system.run("docker", "exec", before["host"], "python", "-c", KILL_TASKS)

    def watched() -> bool:
        seen = holder(system)
        if seen["by"] == before["by"]:
            raise NotYet(str(seen))
        assert (seen["host"], seen["epoch"]) == (before["host"], before["epoch"]), "the driver is the same"
        return True

    wait_until(watched, PATIENCE, "another try of the task watches the driver")
    count = holder(system)["count"]
    wait_until(lambda: holder(system)["count"] > count or None, PATIENCE, "it goes on watching")
    await_batches(system)
    assert holder(system)["epoch"] == before["epoch"]
    system.inside("scheduler", "airflow", "celery", "add-queue", "-H", celery, "-q", "default")
    system.compose("up", "-d", "--no-build", "--scale", "worker=1")
    await_batches(system)


def has_workers(system: System, count: int) -> bool:
    seen = system.run(
        "docker", "inspect", "--format", "{{.State.Health.Status}}", *system.containers("worker")
    )
    if seen.split() != ["healthy"] * count:
        raise NotYet(seen)
    return True


def test_what_was_there_is_there_after_down_and_up(system: System) -> None:
    before = lasting(system)
    system.compose("down", "--timeout", "60")
    system.compose("up", "-d", "--no-build")
    after = lasting(system)
    assert {name: (before[name], after[name]) for name in before if after[name] < before[name]} == {}
    await_batches(system)


def test_what_is_past_is_removed_and_the_runs_of_flows_go_on(system: System) -> None:
    """Three minutes are long past here: longer than any heartbeat, shorter than the flows' tasks run."""
    runs, began = int(records(system, "SELECT count(*) FROM dag_run")), holder(system)
    of_flow = (
        "SELECT run_id FROM task_instance WHERE state = 'running' AND pool = 'streaming_flows' ORDER BY 1"
    )
    running = records(system, of_flow)
    assert running
    command = [
        "python",
        "-m",
        "demo.airflow.housekeeping",
        "/var/lib/airflow/logs",
        str(3 / 1440),
        "/tmp/once",
    ]
    assert "rows before" in system.inside("housekeeping", *command)
    await_batches(system)
    assert (records(system, of_flow), holder(system)["by"]) == (running, began["by"])
    assert int(records(system, "SELECT count(*) FROM dag_run")) < runs


def test_only_airflow_listens_outside_and_it_asks_who_one_is(system: System) -> None:
    published = {name: system.inspect(name, "{{json .NetworkSettings.Ports}}") for name in SERVICES}
    open_ports = {name for name, ports in published.items() if "HostPort" in ports}
    assert open_ports == {"api-server"}
    with pytest.raises(AssertionError, match="401"):
        system.python("worker", READ, "http://api-server:8080/api/v2/dags")


def test_the_profiles_start_beside_it_and_prometheus_sees_the_cluster(system: System) -> None:
    system.compose("--profile", "s3", "--profile", "metrics", "up", "-d", "s3", "prometheus")
    for service in ("s3", "prometheus"):
        wait_until(lambda service=service: healthy(system, service, 0), PATIENCE, f"{service} is healthy")
    query = "http://prometheus:9090/api/v1/query?query=up"

    wanted = dict.fromkeys((f"{name}:8080" for name in ("api-server", *SPARK)), "1")

    def seen() -> bool:
        result = json.loads(system.python("spark-master", READ, query))["data"]["result"]
        if {item["metric"]["instance"]: item["value"][1] for item in result} != wanted:
            raise NotYet(str(result))
        return True

    wait_until(seen, PATIENCE, "Prometheus reads the page's metrics, master and workers")
    kill(system, "s3", "prometheus")
    wait_until(seen, PATIENCE, "Prometheus reads them again")


def test_a_flow_has_state_and_table_on_the_s3_server_where_the_environment_says_so(system: System) -> None:
    system.compose("--profile", "s3", "up", "-d", "--no-build", "s3")
    wait_until(lambda: healthy(system, "s3", 0), PATIENCE, "s3 is healthy")
    given = {**ON_S3, "SPARK_LOCAL_HOSTNAME": "streamkeeper-once"}
    variables = [part for name, value in given.items() for part in ("-e", f"{name}={value}")]
    once = ["streamkeeper", "run", SNAPSHOT, "--available-now", "--master", "spark://spark-master:7077"]
    system.compose("run", "--rm", "--no-deps", "--name", "streamkeeper-once", *variables, "worker", *once)
    bucket = "/var/lib/s3/streamkeeper"
    there = system.inside("s3", "sh", "-c", f"ls {bucket}/warehouse/customers {bucket}/state/customers")
    assert ".parquet" in there and SNAPSHOT.partition(".")[2] in there


def test_the_image_of_pods_runs_a_driver_by_what_spark_gives_a_pod(built: System) -> None:
    image, volume = "streamkeeper-pod:long", "streamkeeper-long-pod"
    given = ["PIP_INDEX_URL", "STREAMKEEPER_IVY_SETTINGS", "JAVA_TOOL_OPTIONS", "BASE_IMAGE"]
    arguments = [part for name in given for part in ("--build-arg", name)]
    built.run("docker", "build", "--target", "pod", *arguments, "-t", image, ".", timeout=PATIENCE)
    # Without a network a container's own name is that of no address; a pod's is.
    beside = ["--network", "none", "--hostname", "localhost", "-v", f"{volume}:/var/lib/streamkeeper"]

    def pod(*words: str) -> str:
        address = ["-e", "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1"]
        return built.run("docker", "run", "--rm", *beside, *address, image, *words, timeout=PATIENCE)

    try:
        _, *asked = json.loads(pod("python", "-c", FIRST_FILES).splitlines()[-1])
        pod("driver", *(f"local://{word}" if word.endswith("/run_flow.py") else word for word in asked))
        states = {flow["flow"]: flow["state"] for flow in json.loads(pod("streamkeeper", "flows", "--json"))}
        assert states[SNAPSHOT] == "done"
    finally:
        built.run("docker", "volume", "rm", "--force", volume)


def test_in_the_end_the_tables_equal_the_oracle(system: System) -> None:
    system.compose("stop", "customers-feed", "orders-feed")
    said = system.inside(
        "worker", "python", "-", standard_input=Path(__file__).with_name("audit.py").read_text()
    )
    assert "equal;" in said
