"""One query three times over the same files: under Streamkeeper, under the stock SparkSubmitOperator, and in
a shell loop.

All three run at once, in one real Airflow where they need one. While one is measured, the drivers of the
others are stopped (SIGSTOP).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.airflow.service import AirflowService
from demo.processes import end_group, session_members, started
from streamkeeper.declare.driver import OURS
from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life
from streamkeeper.settings import PROJECT
from streamkeeper.storage import open_storage
from tests.benchmarks.sides.flows_side_by_side import BARE, NAME, Bench
from tools.waiting import wait_until

TRIGGER, FILES = "2 seconds", 20
STEP = 600.0
"""Seconds that anything awaited may take."""
STOCK_DAG = "stock"

# A frozen driver must not be taken for a dead executor when it goes on.
PATIENCE = {"spark.network.timeout": "3600s"}

STOCK = """
from datetime import datetime, timedelta, timezone
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
with DAG("stock", schedule="@continuous", start_date=LONG_AGO, max_active_runs=1, catchup=False):
    SparkSubmitOperator(
        task_id="run", conn_id="streamkeeper_spark",
        application={application!r}, application_args={arguments!r}, conf={conf!r},
        env_vars={variables!r}, retries=1_000_000, retry_delay=timedelta(0), pool="streaming_flows",
    )
"""
LOOP = "while :; do {command}; done\n"


@dataclass(frozen=True)
class Side:
    """One of the three: where its table is, and which processes are its driver."""

    name: str
    table: Path
    bench: Bench
    checkpoint: str

    def driver(self) -> list[int]:
        """Give the processes of its driver, JVM and Python: by the lease, or by the checkpoint that they were
        started with.
        """
        if self.name == "streamkeeper":
            home = FlowHome(open_storage(self.bench.settings.state), *NAME.split("."))
            lease = leases.current(home)
            living = lease is not None and leases.life(home, lease) is Life.ALIVE
            return session_members(os.getsid(lease.process.pid)) if lease is not None and living else []
        return [pid for pid in _processes() if _runs(pid, self.checkpoint)]

    def version(self) -> int:
        """Give the table's latest version; -1 where there is none."""
        found = delta_log.latest_version(str(self.table))
        return -1 if found is None else found

    def await_commit(self, after: int, poll: float = 0.05) -> float:
        """Wait for the first version after one; give when it was written, in seconds since the epoch."""
        wait_until(lambda: self.version() > after or None, STEP, f"{self.name} commits a batch", poll)
        return (self.table / "_delta_log" / f"{after + 1:020d}.json").stat().st_mtime

    def send(self, number: signal.Signals) -> list[tuple[int, int]]:
        """Signal the driver's processes; give them by pid and start time."""
        hit = [(pid, since) for pid in self.driver() if (since := started(pid)) is not None]
        for pid, _ in hit:
            os.kill(pid, number)
        return hit


def sides(bench: Bench) -> tuple[Side, Side, Side]:
    """Give Streamkeeper's side, the shell loop's and the stock operator's."""
    root = bench.root
    return (
        Side("streamkeeper", bench.table, bench, ""),
        Side("bare loop", root / "loop" / "events", bench, str(root / "loop" / "checkpoint")),
        Side("stock operator", root / "stock" / "events", bench, str(root / "stock" / "checkpoint")),
    )


@contextmanager
def running(bench: Bench) -> Iterator[AirflowService]:
    """Run all three until the block ends."""
    bench.declare("dedupe")
    file = bench.settings.pipelines / "events.py"
    file.write_text(
        file.read_text().replace(
            'target="events",', f'target="events", trigger="{TRIGGER}", spark_conf={PATIENCE!r},'
        )
    )
    _, loop, stock = sides(bench)
    dags = bench.root / "dags"
    dags.mkdir()
    shutil.copy(PROJECT / "dags" / "flows.py", dags)
    variables = {**submit.environment(bench.settings), "PATH": os.environ["PATH"]}
    conf = bare_settings(bench)
    (dags / "stock.py").write_text(
        STOCK.format(
            application=str(BARE), arguments=bare_arguments(bench, stock), conf=conf, variables=variables
        )
    )
    flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = [submit.spark_submit(), "--master", "local[2]", *flags, str(BARE), *bare_arguments(bench, loop)]
    service = AirflowService(
        bench.root / "airflow", bench.settings, extra={"AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    )
    with service:
        try:
            with in_a_loop(bench, command):
                try:
                    yield service
                finally:
                    for side in sides(bench):
                        side.send(signal.SIGCONT)
        finally:
            service.stop()
            stock.send(signal.SIGKILL)


@contextmanager
def in_a_loop(bench: Bench, command: Sequence[str]) -> Iterator[None]:
    """Let a shell start a query, and again whenever it ends, until the block ends."""
    script = bench.root / "loop.sh"
    script.write_text(LOOP.format(command=shlex.join(command)))
    with (bench.root / "loop.out").open("wb") as output:
        shell = subprocess.Popen(
            ["/bin/sh", str(script)],
            env={**os.environ, **submit.environment(bench.settings)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            end_group(shell.pid, grace=1)
            shell.wait()


def bare_arguments(bench: Bench, side: Side) -> list[str]:
    return [f"{bench.settings.data}/events", str(side.table), side.checkpoint, str(FILES), "dedupe", TRIGGER]


def bare_settings(bench: Bench, master: str = submit.DEFAULT_MASTER) -> dict[str, str]:
    """Give the bare query Streamkeeper's Spark settings, but for those that positions by name need."""
    given = submit.spark_settings(bench.settings, bench.flow().declaration, master)
    return {
        name: value
        for name, value in given.items()
        if not (name in OURS and name.startswith("spark.sql.streaming"))
    }


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _runs(pid: int, checkpoint: str) -> bool:
    """Tell the JVM and the Python of a query from the shell and the task that started them."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it ended meanwhile
    return checkpoint.encode() in line and line[0].endswith(
        (b"java", b"python", Path(os.path.realpath("/proc/self/exe")).name.encode())
    )
