"""Stopping a held flow's driver: from how it takes the hold to how it ends. The drivers are real processes
with real leases.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from streamkeeper.drivers import stopping
from streamkeeper.drivers.stopping import By, Stop
from streamkeeper.drivers.submit import JOB
from streamkeeper.errors import LeaseHeld, StreamkeeperError
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat, Lease, Process, process_started
from streamkeeper.storage import open_storage, to_json

HERE = Process.current()
READY = "print('ready', flush=True); time.sleep(600)"
SCRIPTS = {
    "polite": f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {READY}",
    "deaf": f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}",
}


@dataclass
class Drivers:
    """Starts processes that stand for drivers, each in a session of its own, and gives them leases."""

    home: FlowHome
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, script: str, job: str = str(JOB)) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPTS[script], job]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def lease(self, process: Process, home: FlowHome | None = None) -> Lease:
        lease = Lease(1, process, 1, "2026-11-21T10:00:00+00:00")
        place = home or self.home
        assert place.storage.create(place.lease(1), to_json(asdict(lease)))
        return lease

    def running(
        self, script: str, home: FlowHome | None = None, job: str = str(JOB)
    ) -> subprocess.Popen[str]:
        process = self.start(script, job)
        started = process_started(process.pid)
        assert started is not None
        self.lease(replace(HERE, pid=process.pid, started=started), home)
        return process


def home_of(tmp_path: Path, flow: str) -> FlowHome:
    return FlowHome(open_storage(str(tmp_path)), "p", flow)


def hold(home: FlowHome) -> None:
    holds.put(home, holds.person("ada"), "a look", "ada")


@pytest.fixture
def home(tmp_path: Path) -> FlowHome:
    found = home_of(tmp_path, "f")
    hold(found)
    return found


@pytest.fixture
def drivers(home: FlowHome) -> Iterator[Drivers]:
    made = Drivers(home)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_flow_that_never_ran_is_stopped_at_once(home: FlowHome) -> None:
    assert stopping.stop(home, deadline=0) == Stop("p.f", By.ABSENCE, None)


def test_a_driver_that_left_is_no_driver(home: FlowHome, drivers: Drivers) -> None:
    leases.leave(home, drivers.lease(HERE), "stopped")
    assert stopping.stop(home, deadline=0) == Stop("p.f", By.ABSENCE, 1)


def test_a_driver_that_leaves_in_time_gets_no_signal(home: FlowHome, drivers: Drivers) -> None:
    process = drivers.running("polite")
    lease = leases.current(home)
    assert lease is not None
    said: list[str] = []

    def leave(seconds: float) -> None:
        leases.leave(home, lease, "held")

    assert stopping.stop(home, deadline=30, say=said.append, sleep=leave) == Stop("p.f", By.HOLD, 1)
    assert said == []
    assert process.poll() is None


@pytest.mark.parametrize(
    ("script", "end", "signals"),
    [
        pytest.param("polite", (By.TERM, 0), ["SIGTERM"], id="one that heeds SIGTERM"),
        pytest.param("deaf", (By.KILL, -signal.SIGKILL), ["SIGTERM", "SIGKILL"], id="one that does not"),
    ],
)
def test_a_driver_beyond_the_deadline_is_ended(
    script: str, end: tuple[By, int], signals: list[str], home: FlowHome, drivers: Drivers
) -> None:
    by, code = end
    process = drivers.running(script)
    said: list[str] = []
    assert stopping.stop(
        home, deadline=0.2, kill_after=5 if script == "polite" else 0.5, say=said.append
    ) == Stop("p.f", by, 1)
    assert process.wait(timeout=10) == code
    assert [words.rsplit(" sending it ", 1)[1] for words in said] == [f"{name}." for name in signals]
    assert "pid" in said[0]


def test_a_killed_driver_takes_its_process_group_along(
    home: FlowHome, drivers: Drivers, tmp_path: Path
) -> None:
    child = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SCRIPTS['deaf']!r}]);"
        f" {SCRIPTS['deaf']}"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", child, str(JOB)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    drivers.started.append(parent)
    assert parent.stdout is not None
    assert [parent.stdout.readline(), parent.stdout.readline()] == ["ready\n"] * 2
    started = process_started(parent.pid)
    assert started is not None
    drivers.lease(replace(HERE, pid=parent.pid, started=started))
    assert stopping.stop(home, deadline=0, kill_after=0).by is By.KILL
    assert parent.stdout.read() == "", "the child holds the pipe open while it lives"


def test_a_pid_that_another_process_has_now_is_never_signalled(home: FlowHome, drivers: Drivers) -> None:
    stranger = drivers.start("deaf")
    drivers.lease(replace(HERE, pid=stranger.pid, started=1))
    assert stopping.stop(home, deadline=0, kill_after=0).by is By.ABSENCE
    assert stranger.poll() is None


def test_a_pid_that_is_given_to_another_process_between_look_and_signal_is_not_signalled(
    home: FlowHome, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = drivers.running("deaf")
    monkeypatch.setattr(stopping, "process_started", lambda pid: 1)
    said: list[str] = []
    with pytest.raises(LeaseHeld, match="is still there"):
        monkeypatch.setattr(stopping, "DYING", 0.0)
        stopping.stop(home, deadline=0, kill_after=0, say=said.append)
    assert process.poll() is None
    assert said == []


def test_a_driver_on_another_host_is_left_alone_and_its_host_is_named(
    home: FlowHome, drivers: Drivers
) -> None:
    process = drivers.start("deaf")
    drivers.lease(replace(HERE, host="worker-7", boot_id="another", pid=process.pid))
    beats = iter(range(1000))

    def beat(seconds: float) -> None:
        leases.beat(home, Heartbeat(1, next(beats), "running", 1, "then"))

    with pytest.raises(
        LeaseHeld,
        match=r"on worker-7.*this process cannot see it.*on worker-7.*streamkeeper hold p\.f --deadline 0",
    ):
        stopping.stop(home, deadline=0, sleep=beat)
    assert process.poll() is None
    assert home.owners() == ["person-ada"]


def test_a_driver_on_another_host_whose_heart_stopped_is_gone_after_the_term(
    home: FlowHome, drivers: Drivers
) -> None:
    drivers.lease(replace(HERE, host="worker-7", boot_id="another"))
    assert stopping.stop(home, deadline=30, term=0.3) == Stop("p.f", By.HOLD, 1)


def test_a_process_that_is_no_driver_is_not_signalled_whatever_a_lease_says(
    home: FlowHome, drivers: Drivers
) -> None:
    process = drivers.running("polite", job="another program")
    with pytest.raises(LeaseHeld, match="runs no job of Streamkeeper"):
        stopping.stop(home, deadline=0, kill_after=0)
    assert process.poll() is None


def test_without_a_deadline_nobody_is_signalled(home: FlowHome, drivers: Drivers) -> None:
    process = drivers.running("polite")
    lease = leases.current(home)
    assert lease is not None
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            leases.leave(home, lease, "held")

    assert stopping.stop(home, deadline=None, monotonic=lambda: 1e9 * len(naps), sleep=nap).by is By.HOLD
    assert process.poll() is None


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_flow_that_nothing_holds_is_not_stopped(when: str, home: FlowHome, drivers: Drivers) -> None:
    process = drivers.running("polite")
    release: Callable[[float], None] = lambda seconds: holds.release(home, holds.person("ada")) and None  # noqa: E731
    if when == "before":
        release(0)
    with pytest.raises(StreamkeeperError, match=r"it is not held.*streamkeeper hold p\.f"):
        stopping.stop(
            home, deadline=0.1, sleep=release, monotonic=iter([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).__next__
        )
    assert process.poll() is None


def test_of_several_flows_each_is_stopped_and_each_that_is_not_is_named(
    tmp_path: Path, home: FlowHome, drivers: Drivers
) -> None:
    second, third = home_of(tmp_path, "second"), home_of(tmp_path, "third")
    for other in (second, third):
        hold(other)
    polite = drivers.running("polite")
    drivers.lease(replace(HERE, host="worker-7", boot_id="another"), second)
    with pytest.raises(
        StreamkeeperError, match=r"Not every flow was stopped:\n- The driver of p\.second"
    ) as raised:
        stopping.stop_all([home, second, third], deadline=0.2)
    assert "p.third" not in str(raised.value)
    assert polite.wait(timeout=10) == 0
    assert [stop.by for stop in stopping.stop_all([home, third], deadline=0)] == [By.ABSENCE, By.ABSENCE]
