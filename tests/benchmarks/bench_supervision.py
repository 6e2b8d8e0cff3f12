"""What supervision costs: ``python tests/benchmarks/bench_supervision.py``; ROUNDS=… for fewer or more than
five.

1. ``kill -9`` of the driver, JVM and Python, until the next committed batch: under Streamkeeper, against the
   same query in a shell loop that starts it again at once (aim ≤1.3), and beside it under the stock
   SparkSubmitOperator with ``retry_delay=0`` in the same Airflow.
2. Memory of the task process that supervises, beyond that of the stock operator's task (aim: none).
3. Requests a minute to the store for heartbeat, holds and supervision of one flow that runs and has no new
   data, with the default settings (aim ≤40), and what Amazon S3 bills for them, for 1,000 flows a month.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demo.__main__ import Interrupted, _interruptible
from demo.airflow.api import AirflowApi
from demo.data.generator import Generator
from demo.processes import started
from streamkeeper.drivers.supervision import Absence
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT
from streamkeeper.storage import open_storage
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.counting import Counting
from tests.benchmarks.sides.flows_side_by_side import NAME, Bench
from tests.benchmarks.sides.supervised_sides import FILES, STEP, STOCK_DAG, Side, running, sides
from tests.events_producer import Producer
from tests.worlds.flows.process_usage import usage
from tools.waiting import wait_until

ROUNDS = rounds()
MINUTE, SETTLED = 60.0, 5.0
"""Seconds in which requests are counted, and those before, in which driver and task begin."""
FLOWS, MINUTES = 1000, 60 * 24 * 30
DEAR, CHEAP = 0.005 / 1000, 0.0004 / 1000
"""List price of a PUT or LIST, and of a GET or HEAD, in US dollars (S3 Standard, us-east-1)."""
OUR_DAG = f"flow__{NAME.replace('.', '__')}"


def main() -> None:
    """Measure and print the tables; Ctrl-C and SIGTERM end what was started."""
    with _interruptible(), tempfile.TemporaryDirectory(prefix="bench-supervision-") as scratch:
        bench = Bench(Path(scratch), FILES)
        count_requests(bench)
        producer = Producer(Path(bench.settings.data) / "events")
        producer.write(1)
        with running(bench) as service, Generator(producer, every=1.0):
            three = sides(bench)
            for side in three:
                side.await_commit(side.version() + 1)
            memory(service.api)
            restarts(three)


def restarts(three: tuple[Side, Side, Side]) -> None:
    """Kill each side's driver in turn, and print the seconds to the next commit."""
    seconds: dict[str, list[float]] = {side.name: [] for side in three}
    for number in range(ROUNDS):
        for place in range(len(three)):
            side = three[(number + place) % len(three)]
            seconds[side.name].append(_restart(side, [other for other in three if other is not side]))
    ours, bare, stock = (seconds[side.name] for side in three)
    print(f"\n{ROUNDS} rounds in turns; the other two drivers are stopped meanwhile\n{HEADER}")
    print_ratio("kill -9 to the next batch, against a loop", ours, bare, "s", "≤1.3")
    print_ratio("the same, against the stock operator", ours, stock, "s", "–")
    print_ratio("the stock operator against a loop", stock, bare, "s", "–")


def _restart(side: Side, others: list[Side]) -> float:
    for other in others:
        other.send(signal.SIGSTOP)
    try:
        side.await_commit(side.version())
        began = time.time()
        hit = side.send(signal.SIGKILL)
        wait_until(
            lambda: all(started(pid) != since for pid, since in hit) or None, STEP, "the driver is gone", 0.01
        )
        return side.await_commit(side.version()) - began
    finally:
        for other in others:
            other.send(signal.SIGCONT)


def memory(api: AirflowApi) -> None:
    """Print the memory of both supervising task processes."""
    ours, stock = (usage([_task_pid(api, dag)]) for dag in (OUR_DAG, STOCK_DAG))
    print(f"\n{'memory of the task process':<46} {'ours':>10} {'stock':>10} {'MiB':<7} {'beyond':>7}   aim")
    for what, mine, theirs in (("PSS", ours.memory, stock.memory), ("RSS", ours.resident, stock.resident)):
        print(f"{what:<46} {mine:10.1f} {theirs:10.1f} {'':<7} {mine - theirs:+7.1f}   none", flush=True)


def _task_pid(api: AirflowApi, dag: str) -> int:
    def look() -> int | None:
        for run in api.runs(dag, limit=3):
            task = api.tasks(dag, run["dag_run_id"]).get("run", {})
            if task.get("state") == "running":
                return int(task["pid"])
        return None

    return wait_until(look, STEP, f"the task run of {dag} runs")


def count_requests(bench: Bench) -> None:
    """Run the driver's watch and the supervisor's loops, at once, over storages that count; print what they
    asked in a minute after they began.
    """
    bench.declare("dedupe")
    settings = bench.settings
    real = FlowHome(open_storage(settings.state), *NAME.split("."))
    lease = leases.acquire(real, 1, settings.lease_term)
    over = threading.Event()
    counts = {
        name: Counting(open_storage(settings.state))
        for name in ("driver", "submitting task", "attached task")
    }
    homes = {name: FlowHome(storage, real.pipeline, real.flow) for name, storage in counts.items()}
    bodies: dict[str, Callable[[], None]] = {
        "driver": lambda: _drive(bench, homes["driver"], lease, over),
        "submitting task": lambda: _supervise(bench, homes["submitting task"], None, over),
        "attached task": lambda: _supervise(bench, homes["attached task"], lease, over),
    }
    threads = [threading.Thread(target=body) for body in bodies.values()]
    for thread in threads:
        thread.start()
    over.wait(SETTLED)
    for storage in counts.values():
        storage.requests.clear()
    over.wait(MINUTE)
    over.set()
    for thread in threads:
        thread.join()
    leases.leave(real, lease, "stopped")
    interval, timeout = settings.heartbeat_interval, settings.supervisor_timeout
    print(
        f"requests to the store in a minute, heartbeat every {interval:g} s, supervisor timeout {timeout:g} s"
    )
    for name, storage in counts.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in storage.requests.most_common())
        print(f"{name:<46} {storage.requests.total():10,}            {kinds}", flush=True)
    _print_bill(counts["driver"].requests + counts["submitting task"].requests)
    for file in Path(settings.state).glob("events/*/lease/*"):
        file.unlink()


def _print_bill(requests: Counter[str]) -> None:
    """Print what a flow asks a minute, and what S3 bills for it."""
    written = sum(requests[kind] for kind in ("create", "overwrite"))
    dear = written + requests["names"]
    month = FLOWS * MINUTES * (dear * DEAR + (requests.total() - dear) * CHEAP)
    print(f"{'a flow, driver and task':<46} {requests.total():10,}            aim ≤40")
    print(f"{'of these writes, each of two fsyncs on a disk':<46} {written:10,}")
    print(f"{f'S3, {FLOWS:,} flows, a month at list price':<46} {f'${month:,.0f}':>10}", flush=True)


def _drive(bench: Bench, home: FlowHome, lease: leases.Lease, over: threading.Event) -> None:
    """Be a driver's watch over a query that has nothing to do."""
    from streamkeeper_jobs.stream.declaration_watch import Declaration
    from streamkeeper_jobs.stream.watch import Watch

    declaration = Declaration(bench.settings, NAME)
    absence = Absence(home, bench.settings.supervisor_timeout)
    interval, term = bench.settings.heartbeat_interval, bench.settings.lease_term
    with Watch(home, lease, interval, declaration, absence, term=term) as watch:
        watch.tell(phase="running")
        over.wait()


def _supervise(bench: Bench, home: FlowHome, lease: leases.Lease | None, over: threading.Event) -> None:
    """Be the task that supervises: its heart, and its looks at the driver; at one that it submitted it looks
    by the process alone.
    """
    from streamkeeper.supervise.attached import LOOK, Attached
    from streamkeeper.supervise.heart import Heart

    heart = Heart([home], bench.settings.supervisor_timeout, "benchmark", print)
    attached = Attached(home, lease, bench.settings.lease_term) if lease else None
    while not over.is_set():
        heart.beat()
        if attached is None:
            over.wait(LOOK)
        else:
            attached.wait()


def _find_the_rooms() -> None:
    """Let this process import what Airflow and spark-submit have on their paths."""
    sys.path += [str(PROJECT / "plugins"), str(PROJECT / "spark_jobs")]


if __name__ == "__main__":
    enter_environment()
    _find_the_rooms()
    try:
        main()
    except Interrupted:
        sys.exit(130)
