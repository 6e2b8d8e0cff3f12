"""The auditor on histories that were made up: each kind of violation is found, and what only looks like one
is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from demo.processes import end_process, started
from streamkeeper.delta.log import FENCE
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.storage import open_storage, to_json
from streamkeeper.support.times import now
from tests.chaos.auditor import Auditor
from tests.chaos.findings import Commit, SeenDriver, Sight, judge_epochs, judge_log, judge_sight

FIRST, SECOND = "query-of-generation-1", "query-of-generation-2"


def commit(version: int, *transactions: tuple[str, int], added: int = 1) -> Commit:
    return Commit(version, transactions, added)


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        pytest.param(
            [commit(1, (FIRST, 1)), commit(2, (FIRST, 1))],
            ["batch 1 of generation 1 a second"],
            id="twice",
        ),
        pytest.param(
            [commit(1, (FIRST, 2)), commit(2, (FIRST, 1))],
            ["batch 1 of generation 1 after batch 2"],
            id="out of order",
        ),
        pytest.param(
            [commit(1, (FIRST, FENCE), added=0), commit(2, (FIRST, 1))],
            ["after the generation was fenced"],
            id="after the fence",
        ),
        pytest.param(
            [commit(1, (FIRST, FENCE), added=0), commit(2, (FIRST, FENCE), added=0)],
            ["the fence a second time"],
            id="fenced twice",
        ),
        pytest.param(
            [commit(1, (FIRST, 0)), commit(2)],
            ["added 1 files without a transaction"],
            id="no transaction",
        ),
        pytest.param(
            [commit(1, ("another", 0))],
            ["written by another, which is no generation"],
            id="stranger",
        ),
        pytest.param(
            [commit(1, (FIRST, 3)), commit(2, (FIRST, 3)), commit(3, (FIRST, 2))],
            ["version 2 of the table commits batch 3", "version 3 of the table commits batch 2"],
            id="two of them",
        ),
    ],
)  # fmt: skip
def test_each_violation_in_the_tables_log_is_found_and_said_with_its_version(
    commits: list[Commit], said: list[str]
) -> None:
    found = [one.words for one in judge_log(commits, (FIRST, SECOND))]
    assert len(found) == len(said)
    assert all(part in words for part, words in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param(
            [commit(0, added=0), commit(1, (FIRST, 0)), commit(2, (FIRST, 1))],
            id="a table made before its first batch",
        ),
        pytest.param(
            [commit(2, (FIRST, 5)), commit(1, (FIRST, 2))], id="batches without rows, read in any order"
        ),
        pytest.param(
            [commit(1, (FIRST, 7)), commit(2, (FIRST, FENCE), added=0), commit(3, (SECOND, 0))],
            id="a fenced generation and its next",
        ),
    ],
)
def test_a_log_in_order_is_not_a_violation(commits: list[Commit]) -> None:
    assert judge_log(commits, (FIRST, SECOND)) == []


def driver(
    epoch: int, *alive: int, holder: bool = True, phase: str = "running", left: bool = False
) -> SeenDriver:
    return SeenDriver(epoch, alive, holder and bool(alive), phase, left)


@pytest.mark.parametrize(
    ("drivers", "said"),
    [
        pytest.param(
            [driver(1, 10, 11), driver(2, 20)], ["two live drivers", "holder of epoch 1 lived"], id="both run"
        ),
        pytest.param(
            [driver(1, 10, holder=False), driver(2, 20)],
            ["two live drivers"],
            id="the JVM outlived the Python that has the lease",
        ),
        pytest.param(
            [driver(1, 10, holder=False), driver(2, 20, phase="seeding")],
            ["two live drivers"],
            id="the second seeds a state",
        ),
        pytest.param(
            [driver(1, 10), driver(2, 20, phase="starting")],
            ["holder of epoch 1 lived"],
            id="the second starts on a living one",
        ),
        pytest.param(
            [driver(1, 10, phase="stopping"), driver(2, 20)],
            ["two live drivers", "holder of epoch 1"],
            id="the first still stops",
        ),
    ],
)
def test_two_writers_and_a_lease_taken_from_the_living_are_found(
    drivers: list[SeenDriver], said: list[str]
) -> None:
    found = [one.words for one in judge_sight(Sight(0.0, tuple(drivers)))]
    assert len(found) == len(said)
    assert all(part in words for part, words in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    "drivers",
    [
        pytest.param([driver(1, 10, 11)], id="one driver of two processes"),
        pytest.param([driver(1), driver(2, 20)], id="the first is gone"),
        pytest.param([driver(1, 10, left=True), driver(2, 20)], id="the first left and only ends its JVM"),
        pytest.param(
            [driver(1, 10, holder=False), driver(2, 20, phase="starting")],
            id="a dead one's JVM ends while the next one starts",
        ),
    ],
)
def test_a_handover_in_order_is_not_a_violation(drivers: list[SeenDriver]) -> None:
    assert judge_sight(Sight(0.0, tuple(drivers))) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param((1, 2), (2,), "gone", id="gone"),
        pytest.param((1,), (1, 3), "follow one another", id="skipped"),
    ],
)
def test_epochs_that_are_gone_or_skipped_are_found(
    before: tuple[int, ...], after: tuple[int, ...], said: str
) -> None:
    assert any(said in one.words for one in judge_epochs(before, after))
    assert judge_epochs((1,), (1, 2)) == []


@pytest.fixture
def home(tmp_path: Path) -> FlowHome:
    home = FlowHome(open_storage(str(tmp_path / "state")), "p", "f")
    generations.decide(home, generations.first(home, "fingerprint"))
    return home


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Two living processes, each with a session of its own, as leases name them."""
    made = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        for _ in range(2)
    ]
    yield [replace(Process.current(), pid=one.pid, started=started(one.pid) or 0) for one in made]
    for one in made:
        one.kill()
        one.wait()


def claim(home: FlowHome, epoch: int, process: Process, phase: str) -> None:
    home.storage.create(home.lease(epoch), to_json(asdict(Lease(epoch, process, 1, now()))))
    leases.beat(home, Heartbeat(epoch, 1, phase, 1, now()))


def test_real_processes_that_overlap_are_seen_once_and_kept_after_one_has_gone(
    home: FlowHome, processes: list[Process], tmp_path: Path
) -> None:
    auditor = Auditor(home, tmp_path / "table")
    claim(home, 1, processes[0], "running")
    assert auditor.violations() == []
    claim(home, 2, processes[1], "running")
    assert [one.kind for one in auditor.violations()] == ["two live drivers 1+2", "taken from the living 1"]
    end_process(processes[0].pid, processes[0].started, grace=5)
    assert len(auditor.violations()) == 2
    assert auditor.drivers() == 2


def test_a_driver_that_ended_before_the_next_took_the_lease_is_no_violation(
    home: FlowHome, processes: list[Process], tmp_path: Path
) -> None:
    auditor = Auditor(home, tmp_path / "table")
    claim(home, 1, processes[0], "running")
    assert auditor.violations() == []
    end_process(processes[0].pid, processes[0].started, grace=5)
    claim(home, 2, processes[1], "running")
    assert auditor.violations() == []


def test_a_real_log_is_read_as_it_grows(home: FlowHome, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    auditor = Auditor(home, tmp_path / "table")
    assert auditor.violations() == []
    log.mkdir(parents=True)
    query = query_id("p.f", 1)
    for version in (0, 1):
        actions = [
            {"commitInfo": {}},
            {"txn": {"appId": query, "version": 4}},
            {"add": {"path": "a", "dataChange": True}},
        ]
        (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))
        found = [one.words for one in auditor.violations()]
        assert len(found) == version
    assert found == ["version 1 of the table commits batch 4 of generation 1 a second time"]


def test_an_auditor_that_fails_says_so_instead_of_seeing_nothing(home: FlowHome, tmp_path: Path) -> None:
    home.storage.create(home.lease(1), b"{}")
    with pytest.raises(Exception, match="is not a lease"), Auditor(home, tmp_path / "table") as auditor:
        while auditor._thread.is_alive():
            os.sched_yield()
