"""What a driver's watch asks of the state folder while nothing happens, and what it still sees in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from streamkeeper_jobs.stream.declaration_watch import Declaration
from streamkeeper_jobs.stream.watch import Watch

from streamkeeper.drivers.supervision import Absence
from streamkeeper.flows import holds, leases
from streamkeeper.settings import Settings
from tests.worlds.flows.recorded_storage import RecordedStorage
from tests.worlds.small_world import World

DEFAULTS = Settings.from_environment({})


class Watched:
    """A driver's watch of a flow, turned by hand by its own clock, with the default settings."""

    def __init__(self, world: World) -> None:
        self.now, self.world = 0.0, world
        self.storage = RecordedStorage(world.settings.state)
        home = replace(world.home, storage=self.storage)
        self.lease = leases.acquire(home, 1, 60)
        absence = Absence(home, DEFAULTS.supervisor_timeout, lambda: self.now)
        declaration = Declaration(world.settings, home.full_name)
        interval, term = DEFAULTS.heartbeat_interval, DEFAULTS.lease_term
        clock = lambda: self.now  # noqa: E731
        self.watch = Watch(home, self.lease, interval, declaration, absence, term=term, monotonic=clock)
        self.watch.turn()
        self.watch.tell(phase="running")
        self.storage.asked.clear()

    def go_on(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.watch.order() is None:
            self.now += DEFAULTS.look_interval
            self.watch.tell(triggers=int(self.now), details={"looked": self.now})
            self.watch.turn()


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


def test_a_driver_without_data_asks_the_state_folder_thirty_times_a_minute(watched: Watched) -> None:
    watched.go_on(60)
    watched.storage.asked.clear()
    watched.go_on(300)
    assert watched.watch.order() is None
    of_a_minute = {act: count / 5 for act, count in Counter(act for act, _ in watched.storage.asked).items()}
    assert of_a_minute["write"] == 5, "each is two fsyncs, or a store's dearest request"
    assert sum(of_a_minute.values()) <= 32, of_a_minute


def test_a_batch_is_told_before_the_next_heartbeat_is_due(watched: Watched) -> None:
    watched.go_on(DEFAULTS.heartbeat_interval)
    watched.watch.tell(batch=3, rows=20, triggers=1)
    watched.go_on(DEFAULTS.look_interval)
    beat = leases.read_heartbeat(watched.world.home, watched.lease.epoch)
    assert beat is not None
    assert (beat.batch, beat.rows) == (3, 20)


def _hold(world: World) -> None:
    holds.put(world.home, holds.person("ada"), "upgrade", "ada")


def _take_over(world: World) -> None:
    world.home.storage.create(world.home.lease(2), b"{}")


def _decide(world: World) -> None:
    world.home.storage.create(world.home.generation(2), b"{}")


@pytest.mark.parametrize(
    ("act", "words", "seconds"),
    [(_hold, "upgrade", 4), (_take_over, "another driver took over", 12), (_decide, "generation 2 was", 12)],
)
def test_what_ends_a_driver_is_seen_within_seconds(
    act: Callable[[World], None], words: str, seconds: float, watched: Watched
) -> None:
    watched.go_on(DEFAULTS.heartbeat_interval + DEFAULTS.look_interval)
    act(watched.world)
    began = watched.now
    watched.go_on(60)
    assert words in str(watched.watch.order())
    assert watched.now - began <= seconds
