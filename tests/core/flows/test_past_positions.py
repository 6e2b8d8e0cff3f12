"""Places in a flow's past: by batch, by time, as a generation's end; what cannot be had any more is said with
what can.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.generations import AFTER_LAST, COPIED, EMPTY, REBUILT, Generation, Start, StartAt
from streamkeeper.observe import past_positions
from tests.worlds.small_world import World, write_checkpoint


@pytest.fixture
def stands(world: World) -> World:
    """Generation 1 with five batches, all committed."""
    world.processed(5)
    return world


def table(world: World) -> str:
    return world.settings.table_path("events")


def decide_next(world: World) -> Generation:
    made = replace(generations.first(world.home, "f"), previous=1, start=StartAt(AFTER_LAST), recovery="r")
    return generations.decide(world.home, generations.with_number(made, world.home, 2))


def begin_next(world: World, batches: int, seed: int = 0, at: str = "2026-11-21T11:00:00+00:00") -> None:
    """Let the next generation begin after what was, and commit so many batches of its own."""
    generation, folder = decide_next(world), world.home.checkpoint(2, 2)
    position = {"events_raw": {"logOffset": 0}}
    generations.begin(world.home, Start(2, folder, seed, position, {}, (), None, 2, at))
    groups = [world.files[:], *([world.add_files(1)[0]] for _ in range(batches))]
    write_checkpoint(world.home.storage, folder, generation, groups, batches + 1)
    for batch in range(1, batches + 1):
        world.commit({"txn": {"appId": generation.query_id, "version": batch}})


def purge(world: World, before: int) -> None:
    """Remove the oldest batches of the first generation, as Spark does."""
    for kind in ("offsets", "commits"):
        for batch in range(before):
            world.home.storage.remove(f"{world.home.checkpoint(1, 1)}/{kind}/{batch}")


@pytest.mark.parametrize("batch", [0, 3, 4])
def test_a_batch_that_was_committed_is_a_place(batch: int, stands: World) -> None:
    place = past_positions.at_batch(stands.home, table(stands), 1, batch)
    assert (place.batch, place.positions()) == (batch, {"events_raw": {"logOffset": batch}})
    assert place.start_at == StartAt("batch", generation=1, batch=batch)
    assert place.standing.batch == batch
    assert place.standing.missing_in_sink is None


def test_a_batch_that_only_the_table_has_is_a_place_whose_state_is_one_version_behind(world: World) -> None:
    world.processed(3, committed=2, transactions=3)
    assert past_positions.at_end(world.home, table(world), 1).batch == 2
    assert past_positions.at_end(world.home, table(world), 1).version == 2
    assert past_positions.at_batch(world.home, table(world), 1, 1).version == 2


def test_a_batch_that_was_never_committed_is_refused_with_those_that_were(world: World) -> None:
    world.processed(3, committed=2)
    with pytest.raises(
        RequestError,
        match=r"has no batch 2 in the table: its last is 1.*oldest available batch is 0, the newest 1",
    ):
        past_positions.at_batch(world.home, table(world), 1, 2)


def test_a_batch_that_spark_removed_is_refused_with_the_oldest_that_is_left(stands: World) -> None:
    purge(stands, 3)
    with pytest.raises(
        RequestError,
        match=r"Batch 1 .* no longer available.*minBatchesToRetain.*oldest available .* is 3, the newest 4",
    ):
        past_positions.at_batch(stands.home, table(stands), 1, 1)
    assert past_positions.at_batch(stands.home, table(stands), 1, 3).batch == 3


@pytest.mark.parametrize(("number", "said"), [(7, "has no generation 7"), (2, "never began generation 2")])
def test_a_generation_that_is_not_there_is_refused_with_those_that_are(
    number: int, said: str, stands: World
) -> None:
    decide_next(stands)
    with pytest.raises(RequestError, match=rf"{said}. Generations to which a rewind can return: 1 "):
        past_positions.at_end(stands.home, table(stands), number)


def test_a_generation_whose_checkpoint_was_removed_is_refused(stands: World) -> None:
    begin_next(stands, 1)
    stands.home.storage.remove(stands.home.checkpoint(1, 1))
    assert past_positions.begun(stands.home) == [2]
    with pytest.raises(RequestError, match=r"was removed: clean_up does that"):
        past_positions.at_end(stands.home, table(stands), 1)


def test_a_checkpoint_that_is_an_older_copy_is_no_place(world: World) -> None:
    world.processed(3, transactions=5)
    with pytest.raises(CheckpointError, match=r"which .* never planned: it is an older copy"):
        past_positions.at_batch(world.home, table(world), 1, 1)


def test_the_seed_of_a_generation_is_a_place_and_what_is_before_it_is_not(stands: World) -> None:
    begin_next(stands, 2, seed=0)
    place = past_positions.at_batch(stands.home, table(stands), 2, 0)
    assert place.positions() == {"events_raw": {"logOffset": 0}}
    start = stands.root / "state" / stands.home.start(2)
    start.write_text(start.read_text().replace('"seed_batch": 0', '"seed_batch": 1'))
    said = "stands for everything before the generation, which started from after-last with batch 1"
    with pytest.raises(RequestError, match=said):
        past_positions.at_batch(stands.home, table(stands), 2, 0)


# --- by time


def commit_at(world: World, number: int, times: dict[int, int]) -> None:
    """Set when commits of a generation were written, in seconds."""
    folder = world.home.storage.path(world.home.checkpoint(number, number))
    for batch, second in times.items():
        os.utime(f"{folder}/commits/{batch}", (second, second))


TEN = 1_795_255_200  # 2026-11-21T10:00:00Z, when generation 1 began
ELEVEN = TEN + 3600


@pytest.fixture
def timed(stands: World) -> World:
    """Generation 1 commits each minute from 10:01 on; generation 2 begins at 11:00 and commits at 11:01 and
    11:02.
    """
    begin_next(stands, 2)
    commit_at(stands, 1, {batch: TEN + 60 * (batch + 1) for batch in range(5)})
    commit_at(stands, 2, {0: ELEVEN, 1: ELEVEN + 60, 2: ELEVEN + 120})
    return stands


def plan_at(world: World, number: int, times: dict[int, int]) -> None:
    """Set when batches of a generation were planned, in seconds, as its offset log has it."""
    folder = Path(world.home.storage.path(world.home.checkpoint(number, number)))
    for batch, second in times.items():
        file = folder / "offsets" / str(batch)
        file.write_text(re.sub(r'("batchTimestampMs": ?)[0-9]+', rf"\g<1>{second * 1000}", file.read_text()))


def test_a_copied_state_folder_whose_files_are_all_new_is_rewound_by_the_checkpoint_s_own_times(
    timed: World,
) -> None:
    plan_at(timed, 1, {batch: TEN + 60 * batch for batch in range(5)})
    plan_at(timed, 2, {0: ELEVEN, 1: ELEVEN + 10, 2: ELEVEN + 70})
    moments = [(TEN + 150) * 1000, (ELEVEN + 90) * 1000]
    places = [past_positions.at_moment(timed.home, table(timed), moment) for moment in moments]
    now = time.time()
    commit_at(timed, 1, dict.fromkeys(range(5), int(now)))
    commit_at(timed, 2, dict.fromkeys(range(3), int(now)))
    copied = [past_positions.at_moment(timed.home, table(timed), moment) for moment in moments]
    assert [str(place) for place in places] == ["batch 1 of generation 1", "batch 1 of generation 2"]
    assert [str(place) for place in copied] == ["batch 1 of generation 1", "batch 2 of generation 2"]
    assert "the files were copied since" in copied[0].found_by


@pytest.mark.parametrize(
    ("second", "generation", "batch"),
    [
        pytest.param(TEN + 60, 1, 0, id="at a commit"),
        pytest.param(TEN + 119, 1, 0, id="before the next"),
        pytest.param(TEN + 299, 1, 3, id="later"),
        pytest.param(ELEVEN - 1, 1, 4, id="before the next generation"),
        pytest.param(ELEVEN, 2, 0, id="as it begins"),
        pytest.param(ELEVEN + 59, 2, 0, id="begun"),
        pytest.param(ELEVEN + 60, 2, 1, id="its first"),
        pytest.param(ELEVEN + 9999, 2, 2, id="now"),
    ],
)
def test_a_moment_means_the_last_batch_committed_until_then(
    second: int, generation: int, batch: int, timed: World
) -> None:
    place = past_positions.at_moment(timed.home, table(timed), second * 1000)
    assert (place.generation.number, place.batch) == (generation, batch)
    assert "commit was written at" in place.found_by or "began at" in place.found_by


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (TEN - 1, "had no generation that is still kept"),
        (TEN + 30, "generation 1 of .* had committed nothing"),
    ],
)
def test_a_moment_before_all_is_refused(second: int, said: str, timed: World) -> None:
    with pytest.raises(RequestError, match=said):
        past_positions.at_moment(timed.home, table(timed), second * 1000)


def test_a_moment_whose_batches_spark_removed_is_refused(timed: World) -> None:
    purge(timed, 3)
    assert past_positions.at_moment(timed.home, table(timed), (TEN + 240) * 1000).batch == 3
    with pytest.raises(RequestError, match="had committed batches that Spark removed since"):
        past_positions.at_moment(timed.home, table(timed), (TEN + 200) * 1000)


# --- with what state


def keep_state(world: World, versions: list[str], partition: int = 0) -> None:
    folder = f"{world.home.checkpoint(1, 1)}/state/0/{partition}"
    for name in versions:
        world.home.storage.overwrite(f"{folder}/{name}", b"x")


DELTAS = [f"{number}.delta" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("files", "batch", "state"),
    [
        (DELTAS, 4, COPIED),
        (DELTAS, 0, COPIED),
        (DELTAS[1:], 4, REBUILT),
        ([*DELTAS[1:], "1.delta"], 2, COPIED),
        (["3.snapshot", "4.delta", "5.delta"], 3, COPIED),
        (["3.snapshot", "4.delta", "5.delta"], 2, COPIED),
        (["3.snapshot", "4.delta", "5.delta"], 1, REBUILT),
        (["4.snapshot", "5.delta"], 2, REBUILT),
        (["2.zip", "3.changelog", "4.changelog", "5.changelog"], 3, COPIED),
        (["2.zip", "4.changelog", "5.changelog"], 3, REBUILT),
        (["1_6f1f7d0e-5b0a-5d0c-9a53-7c1b7a4a2f10.zip", ".1.zip.crc"], 0, COPIED),
        ([], 0, REBUILT),
    ],
)
def test_the_state_is_copied_where_every_version_that_it_needs_is_there(
    files: list[str], batch: int, state: str, world: World
) -> None:
    world.processed(5, operators=("dedupe",))
    keep_state(world, files or ["_metadata/schema"])
    place = past_positions.at_batch(world.home, table(world), 1, batch)
    found, why = past_positions.state_from(place, world.flow.fingerprint, REBUILT)
    assert found == state, why
    assert past_positions.state_from(place, world.flow.fingerprint, EMPTY)[0] == EMPTY


def test_one_partition_of_a_join_that_lacks_a_version_is_enough(world: World) -> None:
    world.processed(2, operators=("symmetricHashJoin",))
    for store in ("left-keyToNumValues", "left-keyWithIndexToValue"):
        keep_state(world, [f"{store}/1.delta", f"{store}/2.delta"])
        keep_state(world, [f"{store}/1.delta"], partition=1)
    place = past_positions.at_end(world.home, table(world), 1)
    found, why = past_positions.state_from(place, world.flow.fingerprint, REBUILT)
    assert found == REBUILT
    assert "version 2 of " in why
    assert "/state/0/1/left-keyToNumValues" in why


def test_a_query_without_state_is_copied_too(stands: World) -> None:
    place = past_positions.at_batch(stands.home, table(stands), 1, 2)
    assert past_positions.state_from(place, stands.flow.fingerprint, REBUILT)[0] == COPIED


def test_another_declaration_gets_its_state_from_history(stands: World) -> None:
    place = past_positions.at_batch(stands.home, table(stands), 1, 2)
    found, why = past_positions.state_from(place, "another", REBUILT)
    assert found == REBUILT
    assert "the declaration changed since generation 1" in why
