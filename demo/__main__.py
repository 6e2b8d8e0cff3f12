"""The demo: a real Airflow, a real Spark and changes of customers that keep coming, on this machine.

python -m demo          runs until Ctrl-C; break the flow by hand, and bring it back by its form
python -m demo --story  breaks it and brings it back by itself, checks every customer; ends with 0 or 1
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from demo.airflow.api import ApiError
from demo.airflow.service import USER, AirflowService, Ports, ServiceError
from demo.checks import DEFAULT_PORT, NotReady, check_ready
from demo.console import Console
from demo.data.customers import Customers
from demo.data.generator import Generator
from demo.leftovers import end_marked, marked
from demo.lock import MARK, DemoLock, SecondDemo, UnusableHome
from demo.seeing import StoryFailed
from demo.story import prepare, tell
from streamkeeper.errors import StreamkeeperError
from streamkeeper.settings import PROJECT, Settings

HOME = PROJECT / ".demo"
LOOK_SECONDS = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C, or asked the demo to end; no error, so not to be caught as one."""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0, 1 for a failure, 2 where it could not start."""
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="A streaming flow under a real Airflow, on this machine."
    )
    parser.add_argument(
        "--story",
        action="store_true",
        help="break the flow and bring it back without a person, and verify the table",
    )
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="start a Kafka broker and a producer, and the flow that reads them, too",
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"Airflow's port; {DEFAULT_PORT} by default"
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=HOME,
        help="folder of all that the demo writes; .demo in the project by default",
    )
    chosen = parser.parse_args(arguments)
    try:
        with _interruptible(), DemoLock(chosen.home.resolve()) as lock:
            _end_predecessor(lock)
            return _run(
                chosen.home.resolve(),
                lock.owner.mark,
                story=chosen.story,
                kafka=chosen.kafka,
                port=chosen.port,
            )
    except (NotReady, SecondDemo, UnusableHome) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (StreamkeeperError, ServiceError, ApiError, StoryFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted:
        return 130


def _run(home: Path, mark: str, *, story: bool, kafka: bool, port: int) -> int:
    settings = _settings(home)
    if story:
        home, settings = prepare(home, settings)
    check_ready(settings, port)
    print(
        f"Starting Airflow on port {port}, which takes most of a minute on a small machine. Its output:"
        f" {home / 'airflow' / 'airflow.out'}"
    )
    with _ending_all(mark), _orders(home, mark) if kafka else nullcontext(_nothing_to_check) as check:
        return _serve(home, settings, mark, story=story, port=port, check=check)


def _serve(
    home: Path, settings: Settings, mark: str, *, story: bool, port: int, check: Callable[[], None]
) -> int:
    """Run Airflow and the generator of changes.

    :param check: raises what ended anything else that should run.
    """
    service = AirflowService(home / "airflow", settings, Ports.free(port), extra={MARK: mark}, tell=_say)
    generator = Generator(Customers(Path(settings.data) / "customers"))
    with service, generator:
        _say_where(service, settings)
        if story:
            return tell(service.api, settings, generator)
        _say_what_to_do(service, settings)
        _watch(settings, generator.check, check)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _nothing_to_check() -> None:
    """Stand for the checks of what was not asked for."""


@contextmanager
def _orders(home: Path, mark: str) -> Iterator[Callable[[], None]]:
    """Run Kafka and its producer beside the demo, and give their check. Only who asks for it needs Kafka's
    jars and client.
    """
    from demo.data.orders import TOPIC, VARIABLE, Orders
    from tools.kafka_broker import KafkaBroker

    print("Starting a Kafka broker; the first time, its jars are fetched.", flush=True)
    with (
        KafkaBroker(home / "kafka", environment={MARK: mark}) as broker,
        Orders(broker.bootstrap_servers) as orders,
    ):
        os.environ[VARIABLE] = orders.brokers
        print(f"Kafka        {orders.brokers}, topic {TOPIC}")
        yield orders.check


def _settings(home: Path) -> Settings:
    """Return the settings of the environment; below ``home`` where that is not the project's own."""
    settings = Settings.from_environment()
    if home == HOME:
        return settings
    return replace(
        settings, state=str(home / "state"), warehouse=str(home / "warehouse"), data=str(home / "data")
    )


def _watch(settings: Settings, *checks: Callable[[], None]) -> None:
    console = Console(settings)
    try:
        while True:
            console.look()
            for check in checks:
                check()
            time.sleep(LOOK_SECONDS)
    except Interrupted:
        return


def _say_where(service: AirflowService, settings: Settings) -> None:
    print(f"\nAirflow      {service.url}   login {USER} / {service.password}")
    print(f"The changes  {service.url}/dags/flow__customers__customers_incremental_flow")
    print(f"The snapshot {service.url}/dags/flow__customers__customers_snapshot_flow")
    print(f"The table    {settings.table_path('customers')}", flush=True)


def _say_what_to_do(service: AirflowService, settings: Settings) -> None:
    print(f"Break it     remove the line .dropDuplicates(…) from {settings.pipelines / 'customers.py'}")
    print(f"Bring back   {service.url}/dags/reset_checkpoint, button Trigger")
    print("By hand      .venv/bin/streamkeeper flows")
    print("Ctrl-C ends everything that was started here.\n", flush=True)


def _end_predecessor(lock: DemoLock) -> None:
    if lock.predecessor is None:
        return
    print(
        f"The demo of process {lock.predecessor.pid}, since {lock.predecessor.at}, is gone without an end of"
        " its own."
    )
    for process in end_marked(lock.predecessor.mark):
        print(f"  ended what it left: {process}")


@contextmanager
def _interruptible() -> Iterator[None]:
    before = {name: signal.signal(name, _interrupt) for name in SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _ending_all(mark: str) -> Iterator[None]:
    """Say that everything ends, let nothing interrupt that, and look that nothing is left."""
    try:
        yield
    finally:
        remaining = marked(mark)
        for process in remaining:
            print(f"Still there, and ended now: {process}")
        end_marked(mark)
        stayed = marked(mark)
        print(
            (
                "Everything that the demo started has ended."
                if not stayed
                else f"These processes could not be ended: {stayed}"
            ),
            flush=True,
        )


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """End in good order at the first signal; a second one only says that this takes its time."""
    for name in SIGNALS:
        signal.signal(name, _already)
    print(f"\n{signal.Signals(number).name}: ending Airflow, the flows and the generator …", flush=True)
    assert threading.current_thread() is threading.main_thread(), "Python runs signal handlers there"
    raise Interrupted


def _already(_number: int, _frame: FrameType | None) -> None:
    print("Ending already; a flow may take some seconds to end its batch.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
