"""Seconds from a lost executor, worker or host to the next batch: ``make bench NAME=losses``.

On a standalone cluster of two workers, whose processes nobody outside can see, as on other hosts:

1. an executor is killed, then a whole worker, while the driver is on this machine: a flow in a real Airflow
   beside the same query in a shell loop. Both run at once and lose at once.
2. The worker is killed on which the driver is (deploy mode cluster): a flow beside the same query with
   ``--supervise``, one after the other. Spark starts that again as soon as the master misses the worker; a
   flow's next driver waits for the lease's term, since the lost one may still write.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from demo.__main__ import Interrupted, _interruptible
from demo.airflow.service import AirflowService
from demo.data.generator import Generator
from streamkeeper.clusters import standalone as standalone_master
from streamkeeper.drivers import submit
from streamkeeper.drivers.submit import Submission
from streamkeeper.flows.leases import ClusterDriver
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import BARE, Bench
from tests.benchmarks.sides.supervised_sides import (
    FILES,
    STEP,
    TRIGGER,
    Side,
    bare_arguments,
    bare_settings,
    in_a_loop,
)
from tests.events_producer import Producer
from tests.worlds.clusters.standalone import Cluster, standalone
from tools.waiting import wait_until

ROUNDS = rounds(3)
WORKERS = 2
CONF = """
spark.cores.max 2
spark.executor.cores 1
spark.executor.memory 600m
spark.driver.memory 600m
spark.sql.shuffle.partitions 2
spark.databricks.delta.snapshotPartitions 2
"""


@contextmanager
def standing(root: Path) -> Iterator[tuple[Cluster, Bench]]:
    """Run the cluster, with a producer of events."""
    (root / "conf").mkdir()
    (root / "cluster").mkdir()
    (root / "conf" / "spark-defaults.conf").write_text(CONF)
    os.environ.update(SPARK_CONF_DIR=str(root / "conf"), SPARK_LOCAL_IP="127.0.0.1")
    bench = Bench(root, FILES)
    bench.declare("dedupe")
    file = bench.settings.pipelines / "events.py"
    file.write_text(file.read_text().replace('target="events",', f'target="events", trigger="{TRIGGER}",'))
    producer = Producer(Path(bench.settings.data) / "events")
    producer.write(1)
    with (
        standalone(root / "cluster", cores=4, memory="4g", apart=True, workers=WORKERS) as cluster,
        Generator(producer, every=1.0),
    ):
        yield cluster, bench


@contextmanager
def airflow(bench: Bench, cluster: Cluster, mode: str) -> Iterator[AirflowService]:
    """Run an Airflow whose flow is submitted in a deploy mode, until the block ends."""
    extra = {"deploy-mode": mode, **({"cluster-page": cluster.page} if mode == "cluster" else {})}
    connection = {"conn_type": "spark", "host": cluster.master, "extra": extra}
    given = {"AIRFLOW_CONN_STREAMKEEPER_SPARK": json.dumps(connection)}
    with AirflowService(bench.root / f"airflow-{mode}", bench.settings, extra=given) as service:
        yield service


def here(cluster: Cluster, bench: Bench) -> None:
    """Print the seconds from the loss of an executor, and of a worker, to the next batch."""
    flow, loop = _side(bench, "streamkeeper"), _side(bench, "loop")
    found: dict[str, tuple[list[float], list[float]]] = {"executor": ([], []), "worker": ([], [])}
    with airflow(bench, cluster, "client"), in_a_loop(bench, _bare(bench, cluster, loop).command()):
        for number in range(ROUNDS + 1):
            for what, seconds in found.items():
                _await_batches(flow, loop)
                lost = wait_until(_one_of_each, STEP, "both have all their executors")
                before, began = (flow.version(), loop.version()), time.time()
                if what == "executor":
                    for pid in lost:
                        os.kill(pid, signal.SIGKILL)
                else:
                    cluster.kill_worker()
                passed = [
                    side.await_commit(version) - began
                    for side, version in zip((flow, loop), before, strict=True)
                ]
                if number:  # the first warms up
                    seconds[0].append(passed[0])
                    seconds[1].append(passed[1])
                if what == "worker":
                    cluster.add_worker()
    for what, (ours, theirs) in found.items():
        print_ratio(f"a lost {what}, the driver stays", ours, theirs, "s", "≤1.3")


def there(cluster: Cluster, bench: Bench) -> None:
    """Print the seconds from the loss of the driver's host to the next batch."""
    side = _side(bench, "supervised")
    made = _bare(bench, cluster, side).by_cluster(cluster.page, bench.settings)
    command = [
        *made.command()[:1],
        "--deploy-mode",
        "cluster",
        "--supervise",
        "--class",
        str(made.java_class),
    ]
    done = subprocess.run(
        [*command, *made.command()[1:]], env={**os.environ, **submit.environment(bench.settings)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"spark-submit failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    theirs = _lose_hosts(cluster, side)
    for driver in cluster.state()["activedrivers"]:
        standalone_master.end(ClusterDriver(cluster.page, driver["id"]))
    wait_until(lambda: not cluster.state()["activedrivers"] or None, STEP, "the query has ended")
    with airflow(bench, cluster, "cluster"):
        ours = _lose_hosts(cluster, _side(bench, "streamkeeper"))
    print_ratio("a lost host, with the driver", ours, theirs, "s", "–")


def _lose_hosts(cluster: Cluster, side: Side) -> list[float]:
    found = []
    for _ in range(ROUNDS):
        _await_batches(side)
        page = wait_until(lambda: _driver_is_at(cluster), STEP, "the driver runs")
        before, began = side.version(), time.time()
        cluster.kill_worker(page)
        found.append(side.await_commit(before) - began)
        cluster.add_worker()
    return found


def _driver_is_at(cluster: Cluster) -> str | None:
    """Return the page of the worker on which the one driver runs."""
    known = cluster.state()
    at = [driver["worker"] for driver in known["activedrivers"] if driver["state"] == "RUNNING"]
    return next((str(one["webuiaddress"]) for one in known["workers"] if at == [one["id"]]), None)


def _await_batches(*sides: Side) -> None:
    for side in sides:
        side.await_commit(side.version() + 1)


def _side(bench: Bench, name: str) -> Side:
    if name == "streamkeeper":
        return Side(name, bench.table, bench, "")
    return Side(name, bench.root / name / "events", bench, str(bench.root / name / "checkpoint"))


def _bare(bench: Bench, cluster: Cluster, side: Side) -> Submission:
    return Submission(
        side.name,
        BARE,
        tuple(bare_arguments(bench, side)),
        bare_settings(bench, cluster.master),
        cluster.master,
        os.environ,
    )


def _one_of_each() -> list[int] | None:
    """Return an executor of each of the two applications; None unless each has all of its executors."""
    found: dict[bytes, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in line:
                found.setdefault(line[line.index(b"--app-id") + 1], []).append(int(entry.name))
    return [pids[0] for pids in found.values()] if [*map(len, found.values())] == [WORKERS] * 2 else None


def main() -> None:
    """Measure and print the table; Ctrl-C and SIGTERM end what was started."""
    with (
        _interruptible(),
        tempfile.TemporaryDirectory(prefix="bench-losses-") as made,
        standing(Path(made)) as (cluster, bench),
    ):
        term = bench.settings.lease_term
        print(
            f"{ROUNDS} rounds; a trigger every {TRIGGER}, the lease's term is {term:g} s\n{HEADER}",
            flush=True,
        )
        here(cluster, bench)
        there(cluster, bench)


if __name__ == "__main__":
    enter_environment()
    try:
        main()
    except Interrupted:
        sys.exit(130)
