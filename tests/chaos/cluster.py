"""A cluster on this machine for chaos: Airflow with Celery, PostgreSQL and Redis, a Spark master with two
workers, a Kafka broker, and an S3 server that holds state and tables. Each is a process of its own; the ways
to the four servers lead through toxiproxy, which cuts them off.

The S3 server keeps an object as a file of that path, so the auditor reads state and tables on the disk, where
no blow reaches. S3's answers are lost now and then all the while.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from demo import evidence
from demo.data.customers import Customers
from demo.data.generator import Generator
from demo.data.orders import TOPIC, VARIABLE, Orders, Sent
from demo.leftovers import end_marked
from demo.lock import MARK
from demo.tables import read_rows
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, SLOT, Settings
from streamkeeper.storage import open_storage
from tests.chaos.arena import EVERY, Arena, Restarted, Watched, declare, files_behind
from tests.chaos.auditor import Auditor
from tests.chaos.choosing import Blow, Victim
from tests.chaos.components import API, CELERY, PROCESSOR, SCHEDULER, SHORT, TRIGGERER, SplitAirflow
from tests.postgres import postgres
from tests.spark_conf.jvm import QUICK_TO_START, quick_to_start
from tests.worlds.clusters.standalone import daemon
from tests.worlds.servers import Server, go_program, listens
from tests.worlds.sources.on_s3 import environment_on_s3
from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_process
from tools.kafka_broker import KafkaBroker
from tools.ports import free_ports

WORKERS = 2
LOST = 0.02
"""The share of answers to S3's PUTs that are lost."""
LOSSY = 0.4
"""The share of all of S3's answers that a lossy network loses."""
SLOW_SECONDS = 1.5
PATIENCE = 600.0
SPARK = f"""
spark.cores.max        2
spark.executor.cores   1
spark.executor.memory  700m
spark.driver.memory    1g
spark.executor.extraJavaOptions  {QUICK_TO_START}
# Spark's own numbers, 200 and 50, are for hundreds of cores: batches of a few rows took minutes.
spark.sql.shuffle.partitions              2
spark.databricks.delta.snapshotPartitions 2
"""
TIMES = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
    "STREAMKEEPER_LEASE_TERM": "30",
    "STREAMKEEPER_HEARTBEAT_INTERVAL": "2",
    "STREAMKEEPER_EXECUTORS_TIMEOUT": "60",
}
REQUIREMENTS = "requirements.txt", "requirements-cluster.txt"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server", "2.12.0", "toxiproxy"


@dataclass(frozen=True)
class Links:
    """Ways to servers of this machine, by toxiproxy's API at a port."""

    port: int

    def lead(self, victim: Victim, server: int) -> int:
        """Return a port that leads to a server's."""
        (port,) = free_ports(1)
        way = {"name": victim.name, "listen": f"127.0.0.1:{port}", "upstream": f"127.0.0.1:{server}"}
        self._ask("POST", "/proxies", way)
        return port

    @contextmanager
    def cut(self, victim: Victim) -> Iterator[None]:
        """Let nothing through either way; connections that are there are closed at the end."""
        toxics = f"/proxies/{victim.name}/toxics"
        for way in ("upstream", "downstream"):
            self._ask("POST", toxics, {"name": way, "type": "timeout", "stream": way})
        try:
            yield
        finally:
            for way in ("upstream", "downstream"):
                self._ask("DELETE", f"{toxics}/{way}")

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=verb,
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def cluster(root: Path, mark: str, seed: int) -> Iterator[Arena]:
    """Start it all below a folder; end every process that it started, however the block ends.

    :param mark: what the processes carry in their environment, by which those that are left are found.
    :param seed: of the customers, and of S3's lost answers.
    """
    quick_to_start()
    pipelines = PROJECT / "spark_jobs" / "pipelines"
    declare(root, pipelines / "customers.py")
    shutil.copy(pipelines / "orders.py", root / "pipelines")
    local = _settings(root)
    os.environ[MARK] = mark  # of all that is started here
    try:
        with ExitStack() as stack:
            (port,) = free_ports(1)
            command = [go_program(*TOXIPROXY), "-host", "127.0.0.1", "-port", str(port)]
            stack.enter_context(Server("toxiproxy", command, root / "toxiproxy.log", listens(port)))
            links = Links(port)

            s3_port, database_port, broker_port, redis_port = free_ports(4)
            s3 = stack.enter_context(s3_process(root / "s3", s3_port))
            network = stack.enter_context(_lossy(s3_port, seed))
            endpoint = f"http://127.0.0.1:{links.lead(Victim.S3, int(network.url.rpartition(':')[2]))}"
            database = stack.enter_context(postgres(database_port))
            redis = stack.enter_context(_redis(root / "redis", redis_port))
            known_as = links.lead(Victim.BROKER, broker_port)
            advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{known_as}"}
            broker = stack.enter_context(KafkaBroker(root / "kafka", advertised, port=broker_port))
            brokers = f"127.0.0.1:{known_as}"
            master, workers = _spark(stack, root / "spark")

            address = database.address(links.lead(Victim.DATABASE, database_port))
            celery = _celery(address, links.lead(Victim.REDIS, redis_port))
            extra = {**_streams(root, endpoint, brokers), **SHORT, **TIMES, **celery}
            service = stack.enter_context(
                SplitAirflow(
                    root / "airflow", local, master=master, extra=extra,
                    names=(API, SCHEDULER, PROCESSOR, TRIGGERER, CELERY),
                )
            )  # fmt: skip

            servers: dict[Victim, tuple[Restarted, ...]] = {
                Victim.S3: (s3,),
                Victim.DATABASE: (database.server,),
                Victim.REDIS: (redis,),
                Victim.BROKER: (broker,),
                Victim.SPARK_MASTER: workers[:1],
                Victim.SPARK_WORKER: workers[1:],
            }
            flows = (
                stack.enter_context(_customers(local, seed)),
                stack.enter_context(_orders(local, brokers)),
            )
            gone = frozenset((Victim.TASK, Victim.CELERY) if local.supervision == SLOT else ())
            yield Arena(service, flows, gone, partial(_disturbed, links, network), servers, PATIENCE)
    finally:
        del os.environ[MARK]
        end_marked(mark)


@contextmanager
def _disturbed(links: Links, network: Proxy, victim: Victim, blow: Blow) -> Iterator[None]:
    if blow is Blow.CUT:
        with links.cut(victim):
            yield
        return
    slow, usual, chance = blow in (Blow.SLOW, Blow.LOSSY), network.loses, Random()
    network.refuses, network.delay = blow is Blow.REFUSE, SLOW_SECONDS * slow
    if blow is Blow.LOSSY:
        network.loses = lambda request: chance.random() < LOSSY
    try:
        yield
    finally:
        network.refuses, network.delay, network.loses = False, 0.0, usual


def _settings(root: Path) -> Settings:
    """Return settings by which state and tables on S3 are found on the disk."""
    places = {name: root / "s3" / BUCKET / name for name in ("state", "warehouse")}
    places |= {name: root / name for name in ("data", "pipelines")}
    return Settings.from_environment(
        {**os.environ, **{f"STREAMKEEPER_{name.upper()}": str(place) for name, place in places.items()}}
    )


@contextmanager
def _lossy(port: int, seed: int) -> Iterator[Proxy]:
    chance = Random(seed)
    with proxy(f"127.0.0.1:{port}") as network:
        network.loses = lambda request: request.startswith("PUT") and chance.random() < LOST
        yield network


def _streams(root: Path, endpoint: str, brokers: str) -> dict[str, str]:
    """Return what drivers need, and write Spark's own settings."""
    on_s3 = environment_on_s3(root, endpoint)
    with (root / "conf" / "spark-defaults.conf").open("a") as conf:
        conf.write(SPARK)
    names = f"AWS_*,{VARIABLE}"
    return {**on_s3, VARIABLE: brokers, "STREAMKEEPER_PIPELINE_ENV": names, "SPARK_LOCAL_IP": "127.0.0.1"}


def _redis(folder: Path, port: int) -> Server:
    folder.mkdir()
    program = shutil.which("redis-server")
    assert program, "Celery's broker here is Redis: install it (Debian: apt-get install redis-server)"
    kept = ["--appendonly", "yes", "--dir", folder]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), *kept]
    return Server("Redis", command, folder / "log", listens(port))


def _spark(stack: ExitStack, folder: Path) -> tuple[str, tuple[Server, ...]]:
    """Start a master that knows its applications again after its death, and its workers."""
    folder.mkdir()
    port, page, *pages = free_ports(2 + WORKERS)
    where = ["--host", "127.0.0.1"]
    kept = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={folder}/recovery"
    given = [*where, "--port", str(port), "--webui-port", str(page)]
    made = [daemon("master.Master", given, folder / "master.log", listens(page), SPARK_MASTER_OPTS=kept)]
    master = f"spark://127.0.0.1:{port}"
    for number, page in enumerate(pages):
        given = [*where, "--webui-port", str(page), "--cores", "3", "--memory", "3g"]
        work = ["--work-dir", str(folder / f"work{number}"), master]
        log = folder / f"worker{number}.log"
        made.append(daemon("worker.Worker", [*given, *work], log, listens(page), **LOGIN))
    return master, tuple(stack.enter_context(server) for server in made)


def _celery(database: str, redis: int) -> dict[str, str]:
    """Return how Airflow uses Celery: as in docker-compose.yaml, with packages that only its image has."""
    composed = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())["x-airflow"]["environment"]
    folder = PROJECT / ".cache" / "celery"
    lines = [set((PROJECT / name).read_text().splitlines()) for name in REQUIREMENTS]
    beyond = sorted(
        line.removesuffix(" \\") for line in lines[1] - lines[0] if not line.startswith(("#", " "))
    )
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, *beyond], check=True)
    return {
        **{name: value for name, value in composed.items() if name.startswith("AIRFLOW__CELERY")},
        "PYTHONPATH": str(folder),
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{redis}/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": "5",
    }


@contextmanager
def _customers(local: Settings, seed: int) -> Iterator[Watched]:
    """Watch the flow of changes; the snapshot's flow writes the same table once."""
    storage, table = open_storage(local.state), local.table_path("customers")
    home, snapshot = (
        FlowHome(storage, "customers", f"customers_{name}_flow") for name in ("incremental", "snapshot")
    )
    producer = Customers(Path(local.data) / "customers", seed)
    producer.write(1)

    def changes() -> frozenset[str]:
        return evidence.present(f"{local.data}/customers/cdc")

    def behind(checkpoint: Checkpoint) -> str:
        once = "" if storage.read(snapshot.done(1)) else "the snapshot is not in"
        return files_behind(checkpoint, changes(), evidence.SOURCE) or once

    with Auditor(home, Path(table), [snapshot]) as auditor:
        yield Watched(
            "flow__customers__customers_incremental_flow", home, table, auditor,
            feed=lambda: Generator(producer, EVERY),
            behind=behind,
            compare=lambda: (
                evidence.expected(changes(), evidence.present(f"{local.data}/customers/snapshot")),
                evidence.actual(table),
            ),
        )  # fmt: skip


@contextmanager
def _orders(local: Settings, brokers: str) -> Iterator[Watched]:
    home, table = FlowHome(open_storage(local.state), "orders", "clean_orders"), local.table_path("orders")
    with Orders(brokers, every=EVERY):
        pass  # the topic is there before the flow
    with closing(Sent(brokers)) as sent, Auditor(home, Path(table)) as auditor:

        def behind(checkpoint: Checkpoint) -> str:
            ends, batch = sent.read(), checkpoint.last_commit()
            source = checkpoint.offsets(batch).sources["orders_raw"] if batch is not None else {}
            left = sum(end - source.get(TOPIC, {}).get(str(part), 0) for part, end in ends.items())
            return f"{left} of {sum(ends.values())} records are not processed" if left else ""

        yield Watched(
            "flow__orders__clean_orders", home, table, auditor,
            feed=lambda: Orders(brokers, every=EVERY),
            behind=behind,
            compare=lambda: (
                Counter({*sent.ids}),
                Counter(row["order_id"] for row in read_rows(table)),
            ),
        )  # fmt: skip
