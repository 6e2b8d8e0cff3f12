"""A flow whose driver a cluster runs on one of its hosts (deploy mode cluster), under its task: a real
standalone master, a real YARN, and pods that podman runs, each with a host whose processes nobody else can
see.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.request import urlopen

import pyspark
import pytest
from airflow.sdk import Context
from streamkeeper_airflow.flow import supervise
from streamkeeper_airflow.flow.supervise import FlowOperator
from streamkeeper_airflow.recovery.tasks import PLAN, SparkStep

from demo.tables import read_rows
from streamkeeper.clusters import cluster_drivers
from streamkeeper.drivers import stopping
from streamkeeper.drivers.stopping import By
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.leases import ClusterDriver, Life
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import kind
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.watch import batch_numbers
from tests.airflow.conftest import a_try
from tests.worlds.clusters.kubernetes import NAMESPACE, Kubernetes, LacksPodman, kubernetes
from tests.worlds.clusters.standalone import Cluster, standalone
from tests.worlds.clusters.yarn import Yarn, yarn
from tools.waiting import NotYet, wait_until

pytestmark = pytest.mark.long

FLOW = "first.first_flow"
SOON = 240.0
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": 2,
    "spark.databricks.delta.snapshotPartitions": 1,
}
NEVER = "550"
"""Seconds of the lease's term: nothing but the cluster's word proves a driver's end within the test."""


@dataclass
class Bed:
    """The flow, its cluster, and tries of its task."""

    home: FlowHome
    folder: Path
    cluster: Cluster | Yarn | Kubernetes

    def arrive(self, *ids: int) -> None:
        aside = self.folder / "aside.json"
        aside.write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))
        aside.rename(self.folder / "data" / "raw" / f"{ids[0]}.json")

    def table_has(self, *ids: int) -> None:
        def look() -> bool:
            table = self.folder / "warehouse" / "first_clean"
            there = (table / "_delta_log" / f"{0:020}.json").exists()
            found = sorted(row["id"] for row in read_rows(str(table))) if there else []
            if found != sorted(ids):
                raise NotYet(str(found))
            return True

        wait_until(look, SOON, f"the table has {ids}")

    def task(self) -> threading.Thread:
        """Start a try of the flow's task; what it ends with is kept in ``ended``."""

        def run() -> None:
            try:
                FlowOperator(task_id="run", flow=FLOW).execute(a_try())
            except Exception as error:  # noqa: BLE001 - what a task ends with is what is looked at
                thread.ended = error  # type: ignore[attr-defined]

        thread = threading.Thread(target=run, daemon=True)
        thread.ended = None  # type: ignore[attr-defined]
        thread.start()
        return thread

    def driver(self, epoch: int, task: threading.Thread) -> ClusterDriver:
        def look() -> ClusterDriver | None:
            assert task.is_alive(), task.ended  # type: ignore[attr-defined]
            lease = leases.read(self.home, epoch)
            return lease.cluster if lease else None

        return wait_until(look, SOON, f"the driver of epoch {epoch} has the lease")


@contextmanager
def by_master(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, str]]:
    """Run a standalone cluster; give it and its master."""
    with standalone(folder, memory="3500m", apart=True) as cluster:
        yield cluster, cluster.master


@contextmanager
def by_yarn(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Yarn, str]]:
    """Run YARN, whose nodes have Spark's jars; give it and its master."""
    conf = folder / "spark-conf"
    conf.mkdir()
    jars = Path(pyspark.__file__).parent / "jars"
    # YARN's proxy asks from the loopback, and a driver's page elsewhere would send it back to itself.
    local = "spark.yarn.appMasterEnv.SPARK_LOCAL_IP 127.0.0.1"
    lines = (f"spark.yarn.jars local:{jars}/*", "spark.executor.instances 1", local)
    (conf / "spark-defaults.conf").write_text("\n".join(lines))
    patch.setenv("SPARK_CONF_DIR", str(conf))
    with yarn(folder) as cluster:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        yield cluster, cluster.master


@contextmanager
def by_kubernetes(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Kubernetes, str]]:
    """Run a cluster of pods that see the test's folder; give it and its master."""
    conf = folder / "spark-conf"
    conf.mkdir()
    patch.setenv("SPARK_CONF_DIR", str(conf))
    try:
        with kubernetes(folder) as cluster:
            (conf / "spark-defaults.conf").write_text(cluster.defaults(folder.parent))
            yield cluster, cluster.master
            assert cluster.invalid == [], "Kubernetes' schemas take all that Spark asked for"
    except LacksPodman as error:
        pytest.skip(str(error))


@pytest.fixture(params=[by_master, by_yarn, by_kubernetes])
def bed(
    request: pytest.FixtureRequest, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bed]:
    (project / "data" / "raw").mkdir()
    file = project / "pipelines" / "first.py"
    file.write_text(file.read_text().replace('sources=["raw"]', f'sources=["raw"], spark_conf={SMALL}'))
    monkeypatch.setenv("STREAMKEEPER_JARS", str(PROJECT / ".cache" / "jars"))
    monkeypatch.setenv("STREAMKEEPER_LEASE_TERM", NEVER)
    monkeypatch.setenv("STREAMKEEPER_SPARK_UI", "true")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setattr(supervise, "record_alert", lambda *_, **__: None)
    (tmp_path / "cluster").mkdir()
    with request.param(tmp_path / "cluster", monkeypatch) as (cluster, master):
        extra = {"deploy-mode": "cluster", "cluster-page": cluster.page, "namespace": NAMESPACE}
        connection = {"conn_type": "spark", "host": master, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", json.dumps(connection))
        yield Bed(open_home(Settings.from_environment(), FLOW), project, cluster)


def test_a_driver_that_the_cluster_runs_is_followed_found_again_replaced_and_ended(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    def await_words(words: str) -> None:
        def look() -> bool:
            log.append(capsys.readouterr().out)
            return words in "".join(log)

        wait_until(lambda: look() or None, SOON, f"the task's log has {words!r}")

    bed.arrive(1, 2, 3)
    first = bed.task()
    driver = bed.driver(1, first)
    bed.table_has(1, 2, 3)
    lease = leases.current(bed.home)
    assert lease is not None
    assert leases.life(bed.home, lease) is Life.UNKNOWN, "its process is not visible from here"
    await_words("generation 1, batch 0, 3 rows")  # the driver's own
    beat = leases.present_heartbeat(bed.home)
    assert beat is not None
    with urlopen(beat.details[batch_numbers.UI], timeout=30) as page:
        assert b"Spark Jobs" in page.read(), "the link of the flow's page leads to its driver"

    other = bed.task()
    await_words("attaching to it")
    assert bed.cluster.drivers() == {driver.id: "RUNNING"}

    _kill_jvm(bed.cluster.jvm_of(driver.id))
    bed.arrive(4, 5)
    second = bed.driver(2, first)
    assert bed.cluster.drivers()[driver.id] == "FAILED"
    assert leases.life(bed.home, lease) is Life.LEFT, "nobody waited for the lease's term"
    bed.table_has(1, 2, 3, 4, 5)

    holds.put(bed.home, holds.person("ada"), "maintenance", "ada")
    stop = stopping.stop(bed.home, 0.0, term=float(NEVER))
    assert stop.by in (By.HOLD, By.TERM)
    wait_until(lambda: cluster_drivers.ended(second), SOON, "the master says that it ended")
    assert stop.epoch == 2
    for task in (first, other):
        task.join(SOON)
        assert not task.is_alive()
    assert "RUNNING" not in bed.cluster.drivers().values()

    ran = set(bed.cluster.drivers())
    holds.release(bed.home, holds.person("ada"))
    _empty_the_table()
    bed.table_has()
    [step] = set(bed.cluster.drivers()) - ran
    assert bed.cluster.drivers()[step] == "FINISHED", "the cluster ran the step, too"


PACKED = """
from pyspark.sql.functions import udf
from streamkeeper import pipelines as dp

def place(_):
    import packed
    return packed.__file__

dp.create_source("raw", format="json", path="{data}/raw", schema="id INT")
dp.create_streaming_table("first_clean")

@dp.append_flow(
    name="first_flow", target="first_clean", sources=["raw"], spark_conf=%r,
    driver=dp.driver(archives=["%s#env"]),
)
def flow(raw):
    return raw.withColumn("by", udf(place, "string", useArrow=False)("id"))
"""


@pytest.mark.parametrize("bed", [by_yarn], indirect=True)
def test_a_python_that_is_packed_travels_to_the_executors(bed: Bed) -> None:
    made = bed.folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    [site] = made.glob("lib/python*/site-packages")
    (site / "packed.py").write_text("")
    pythons = {"spark.pyspark.python": "./env/bin/python", "spark.pyspark.driver.python": sys.executable}
    packed = shutil.make_archive(str(made), "gztar", made)
    file = bed.folder / "pipelines" / "first.py"
    file.write_text(PACKED % ({**SMALL, **pythons}, packed))
    shutil.rmtree(made)

    bed.arrive(1, 2)
    task = bed.task()
    bed.driver(1, task)
    bed.table_has(1, 2)
    found = [row["by"] for row in read_rows(str(bed.folder / "warehouse" / "first_clean"))]
    assert all("/env/lib/" in place and str(bed.folder / "env/") not in place for place in found), found
    holds.put(bed.home, holds.person("ada"), "the test is over", "ada")
    task.join(SOON)
    assert not task.is_alive()


def _empty_the_table() -> None:
    """Carry out a full refresh up to its step that needs Spark, and that one as its task does."""
    settings, of, at = Settings.from_environment(), kind("full_refresh"), ("first", "r1")
    request = of.parse({"table": "first.first_clean"}, read_manifest(settings), "ada")
    plan = engine.propose(settings, engine.plan(settings, of, request, "r1"))
    engine.approve(settings, *at, "ada")
    for step in plan.steps[: plan.steps.index("empty_tables")]:
        engine.carry_out(settings, *at, step)
    handed = {"kind": "full_refresh", "recovery": "r1", "pipeline": "first", "dry_run": False}
    handed["connection"] = "streamkeeper_spark"
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {PLAN: handed}[task_ids])
    SparkStep(kind_name="full_refresh", task_id="empty_tables").execute(cast("Context", {"ti": ti}))


def _kill_jvm(pattern: str) -> None:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
