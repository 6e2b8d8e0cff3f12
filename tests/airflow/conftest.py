"""A quiet Airflow configuration for tests that only parse: a database in a temporary folder, the project's
plugins on the path.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from streamkeeper.declare.model import Notifier
from streamkeeper.drivers import submit
from streamkeeper.flows.files import FlowHome, open_home, storage_now
from streamkeeper.flows.leases import Lease, Process, process_started
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import to_json
from streamkeeper.support.times import now
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.listeners import Inbox, webhook
from tests.recorder import Recorder, lay_jars

if TYPE_CHECKING:
    from airflow.sdk import Context

# Airflow reads these when it is first imported, so they are set when this file is, and not in a fixture.
_HOME = tempfile.TemporaryDirectory(prefix="streamkeeper-airflow-")
os.environ |= {
    "AIRFLOW_HOME": _HOME.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
    "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "STREAMKEEPER_DAG_PREFIX": "",
}
sys.path.insert(0, str(PROJECT / "plugins"))

PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/raw", schema="id INT")
dp.create_streaming_table("%(name)s_clean")

@dp.append_flow(name="%(name)s_flow", target="%(name)s_clean", sources=["raw"])
def flow(raw):
    return raw
"""


def lay_out(root: Path, patch: pytest.MonkeyPatch, pipelines: Iterable[str] = ("first", "second")) -> Path:
    """Let the settings of the environment point to a project folder with some pipelines, and return it."""
    for name in ("pipelines", "data"):
        (root / name).mkdir()
    for name in pipelines:
        (root / "pipelines" / f"{name}.py").write_text(PIPELINE % {"name": name})
    for name in ("pipelines", "state", "warehouse", "data", "jars"):
        patch.setenv(f"STREAMKEEPER_{name.upper()}", str(root / name))
    lay_jars(root / "jars")
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with two pipelines, ``first`` and ``second``."""
    return lay_out(tmp_path, monkeypatch)


def configure(project: Path, given: str) -> Settings:
    """Let the pipeline ``first`` declare this for all its flows."""
    text = f"{PIPELINE % {'name': 'first'}}\ndp.configure_pipeline({given})\n"
    (project / "pipelines" / "first.py").write_text(text)
    return Settings.from_environment()


def notifiers_of(settings: Settings) -> tuple[Notifier, ...]:
    """Return what the pipeline ``first`` declares."""
    return next(
        pipeline.notifiers for pipeline in read_manifest(settings).pipelines if pipeline.name == "first"
    )


def alert(
    settings: Settings, kind: AlertKind, flow: str, text: str, occasion: str, *, link: str | None = None
) -> bool:
    """Record an alert as a task does and send it as the monitor does; return whether a notifier got it."""
    from streamkeeper_airflow.operate import notify

    if not notify.record_alert(settings, kind, flow, text, occasion, link=link):
        return False
    home = open_home(settings, flow)
    [pending] = [
        one for one in alerts.pending(home) if (one.alert.kind, one.alert.occasion) == (kind, occasion)
    ]
    return notify.deliver(home, pending, notifiers_of(settings), storage_now(home.storage))


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    """A server to which the connection ``chat`` leads."""
    with webhook() as inbox:
        connection = {"conn_type": "http", "host": "127.0.0.1", "port": inbox.port}
        monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
        yield inbox


@pytest.fixture
def home(project: Path) -> FlowHome:
    """The state of the flow ``first.first_flow``."""
    return open_home(Settings.from_environment(), "first.first_flow")


def a_try(number: int = 1, dag_id: str = "flow__first__first_flow") -> Context:
    """Make what the task of a flow reads of its context."""
    ti = SimpleNamespace(dag_id=dag_id, run_id="now", task_id="run", try_number=number)
    return cast("Context", {"ti": ti, "dag_run": ti})


def lease(home: FlowHome, process: Process, epoch: int = 1, log: str | None = None) -> Lease:
    """Let a process have a flow's lease."""
    made = Lease(epoch, process, 1, now(), log=log)
    home.storage.create(home.lease(epoch), to_json(asdict(made)))
    return made


def process_of(pid: int) -> Process:
    """Return a living process of this host as leases name it."""
    return replace(Process.current(), pid=pid, started=process_started(pid) or 0)


def elsewhere() -> Process:
    """Return a process of another host."""
    return replace(Process.current(), boot_id="of another host")


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A program in place of ``spark-submit``."""
    made = Recorder(tmp_path / "spark-submit")
    monkeypatch.setattr(submit, "spark_submit", lambda: str(made.program))
    return made
