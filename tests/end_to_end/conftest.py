"""One real Airflow for all end-to-end tests, started once, and a flow of its own for each file; ended with
everything that they started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from demo.airflow.service import USER, AirflowService
from demo.data.generator import Generator
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from tests.airflow.listeners import Inbox, mail_server, webhook
from tests.end_to_end.world import ENDING, TOKEN_SECONDS, World
from tests.events_producer import Producer
from tests.postgres import airflow_database
from tests.worlds.browser import Person
from tools.waiting import wait_until

SCHEDULED = 'dp.schedule("reset_checkpoint", flow="clean_events", cron="30 5 29 2 *", name="yearly")'
"""A recovery by the clock, at a time that hardly ever comes: its DAG is triggered by hand."""
TESTER = holds.person("tester")
TIMES = {
    "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": str(TOKEN_SECONDS),
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
}
"""Some of Airflow's own times. Cut: a task's token (600 s), and how often it looks for tasks of a scheduler
that is gone (300 s). Stretched, since it took a fifth of all processor time (30 s): how often each DAG file
is parsed unless it is asked for.
"""


VIEWER = "viewer"
"""A user who may look at everything, and start nothing."""
ROLES = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin,{VIEWER}:viewer"}
LIVES = pytest.StashKey[ExitStack]()


def declared(pipeline: str) -> str:
    """Give the pipeline of the events under another name, with a table and a folder of its own."""
    text = (PROJECT / "tests" / "pipelines" / "events.py").read_text()
    return f"{text}\n\n{SCHEDULED}\n".replace('"events"', f'"{pipeline}"').replace(
        "{data}/events", f"{{data}}/{pipeline}"
    )


@pytest.fixture(scope="session")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A running Airflow for the tests of all files."""
    lives = ExitStack()
    request.config.stash[LIVES] = lives
    return start_world(tmp_path_factory.mktemp("world"), lives)


def start_world(root: Path, lives: ExitStack, **more: str) -> World:
    """Start an Airflow with a flow that rests: a file of DAGs that has none is not parsed again when it is
    asked for.

    :param more: further settings of Streamkeeper, by name.
    """
    (root / "pipelines").mkdir()
    places = {name: str(root / name.lower()) for name in ("STATE", "WAREHOUSE", "DATA", "PIPELINES")}
    variables = {f"STREAMKEEPER_{name}": text for name, text in {**places, **more}.items()}
    settings = Settings.from_environment({**os.environ, **variables})
    (root / "pipelines" / "resting.py").write_text(declared("resting"))
    holds.put(
        FlowHome(open_storage(settings.state), "resting", "clean_events"),
        TESTER,
        "others have the machine",
        "tester",
    )
    mail, hook = lives.enter_context(mail_server()), lives.enter_context(webhook())
    extra = {**TIMES, **ROLES, **_connections(mail, hook), **lives.enter_context(airflow_database())}
    service = lives.enter_context(AirflowService(root / "airflow", settings, extra=extra))
    return World(settings, service, Generator(Producer(Path(settings.data) / "resting")), mail, hook)


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, airflow: World) -> Iterator[World]:
    """The running Airflow, and of a file that has a ``NAME`` a flow of its own that new events arrive for."""
    name = getattr(request.module, "NAME", None)
    if name is None:
        yield airflow
        return
    producer = Producer(Path(airflow.settings.data) / name)
    producer.write(1)
    made = replace(airflow, pipeline=name, generator=Generator(producer, every=5))
    made.declare(name, declared(name))
    made.generator.start()
    made.await_offered()
    yield made
    made.generator.stop()
    holds.put(made.home, TESTER, "the next tests have the machine", "tester")
    wait_until(lambda: made.look().state != "running" or None, ENDING, "its driver has ended")
    made.withdraw(name)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End all of it with the last test of this folder: what comes next in the same process must not share the
    machine with it.
    """
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        item.config.stash.get(LIVES, ExitStack()).close()


def _connections(mail: Inbox, hook: Inbox) -> dict[str, str]:
    """Give the connections of Airflow's own notifiers to two servers."""
    plain = {"disable_ssl": True, "disable_tls": True, "timeout": 10, "retry_limit": 1}
    return {
        "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(
            {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": plain}
        ),
        "AIRFLOW_CONN_CHAT": json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": hook.port}),
    }


@pytest.fixture
def person(world: World, tmp_path: Path) -> Iterator[Person]:
    """Somebody at Airflow's pages."""
    somebody = Person(world.service, tmp_path)
    yield somebody
    somebody.close()
