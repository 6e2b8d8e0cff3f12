"""Drivers as their supervisor sees them: real processes in place of Spark, real leases in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamkeeper_airflow.flow import drivers
from streamkeeper_airflow.flow.drivers import Driver, InCluster, Submitted

from streamkeeper.clusters.pages import Unbegun
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.supervise import attached
from streamkeeper.supervise.attached import Attached, Ending, find
from streamkeeper.support.times import now
from tests.airflow.conftest import elsewhere, lease, process_of

FOREVER = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]


@pytest.fixture
def submitted(home: FlowHome, tmp_path: Path) -> Iterator[Submitted]:
    driver = Submitted(FOREVER, dict(os.environ), tmp_path / "logs" / "driver.log")
    yield driver
    if driver.wait() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def end_of(driver: Driver) -> Ending:
    for _ in range(20):
        if ending := driver.wait():
            return ending
    raise TimeoutError("the driver did not end")


def test_a_driver_lives_in_a_session_of_its_own_with_a_file_for_its_output_and_no_input(
    submitted: Submitted,
) -> None:
    assert os.getsid(submitted.pid) == submitted.pid != os.getsid(0)
    links = {number: str(Path(f"/proc/{submitted.pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert links == {0: "/dev/null", 1: str(submitted.log), 2: str(submitted.log)}


def test_a_driver_outlives_the_process_that_submitted_it(home: FlowHome, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    submit = (
        "import os, signal, sys; from pathlib import Path; from streamkeeper_airflow.flow.drivers import"
        f" Submitted; Submitted({FOREVER!r}, dict(os.environ), Path({str(log)!r})); os.killpg(0,"
        " signal.SIGKILL)"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", submit],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        check=False,
        stdin=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL
    process = json.loads(log.with_name("driver.log.pid").read_text())
    assert drivers.process_started(process["pid"]) == process["started"]
    os.killpg(process["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(f"exit({code.value})", f"exit code {code.value}", id=code.name)
        for code in (Outcome.STOPPED, Outcome.PARKED)
    ]
    + [
        pytest.param(
            "import os; os.kill(os.getpid(), 9)",
            "ended by SIGKILL (killed from outside; if by the kernel or the container for memory, give it"
            " more than driver_memory, or declare less)",
            id="killed",
        )
    ],
)
def test_the_ending_of_a_submitted_driver_is_its_exit_code(
    code: str, said: str, home: FlowHome, tmp_path: Path
) -> None:
    driver = Submitted([sys.executable, "-c", code], dict(os.environ), tmp_path / "driver.log")
    assert end_of(driver).description == said
    assert not (tmp_path / "driver.log.pid").exists()


def test_a_living_driver_is_found_and_attached_to_with_its_log(home: FlowHome, submitted: Submitted) -> None:
    lease(home, process_of(submitted.pid), log=str(submitted.log))
    [found] = find([home], term=60)
    assert found.log == submitted.log
    assert found.wait() is None
    os.killpg(submitted.pid, signal.SIGTERM)
    assert end_of(submitted).description == "ended by SIGTERM"
    assert end_of(found) == Ending(Outcome.FAILED, "it ended without a reason")


@pytest.mark.parametrize(
    ("parked", "left", "ending"),
    [
        pytest.param(False, None, Ending(Outcome.FAILED, "it ended without a reason"), id="killed"),
        pytest.param(False, "stopped", Ending(Outcome.STOPPED, "it ended normally"), id="stopped"),
        pytest.param(False, "asked to", Ending(Outcome.STOPPED, "it ended normally"), id="in other words"),
        pytest.param(False, "failed", Ending(Outcome.FAILED, "it left a note: failed"), id="failed"),
        pytest.param(
            False,
            "retry_declared",
            Ending(Outcome.RETRY_DECLARED, "it left a note: retry_declared"),
            id="retried",
        ),
        pytest.param(True, "parked", Ending(Outcome.PARKED, "the flow is parked"), id="parked"),
    ],
)
def test_the_ending_of_an_attached_driver_is_told_from_what_it_left(
    parked: bool, left: str | None, ending: Ending, home: FlowHome
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held = lease(home, process_of(gone.pid))
    gone.communicate(b"\n")
    if parked:
        holds.put(home, holds.PARK, "broken", "driver")
    if left:
        leases.leave(home, held, left)
    assert find([home], term=60) == []
    assert end_of(Attached(home, held, term=60)) == ending


def test_a_driver_on_another_host_is_alive_while_its_heart_beats_and_gone_after_the_term(
    home: FlowHome,
) -> None:
    lease(home, elsewhere())
    leases.beat(home, Heartbeat(1, 1, "running", 1, now()))
    count = iter(range(2, 1000))
    [found] = find([home], 60, lambda: leases.beat(home, Heartbeat(1, next(count), "running", 1, now())))
    assert found.beats
    assert find([home], term=1.5) == []


def test_nothing_is_found_where_there_never_was_a_driver(home: FlowHome) -> None:
    assert find([home], term=1) == []


def test_what_a_driver_waits_for_that_its_cluster_has_not_begun_is_told_whenever_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, "a node (no memory)", "a node (no memory)", "a node (no image)", None])
    states = iter([None] * 4 + ["ERROR"])
    said_of_it = (Unbegun(*each) for each in zip(states, answers, strict=True))
    monkeypatch.setattr(attached, "LOOK", 0.1)
    monkeypatch.setattr(drivers.cluster_drivers, "unbegun", lambda _: next(said_of_it))
    said = [sys.executable, "-c", "print('Submitted driver-20261123010203-0007')"]
    submitted, told = Submitted(said, dict(os.environ), tmp_path / "driver.log"), list[str]()
    ending = end_of(InCluster(submitted, "http://page", lambda: None, told.append))
    assert ending.description == "driver-20261123010203-0007 is ERROR, and had not begun; see http://page"
    assert told == [
        f"driver-20261123010203-0007 waits for a node ({what})." for what in ("no memory", "no image")
    ]
