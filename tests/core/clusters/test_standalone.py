"""What a cluster says of its drivers; tests/airflow/flow/test_cluster_mode.py asks a real master."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from streamkeeper.clusters import cluster_drivers
from streamkeeper.clusters.pages import Unbegun
from streamkeeper.drivers import stopping
from streamkeeper.errors import LeaseHeld
from streamkeeper.flows import holds, leases
from streamkeeper.flows.leases import ClusterDriver, Lease, Life, Process
from streamkeeper.storage import to_json
from tests.worlds.clusters.pages import Page, Pages
from tests.worlds.small_world import World

ID = "driver-20261123010203-0007"
ELSEWHERE = Process("another-host", "b", "n", 7, 1)


def driver_of(state: str) -> dict[str, object]:
    return {"id": ID, "state": state, "worker": "w", "cores": 1, "memory": 1024}


class Master(Pages):
    """A master's page that says what it is told to."""

    def __init__(self) -> None:
        self.state, self.asked = "RUNNING", list[str]()
        self.status, self.forgot, self.starts = "ALIVE", False, False
        master = self

        class Told(Page):
            def do_GET(self) -> None:
                over = master.state not in ("RUNNING", "SUBMITTED")
                known = [] if master.forgot else [driver_of(master.state)]
                body = {
                    "status": master.status,
                    "activedrivers": [] if over else known,
                    "completeddrivers": known if over else [],
                    "workers": [],
                }
                self.say(200, b"<!DOCTYPE html>" if master.starts else json.dumps(body).encode())

            def do_POST(self) -> None:
                master.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                master.state = "KILLED"
                self.say(200)

        super().__init__(Told)
        self.driver = ClusterDriver(f"http://{self.place}", ID)


@pytest.fixture
def master() -> Iterator[Master]:
    found = Master()
    yield found
    found.close()


def test_a_master_that_starts_says_nothing_yet(master: Master) -> None:
    """It answers each address by its first page until its pages are there."""
    master.starts = True
    for ask in (cluster_drivers.ended, lambda driver: cluster_drivers.output(driver, 0, 1)):
        with pytest.raises(OSError, match="something else than a JSON object: b'<!DOCTYPE html>'"):
            ask(master.driver)
    assert cluster_drivers.ended_if_known(master.driver) is None
    assert cluster_drivers.unbegun(master.driver) == Unbegun()


@pytest.fixture
def leased(world: World, master: Master) -> Lease:
    """A lease of a driver on another host, which the cluster runs."""
    lease = Lease(1, ELSEWHERE, 1, "2026-11-21T10:00:00+00:00", cluster=master.driver)
    world.home.storage.create(world.home.lease(1), to_json(asdict(lease)))
    found = leases.current(world.home)
    assert found == lease
    return lease


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("RUNNING", False),
        ("SUBMITTED", False),
        ("ERROR", False),
        ("FINISHED", True),
        ("FAILED", True),
        ("KILLED", True),
    ],
)
def test_only_what_the_worker_itself_reported_proves_an_end(
    world: World, master: Master, leased: Lease, state: str, ended: bool
) -> None:
    master.state = state
    assert cluster_drivers.note_end(world.home, leased) is ended
    assert leases.life(world.home, leased) is (Life.LEFT if ended else Life.UNKNOWN)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("SUBMITTED", "a worker with 1 free cores and 1024 MiB"), ("RUNNING", None), ("FAILED", None)],
)
def test_a_driver_that_has_not_begun_waits_for_a_worker(
    master: Master, state: str, expected: str | None
) -> None:
    master.state = state
    assert cluster_drivers.unbegun(master.driver).waits_for == expected


@pytest.mark.parametrize(
    ("state", "expected"), [("RUNNING", None), ("SUBMITTED", None), ("ERROR", "ERROR"), ("FAILED", "FAILED")]
)
def test_a_driver_without_a_lease_is_over_by_the_master_s_word(
    master: Master, state: str, expected: str | None
) -> None:
    master.state = state
    assert cluster_drivers.unbegun(master.driver).over == expected
    master.forgot = True
    assert cluster_drivers.unbegun(master.driver).over == cluster_drivers.GONE
    master.status = "STANDBY"
    assert cluster_drivers.unbegun(master.driver).over is None, "another master knows it"


def test_a_driver_that_said_why_it_left_is_not_talked_over(
    world: World, master: Master, leased: Lease
) -> None:
    leases.leave(world.home, leased, "held")
    master.state = "FAILED"
    assert cluster_drivers.note_end(world.home, leased)
    assert leases.told_leaving(world.home, leased)["why"] == "held"


def test_a_page_that_does_not_answer_proves_nothing(world: World, master: Master, leased: Lease) -> None:
    master.state = "KILLED"
    master.close()
    assert not cluster_drivers.note_end(world.home, leased)


def test_a_held_driver_past_its_deadline_is_ended_by_its_cluster_and_by_no_signal(
    world: World, master: Master, leased: Lease
) -> None:
    holds.put(world.home, holds.person("ada"), "maintenance", "ada")
    said: list[str] = []
    assert stopping.stop(world.home, 0.0, term=60.0, say=said.append).by is stopping.By.TERM
    assert master.asked == [f"id={ID}&terminate=true"]
    assert f"asking {master.driver.page} to end {ID}" in said[0]


def test_a_cluster_that_cannot_be_asked_is_said(world: World, master: Master, leased: Lease) -> None:
    holds.put(world.home, holds.person("ada"), "maintenance", "ada")
    master.close()
    with pytest.raises(LeaseHeld, match=rf"cannot be asked to end {ID}"):
        stopping.stop(world.home, 0.0, term=60.0)


def test_a_driver_knows_itself_by_its_folder_and_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ID).mkdir()
    monkeypatch.chdir(tmp_path / ID)
    assert cluster_drivers.here() is None, "no cluster was named"
    monkeypatch.setenv(cluster_drivers.PAGE_VARIABLE, "http://m:8080")
    assert cluster_drivers.here() == ClusterDriver("http://m:8080", ID)
    monkeypatch.chdir(tmp_path)
    assert cluster_drivers.here() is None
