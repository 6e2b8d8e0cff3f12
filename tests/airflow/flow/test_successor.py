"""A changed declaration beside the driver that runs; end to end in tests/end_to_end/test_changes.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from streamkeeper_airflow.flow import drivers
from streamkeeper_airflow.flow import submit as submitting
from streamkeeper_airflow.flow.drivers import InCluster, Submitted
from streamkeeper_airflow.flow.successor import Successor
from streamkeeper_airflow.flow.supervise import FlowOperator

from streamkeeper.clusters import cluster_drivers
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import Start
from streamkeeper.flows.leases import ClusterDriver, Heartbeat, Process
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.settings import Settings
from streamkeeper.supervise import attached
from streamkeeper.support.times import now
from streamkeeper.trial import change, last_run
from streamkeeper.trial.change import ChangeState
from tests.airflow.conftest import a_try, elsewhere, lease

FLOW = "first.first_flow"
ID = "driver-20261123010203-0007"


@pytest.fixture
def flow(project: Path) -> Flow:
    """The flow as it is declared now, whose changes are tried."""
    file = project / "pipelines" / "first.py"
    file.write_text(file.read_text().replace('sources=["raw"]', 'sources=["raw"], on_change="try"'))
    return declared()


@pytest.fixture
def running(flow: Flow, home: FlowHome) -> FlowHome:
    """The flow's state, while a driver runs an earlier declaration of it."""
    generations.decide(home, generations.first(home, "earlier"))
    generations.begin(home, Start(1, home.checkpoint(1, 1), None, {}, {}, (), None, 1, now()))
    last_run.keep(home, 1, replace(last_run.record_of(flow, (), {"first.py": ""}), fingerprint="earlier"))
    lease(home, Process.current())
    leases.beat(home, Heartbeat(1, 1, "running", 1, now()))
    return home


def declared() -> Flow:
    return read_manifest(Settings.from_environment()).find(FLOW)


def seen(start: Callable[[], Submitted], monotonic: Callable[[], float] = float) -> Successor:
    settings = Settings.from_environment()
    return Successor(settings, open_home(settings, FLOW), start, lambda _: None, monotonic)


def test_a_trial_that_cannot_be_started_leaves_the_driver_running_and_is_started_later(
    running: FlowHome, caplog: pytest.LogCaptureFixture
) -> None:
    clock, started = [0.0], list[float]()

    def start() -> Submitted:
        started.append(clock[0])
        raise AirflowFailException("There is no connection 'streamkeeper_spark'.")

    looking = seen(start, lambda: clock[0])
    for moment in (0.0, 5.0, 16.0, 32.0, 48.0, 64.0):
        clock[0] = moment
        looking.look()
    assert started == [0.0, 16.0, 32.0, 48.0, 64.0]
    assert "is tried again later: There is no connection" in caplog.text
    assert change.read(running, declared().fingerprint) is None, "what nobody could try is not refused"


def test_a_flow_that_shares_a_driver_now_is_not_tried_and_its_driver_ends(
    running: FlowHome, project: Path
) -> None:
    file = project / "pipelines" / "first.py"
    imported = "from streamkeeper import pipelines as dp\n"
    shared = f"{imported}dp.configure_pipeline(shared_driver=True)\n"
    file.write_text(file.read_text().replace(imported, shared).replace(', on_change="try"', ""))
    looking = seen(lambda: pytest.fail("it is not tried"))
    looking.look()
    looking.look()
    made = change.read(running, declared().fingerprint)
    assert made is not None
    assert made.state is ChangeState.READY, "its driver waits for a trial no longer"
    assert "share a driver now" in made.in_words()


def test_beside_a_driver_of_the_same_try_a_trial_is_found_by_its_own_lease(
    flow: Flow, home: FlowHome, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_environment()
    given = {**os.environ, cluster_drivers.PAGE_VARIABLE: "http://page"}
    monkeypatch.setattr(submitting, "prepare", lambda *_: ([sys.executable, "-c", ""], given))
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(project / "logs"))
    operator = FlowOperator(task_id="run", flow=FLOW)
    lease(home, elsewhere())
    trial = operator._submit(settings, [home], a_try(), take_over=True)
    assert isinstance(trial, InCluster)
    assert trial._find() is None, "the driver that runs is none that it submitted"
    lease(home, elsewhere(), epoch=2)
    assert trial._find() is not None


def test_a_trial_that_a_cluster_runs_is_ended_by_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[ClusterDriver]()
    monkeypatch.setattr(drivers.cluster_drivers, "end", ended.append)
    monkeypatch.setattr(attached, "LOOK", 0.1)
    said = [sys.executable, "-c", f"print('Submitted {ID}')"]
    trial = InCluster(
        Submitted(said, dict(os.environ), tmp_path / "driver.log"), "http://page", lambda: None, print
    )
    while trial.cluster is None:
        assert trial.wait() is None
    trial.end()
    assert ended == [ClusterDriver("http://page", ID)]
