"""Where a flow stands: one answer for whoever asks, and each file read once for it."""

from __future__ import annotations

from collections import Counter

import pytest

from streamkeeper.flows import generations
from streamkeeper.observe import status
from streamkeeper.observe.observed import Observed
from streamkeeper.storage import LocalStorage, one_look, read_json
from streamkeeper.watch import progress
from tests.worlds.recover.asked import ASKED
from tests.worlds.recover.recoveries import plan_reset, planned
from tests.worlds.small_world import World

ASK_THE_TABLE = ("backup_table", "tidy_tables")
"""Kinds whose plan depends on no flow's position."""


def test_what_a_driver_commits_after_its_fence_counts_for_nobody(world: World) -> None:
    world.processed(4, transactions=3)
    generations.end(world.home, 1, 2)
    observed = Observed(world.home)
    position = observed.position(world.settings.table_path("events"))
    assert position is not None
    assert (observed.last_commit, position.batch, set(observed.offsets)) == (2, 2, {"events_raw"})
    assert status.look(world.home.storage, world.flow).batch == 2
    assert progress.position(observed) == progress.Position(1, 2)
    assert (plan_reset(world).flows[0].position or {})["batch"] == 2


@pytest.mark.parametrize("recovery", ASKED)
def test_a_plan_reads_each_file_of_a_generation_once(
    recovery: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.processed(3)
    world.park()
    reads: Counter[str] = Counter()
    read = LocalStorage.read

    def counted(storage: LocalStorage, name: str, most: int | None = None) -> bytes | None:
        reads[name] += "/generations/" in name
        return read(storage, name, most)

    monkeypatch.setattr(LocalStorage, "read", counted)
    planned(world, recovery, **ASKED[recovery])
    assert {name: count for name, count in reads.items() if count > 1} == {}
    assert reads.total() > 0 or recovery in ASK_THE_TABLE, "it asks where the flow stands"


def test_a_look_ends_with_its_block(world: World) -> None:
    storage = world.home.storage
    storage.overwrite("note.json", b'{"n": 1}')
    with one_look():
        assert read_json(storage, "note.json") == {"n": 1}
        storage.overwrite("note.json", b'{"n": 2}')
        with one_look():
            assert read_json(storage, "note.json") == {"n": 1}, "one within is the same look"
    assert read_json(storage, "note.json") == {"n": 2}
