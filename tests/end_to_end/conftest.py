"""One real Airflow with one real flow for all end-to-end tests: started once, ended with everything that it
started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.airflow_service import AirflowService
from demo.generator import Generator
from streamkeeper.settings import PROJECT, Settings
from tests.airflow.listeners import Inbox, mail_server, webhook
from tests.end_to_end.browser import Person
from tests.end_to_end.world import TOKEN_SECONDS, World
from tests.events_producer import Producer
from tests.postgres import airflow_database

ORDER = (
    "test_story.py",
    "test_requests.py",
    "test_recoveries.py",
    "test_every_recovery.py",
    "test_supervision.py",
    "test_adoption.py",
    "test_once.py",
    "test_together.py",
)
YEARLY = 'dp.schedule("reset_checkpoint", flow="clean_events", cron="30 5 29 2 *", name="yearly")'
SCHEDULE = "schedule__events__yearly"
"""A recovery by the clock, at a time that hardly ever comes: its DAG is triggered by hand."""
TIMES = {
    "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": str(TOKEN_SECONDS),
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
}
"""Some of Airflow's own times. Cut: a task's token (600 s), and how often it looks for tasks of a scheduler
that is gone (300 s). Stretched, since it took a fifth of all processor time (30 s): how often each DAG file
is parsed unless it is asked for.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell the story first among the tests of this folder: it begins with a flow that never ran. All others
    stay where they are.
    """
    here = Path(__file__).parent
    places = [
        place for place, item in enumerate(items) if item.path.parent == here and item.path.name in ORDER
    ]
    told = sorted((items[place] for place in places), key=lambda item: ORDER.index(item.path.name))
    for place, item in zip(places, told, strict=True):
        items[place] = item


LIVES = pytest.StashKey[ExitStack]()


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A running Airflow, a flow on it, and a generator that writes new events."""
    root = tmp_path_factory.mktemp("world")
    pipelines = root / "pipelines"
    pipelines.mkdir()
    declared = (PROJECT / "tests" / "pipelines" / "events.py").read_text()
    (pipelines / "events.py").write_text(f"{declared}\n\n{YEARLY}\n")
    places = {name: str(root / name.lower()) for name in ("STATE", "WAREHOUSE", "DATA", "PIPELINES")}
    settings = Settings.from_environment(
        {**os.environ, **{f"STREAMKEEPER_{name}": place for name, place in places.items()}}
    )
    producer = Producer(Path(settings.data) / "events")
    producer.write(1)
    with ExitStack() as lives:
        request.config.stash[LIVES] = lives
        mail, hook = lives.enter_context(mail_server()), lives.enter_context(webhook())
        extra = {**TIMES, **_connections(mail, hook), **lives.enter_context(airflow_database())}
        service = lives.enter_context(AirflowService(root / "airflow", settings, extra=extra))
        generator = Generator(producer, every=5)
        generator.start()
        lives.callback(generator.stop)
        yield World(settings, service, generator, mail, hook)


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
