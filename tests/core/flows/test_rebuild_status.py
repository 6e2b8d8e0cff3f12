"""A state that is rebuilt step by step is progress to who waits and who watches, and no longer when the steps
end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import storage_now
from streamkeeper.flows.generations import Start
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.observe import status
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import to_json
from streamkeeper.watch import progress
from streamkeeper.watch.progress import State
from tests.worlds.recover.recoveries import FLOW, approve, carry_out, plan_reset
from tests.worlds.small_world import World


def beat(world: World, step: int, phase: str = status.REBUILDING, triggers: int = 0) -> None:
    told = {"rebuild": {"step": step, "of": 4, "rows": 10 * step, "epoch": 1}}
    leases.beat(world.home, Heartbeat(1, step, phase, 2, "then", triggers=triggers, details=told))


@pytest.fixture
def reset(world: World) -> World:
    """A flow that stands and has input, whose reset was decided."""
    world.processed(2)
    world.add_files(1)
    plan = approve(world, plan_reset(world))
    carry_out(world, *plan.steps[:-1])
    lease = Lease(1, Process.current(), 2, "2026-11-21T10:00:00+00:00")
    world.home.storage.create(world.home.lease(1), to_json(asdict(lease)))
    return world


def test_how_far_a_rebuild_is_stands_in_the_heartbeat(reset: World) -> None:
    assert status.rebuild_progress(reset.home) is None
    beat(reset, 1)
    assert status.rebuild_progress(reset.home) == "state of generation 2 rebuilt by 1 of 4 steps, 10 rows"
    assert status.rebuild_progress(reset.home, first=3) is None
    assert "rebuilt by 1 of 4 steps" in status.look(reset.home.storage, reset.flow).detail
    beat(reset, 4, phase="running")
    assert status.rebuild_progress(reset.home) is None


def test_a_rebuild_that_goes_on_alarms_nobody_and_one_that_stands_still_does(reset: World) -> None:
    now = storage_now(reset.home.storage)

    def state(seconds: float) -> State:
        return progress.look(reset.home, reset.flow, now + seconds).state

    found = []
    for step in range(4):
        beat(reset, step)
        found.append(state(3000.0 * step))
    assert found == [State.NEW, State.MOVED_ON, State.MOVED_ON, State.MOVED_ON]
    assert [state(at) for at in (9060, 9120, 12000)] == [State.WAITING, State.WAITING, State.NO_PROGRESS]


class FakeTime:
    """A clock that goes on by a good part of what is allowed at each wait, and lets something happen."""

    def __init__(self, happens: Callable[[int], None]) -> None:
        self._happens, self.waits = happens, 0

    def monotonic(self) -> float:
        return self.waits * 0.7 * shared_steps.PROGRESS_SECONDS

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.waits += 1
        self._happens(self.waits)


def test_a_recovery_waits_on_while_steps_are_done(reset: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def happens(waits: int) -> None:
        if waits <= 4:
            beat(reset, waits)
        else:
            generations.begin(
                reset.home,
                Start(2, reset.home.checkpoint(2, 1), 0, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00"),
            )
            beat(reset, 4, phase="running", triggers=1)

    clock = FakeTime(happens)
    monkeypatch.setattr(shared_steps, "time", clock)
    assert carry_out(reset, "verify_progress")["flows"][FLOW]["triggers"] == 1
    assert clock.waits == 5


def test_a_recovery_does_not_wait_for_a_rebuild_that_stands_still(
    reset: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeTime(lambda _: beat(reset, 1))
    monkeypatch.setattr(shared_steps, "time", clock)
    with pytest.raises(RecoveryError, match="made no progress in 600 s"):
        carry_out(reset, "verify_progress")
    assert clock.waits == 3
