"""The heartbeat of the task that watches a driver, and how the driver judges its silence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from streamkeeper.drivers import supervision
from streamkeeper.drivers.submit import SUPERVISED_VARIABLE
from streamkeeper.drivers.supervision import Absence
from streamkeeper.errors import SettingsError, StorageError
from streamkeeper.settings import Settings
from tests.worlds.flows.recorded_storage import RecordedStorage
from tests.worlds.small_world import World


@dataclass
class Clock:
    """A monotonic clock that goes on by hand."""

    now: float = 50.0

    def __call__(self) -> float:
        return self.now


def silence(absence: Absence, clock: Clock, seconds: int) -> str | None:
    """Look once a second for so long; give what was said first, or None."""
    for _ in range(seconds):
        clock.now += 1
        found = absence.look()
        if found is not None:
            return found
    return None


def test_a_beat_is_read_as_it_was_written(world: World) -> None:
    assert supervision.read(world.home) is None
    supervision.beat(world.home, 7, "run, try 2")
    found = supervision.read(world.home)
    assert found is not None
    assert (found.count, found.by) == (7, "run, try 2")


def test_a_file_that_is_no_beat_is_told_with_what_to_do(world: World) -> None:
    world.home.storage.overwrite(world.home.supervisor, b'{"pulse": 1}')
    with pytest.raises(StorageError, match=r"is not a supervisor's heartbeat: .* Remove it"):
        supervision.read(world.home)


@pytest.mark.parametrize("ever_beat", [True, False], ids=["went silent", "never beat"])
def test_a_supervisor_that_is_silent_for_the_timeout_is_absent(ever_beat: bool, world: World) -> None:
    if ever_beat:
        supervision.beat(world.home, 1, "run")
    clock = Clock()
    said = silence(Absence(world.home, 600, clock), clock, 700)
    assert said is not None
    assert "STREAMKEEPER_SUPERVISOR_TIMEOUT is 600 s" in said
    assert 600 <= clock.now - 50 <= 660


def test_any_change_starts_the_wait_anew_a_lower_count_of_another_try_too(world: World) -> None:
    clock = Clock()
    absence = Absence(world.home, 600, clock)
    for count, by in ((5, "try 1"), (6, "try 1"), (5, "try 2"), (5, "try 3")):
        supervision.beat(world.home, count, by)
        assert silence(absence, clock, 500) is None
    assert silence(absence, clock, 200) is not None


def test_time_in_which_the_driver_did_not_look_does_not_count(world: World) -> None:
    clock = Clock()
    absence = Absence(world.home, 600, clock)
    clock.now += 100_000
    assert absence.look() is None, "the machine slept, and the supervisor with it"
    assert silence(absence, clock, 400) is None


def test_the_file_is_read_a_dozen_times_in_the_timeout(world: World) -> None:
    clock, storage = Clock(), RecordedStorage(world.settings.state)
    silence(Absence(replace(world.home, storage=storage), 600, clock), clock, 599)
    assert len(storage.asked_to("read")) == 1 + 11


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_only_a_driver_that_was_started_for_a_task_waits_for_it(
    value: str, expected: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUPERVISED_VARIABLE, value)
    assert (supervision.absence(world.home, 600) is not None) is expected


@pytest.mark.parametrize(
    ("environment", "least"),
    [
        ({"STREAMKEEPER_SUPERVISOR_TIMEOUT": "59"}, "60 s"),
        ({"STREAMKEEPER_SUPERVISOR_TIMEOUT": "61", "STREAMKEEPER_HEARTBEAT_INTERVAL": "20"}, "100 s"),
    ],
    ids=["shorter than the lease's term", "shorter than a few heartbeats"],
)
def test_a_timeout_that_a_restart_of_the_task_would_outlast_is_refused(
    environment: dict[str, str], least: str
) -> None:
    with pytest.raises(SettingsError, match=rf"STREAMKEEPER_SUPERVISOR_TIMEOUT is .* here {least}"):
        Settings.from_environment(environment)
    kept = Settings.from_environment({"STREAMKEEPER_SUPERVISOR_TIMEOUT": "700"})
    assert Settings.from_environment(kept.as_environment()).supervisor_timeout == 700
