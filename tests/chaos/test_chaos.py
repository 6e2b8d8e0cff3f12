"""Chaos, shortly and for real: a driver, a task, a worker and a scheduler die under a running flow; on a
cluster, a driver and a Celery worker die and S3 is cut off under two. ``make chaos`` goes on for longer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from demo.leftovers import marked
from tests.chaos.__main__ import HEADER, line
from tests.chaos.arena import Arena, arena
from tests.chaos.choosing import Blow, Moment, Round, Victim
from tests.chaos.cluster import cluster
from tests.chaos.rounds import play

pytestmark = pytest.mark.long

SEED = 7
MARK = uuid.uuid4().hex


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("chaos") / "arena", MARK, SEED) as place:
        yield place
    assert marked(MARK) == [], "nothing of it is left"


@pytest.fixture(scope="module")
def on_a_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with cluster(tmp_path_factory.mktemp("chaos") / "cluster", mark := uuid.uuid4().hex, SEED) as place:
        yield place
        assert [flow.auditor.violations() for flow in place.flows] == [[], []]
    assert marked(mark) == [], "nothing of it is left"


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(Round(0, Victim.TASK, Blow.KILL, Moment.COMMITTED, 0.3), id="a task process"),
        pytest.param(Round(1, Victim.DRIVER, Blow.KILL, Moment.IN_FLIGHT, 0.1), id="a driver in mid batch"),
        pytest.param(Round(2, Victim.WORKER, Blow.KILL, Moment.ARRIVED, 0.5), id="a worker"),
        pytest.param(Round(3, Victim.SCHEDULER, Blow.KILL, Moment.SINK_FIRST, 0.0), id="a scheduler"),
        pytest.param(
            Round(4, Victim.FILE, Blow.HALF, Moment.IN_FLIGHT, 0.2, 12.0), id="half a pipeline file"
        ),
    ],
)
def test_nothing_is_lost_or_doubled_and_one_driver_writes_whatever_dies(chosen: Round, place: Arena) -> None:
    assert_exact(place, chosen)


def test_the_auditor_looked_all_the_while(place: Arena) -> None:
    assert place.flows[0].auditor.violations() == []
    assert place.flows[0].auditor.looks > 100


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(
            Round(0, Victim.CELERY, Blow.KILL, Moment.COMMITTED, 0.3), id="a Celery worker with its tasks"
        ),
        pytest.param(
            Round(1, Victim.DRIVER, Blow.KILL, Moment.IN_FLIGHT, 0.1, flow=1), id="a driver in mid batch"
        ),
        pytest.param(
            Round(2, Victim.S3, Blow.CUT, Moment.SINK_FIRST, 0.0, 12.0), id="the way to S3 for 12 s"
        ),
    ],
)
def test_nothing_is_lost_or_doubled_on_a_cluster(chosen: Round, on_a_cluster: Arena) -> None:
    assert_exact(on_a_cluster, chosen)


def assert_exact(place: Arena, chosen: Round) -> None:
    result = play(place, chosen)
    print(f"{HEADER}\n{line(result)}")
    assert result.wrong == ()
    assert result.rows > 0
    assert not result.replaced, "who struck only those that watch it struck no driver"
