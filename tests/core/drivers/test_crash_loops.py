"""When failures of a flow's drivers are a crash loop."""

from __future__ import annotations

import pytest

from streamkeeper.checkpoint import CommitEntry, write_commit
from streamkeeper.errors import StorageError
from streamkeeper.watch import crash_loops
from streamkeeper.watch.crash_loops import FAILURES, WINDOW
from tests.worlds.small_world import World


def looping(world: World, times: list[float]) -> list[bool]:
    return [crash_loops.note(world.home, moment).looping for moment in times]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([0, 30, 60, 90, 120], [False] * 4 + [True], id="five in two minutes"),
        pytest.param([0, 600, 1200, 1799, 1800], [False] * 4 + [True], id="five in just a window"),
        pytest.param([0, 600, 1200, 1799, 1801], [False] * 5, id="the first is a window ago"),
        pytest.param(
            [0, 30, 60, 90, 120, 1900],
            [False] * 4 + [True, True],
            id="once a loop it stays one while failures continue",
        ),
        pytest.param(
            [0, 30, 60, 90, 120, 120 + WINDOW + 1],
            [False] * 4 + [True, False],
            id="a window without a failure ends it",
        ),
        pytest.param(
            [250.0 * number for number in range(9)],
            [False] * 4 + [True] * 5,
            id="tries at the cap are a loop too",
        ),
    ],
)
def test_failures_without_a_committed_batch_within_a_window_are_a_loop(
    times: list[float], expected: list[bool], world: World
) -> None:
    assert looping(world, times) == expected


def test_a_committed_batch_ends_the_count(world: World) -> None:
    start = world.processed(1)
    assert looping(world, [0, 1, 2, 3, 4])[-1]
    world.home.storage.overwrite(f"{start.checkpoint}/commits/1", write_commit(CommitEntry(1, 1, 0)))
    assert looping(world, [5, 6, 7, 8]) == [False] * 4
    assert looping(world, [9]) == [True]


def test_a_loop_keeps_its_name_however_many_failures_follow(world: World) -> None:
    names = {crash_loops.note(world.home, moment).occasion for moment in range(FAILURES + 3)}
    assert names == {"no generation begun, since 1970-01-01T00:00:00+00:00"}


def test_a_driver_counts_once_however_many_tries_saw_it_end(world: World) -> None:
    for epoch in range(1, FAILURES):
        seen = [crash_loops.note(world.home, 10.0 * epoch + late, epoch=epoch) for late in (0, 1, 2)]
        assert len(set(seen)) == 1, "two tries that watch it, and a task that is resumed again, judge alike"
        assert (len(seen[-1].times), seen[-1].looping) == (epoch, False)
    assert not crash_loops.note(world.home, 99.0, epoch=1).looping, "who comes late judges an older driver"
    assert crash_loops.note(world.home, 100.0).looping, (
        "one that never had the lease was seen by one try alone"
    )
    assert crash_loops.note(world.home, 101.0, epoch=FAILURES + 1).epoch == FAILURES + 1


def test_a_file_that_lists_no_failures_is_said_with_what_to_do(world: World) -> None:
    world.home.storage.overwrite(world.home.failures, b'{"times": "yesterday"}')
    with pytest.raises(StorageError, match=r"failures is not a list of failures.*Remove it"):
        crash_loops.note(world.home)
