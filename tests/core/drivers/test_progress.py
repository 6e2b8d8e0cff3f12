"""Whether a flow makes progress: judged by its checkpoint and its sources."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import pytest

from streamkeeper.checkpoint import Checkpoint, FileEntry, write_files_log
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import storage_now
from streamkeeper.observe.observed import Observed
from streamkeeper.sources.base.format import Waiting
from streamkeeper.storage import to_json
from streamkeeper.watch import progress
from streamkeeper.watch.alerts import Alert, AlertKind
from streamkeeper.watch.pending_input import DUTY, what_waits
from streamkeeper.watch.progress import Note, Observation, Position, State, is_over, judge, needs_listing
from tests.worlds.small_world import CHANGES, RATE, World, write_manifest

AT = Position(1, 7)
MOVED, NEVER = Position(1, 8), Position()
INPUT, NOTHING = Waiting(True, "a file waits"), Waiting(False)


def seen(
    position: Position = AT, waits: Waiting | None = None, held: bool = False, done: bool = False
) -> Observation:
    return Observation(position, True, held, waits, done)


SILENT = Note(AT, 1.0, 0.0, True)
LOOKS: dict[str, tuple[Observation, Note | None, State, Note]] = {
    # what is seen, the note of the look before; the state, and the note for the next one
    "never started": (Observation(NEVER, False, False, None), None, State.NEVER_STARTED, Note(NEVER)),
    "first look": (seen(), None, State.NEW, Note(AT)),
    "waiting → committed": (seen(MOVED), Note(AT, 900.0), State.MOVED_ON, Note(MOVED)),
    "no progress → committed": (seen(MOVED), SILENT, State.MOVED_ON, Note(MOVED)),
    "a new generation": (seen(Position(2)), Note(AT, 1.0), State.MOVED_ON, Note(Position(2))),
    "idle for ever": (seen(AT, NOTHING), Note(AT), State.IDLE, Note(AT)),
    "idle, not listed": (seen(), Note(AT, None, 5000.0), State.IDLE, Note(AT, None, 5000.0)),
    "idle → waiting": (seen(AT, INPUT), Note(AT), State.WAITING, Note(AT, 1000.0)),
    "waiting on": (seen(), Note(AT, 401.0), State.WAITING, Note(AT, 401.0)),
    "too long": (seen(AT, INPUT), Note(AT, 400.0), State.NO_PROGRESS, Note(AT, 400.0, 0.0, True)),
    "not listed": (seen(), Note(AT, 400.0, 9e9), State.NO_PROGRESS, Note(AT, 400.0, 9e9, True)),
    "the files no longer exist": (seen(AT, NOTHING), Note(AT, 400.0), State.IDLE, Note(AT)),
    "still silent": (seen(), SILENT, State.NO_PROGRESS, SILENT),
    "held: the clock starts over": (seen(held=True), SILENT, State.HELD, Note(AT)),
    "done: nobody is alarmed": (seen(done=True), SILENT, State.DONE, Note(AT)),
}


@pytest.mark.parametrize(("seen", "before", "state", "after"), LOOKS.values(), ids=LOOKS)
def test_each_look_gives_a_state_and_the_note_for_the_next_one(
    seen: Observation, before: Note | None, state: State, after: Note
) -> None:
    assert judge(seen, before, 1000.0, 600.0) == (state, after)


def test_where_nobody_wants_to_know_input_may_wait_for_ever() -> None:
    assert judge(seen(), Note(AT, 1.0), 1e9, None) == (State.WAITING, Note(AT, 1.0))


@pytest.mark.parametrize(
    ("position", "before", "listed"),
    [
        pytest.param(AT, None, False, id="first look"),
        pytest.param(MOVED, Note(AT), False, id="it committed"),
        pytest.param(AT, Note(AT), True, id="silent, and it is not known why"),
        pytest.param(AT, Note(AT, None, 1001.0), False, id="listed lately, at some cost"),
        pytest.param(AT, Note(AT, 401.0), False, id="known to wait"),
        pytest.param(AT, Note(AT, 400.0), True, id="once more before people are told"),
        pytest.param(AT, Note(AT, 400.0, 0.0, True), False, id="people were told"),
    ],
)
def test_sources_are_looked_at_only_where_it_matters(
    position: Position, before: Note | None, listed: bool
) -> None:
    assert needs_listing(position, before, 1000.0, 600.0) is listed


@pytest.mark.parametrize(
    ("stood", "present", "over"),
    [
        pytest.param((1, 7), Position(1, 7), False, id="where it stood"),
        pytest.param((1, 7), Position(1, 8), True, id="the next batch"),
        pytest.param((1, 7), Position(2, None), False, id="reset, not committed"),
        pytest.param((1, 7), Position(2, 0), True, id="reset, and committed"),
        pytest.param((None, None), Position(1, 0), True, id="its first commit"),
        pytest.param((1, None), Position(1, None), False, id="begun, never committed"),
    ],
)
def test_a_trouble_is_over_with_the_next_commit(
    stood: tuple[int | None, int | None], present: Position, over: bool
) -> None:
    trouble = Alert(AlertKind.PARKED, "p.f", "…", "o", "…", None, *stood)
    assert is_over(trouble, present) is over


@pytest.mark.parametrize(
    ("done", "planned", "new", "waits"),
    [
        pytest.param(3, 0, 0, "", id="all was read"),
        pytest.param(3, 0, 2, "2 files or more wait in the source events_raw", id="new files"),
        pytest.param(3, 1, 0, "batch 3 is planned and not committed", id="a batch in flight"),
        pytest.param(0, 0, 1, "files wait in the source events_raw", id="begun, nothing read yet"),
        pytest.param(0, 0, 0, "", id="begun, no files"),
    ],
)
def test_what_waits_is_found_by_files_and_batches(
    done: int, planned: int, new: int, waits: str, world: World
) -> None:
    world.processed(done + planned, committed=done)
    world.add_files(new)
    found = what_waits(Observed(world.home), world.flow)
    assert (found.pending, found.description.startswith(waits)) == (bool(waits), True)


def test_a_late_file_that_was_read_long_ago_is_looked_up_before_it_counts(world: World) -> None:
    """The youngest file came in batch 0; the newest entries of the log know only older ones."""
    start = world.processed(12)
    os.utime(world.files[0], (world.clock_ms / 1000 + 10, world.clock_ms / 1000 + 10))
    entries = [
        FileEntry(f"file://{file}", int(file.stat().st_mtime * 1000), number)
        for number, file in enumerate(world.files[:10])
    ]
    log = f"{start.checkpoint}/sources/events_raw"
    world.home.storage.overwrite(f"{log}/9.compact", b"".join(write_files_log(entries)))
    for number in range(10):
        world.home.storage.remove(f"{log}/{number}")
    assert not what_waits(Observed(world.home), world.flow).pending
    world.clock_ms += 3_600_000
    world.add_files(1)
    assert what_waits(Observed(world.home), world.flow).description.startswith("a file waits")


def test_of_a_long_log_only_the_end_is_read(world: World) -> None:
    start = world.processed(1)
    log = f"{start.checkpoint}/sources/events_raw"
    paths = [f"file:///data/{number:09d}.json" for number in range(20_000)]
    entries = [FileEntry(path, 1_000 + number, number % 10) for number, path in enumerate(paths)]
    world.home.storage.overwrite(f"{log}/9.compact", b"".join(write_files_log(entries)))
    newest = Checkpoint(world.home.storage, start.checkpoint).files_log("events_raw").newest_entries(9)
    assert 10_000 < len(newest) < 20_000
    assert newest == entries[-len(newest) :]


def test_rows_of_the_rate_source_wait_all_the_time(world: World) -> None:
    world.declare(RATE)
    world.begin([], 0, 0)
    assert (
        what_waits(Observed(world.home), world.flow).description
        == "the source events_raw (rate) has new rows all the time"
    )


def run_epoch(world: World) -> None:
    leases.leave(world.home, leases.acquire(world.home, 1, 0.1), "test")


def test_a_flow_s_story_from_idle_to_no_progress_and_back(world: World) -> None:
    start = world.processed(2)
    run_epoch(world)
    flow = replace(world.flow, pipeline=replace(world.flow.pipeline, no_progress_after=600.0))
    now = storage_now(world.home.storage)

    def state(seconds: float) -> State:
        return progress.look(world.home, flow, now + seconds).state

    assert [state(at) for at in (0, 60, 9000)] == [State.NEW, State.IDLE, State.IDLE]
    world.add_files(1)
    assert [state(at) for at in (9060, 9120, 9659)] == [State.WAITING] * 3
    assert [state(at) for at in (9660, 9720)] == [State.NO_PROGRESS] * 2
    holds.put(world.home, holds.person("ada"), "a look", "ada")
    assert state(9780) is State.HELD
    holds.release(world.home, holds.person("ada"))
    assert [state(at) for at in (9840, 10_440)] == [State.WAITING, State.NO_PROGRESS]
    world.home.storage.overwrite(f"{start.checkpoint}/commits/2", b'v1\n{"nextBatchWatermarkMs":0}')
    assert state(10_500) is State.MOVED_ON


def test_a_look_says_in_one_line_what_it_found(world: World) -> None:
    world.processed(2)
    run_epoch(world)
    now = storage_now(world.home.storage)
    for at in (0.0, 60.0):
        progress.look(world.home, world.flow, now + at)
    world.add_files(1)
    look = progress.look(world.home, world.flow, now + 240.0)
    said = "input waits (generation 1, batch 1, last commit 4 min ago; no driver: the last one"
    assert str(look).startswith(f"events.clean_events: {said}")
    assert "a file waits in the source events_raw, such as" in str(look)
    assert look.to_json()["state"] == "input waits"


def test_a_folder_that_takes_long_to_list_is_listed_rarely(world: World) -> None:
    world.processed(1)
    run_epoch(world)
    ticks = iter([0.0, 6.0])
    now = storage_now(world.home.storage)
    progress.look(world.home, world.flow, now)
    progress.look(world.home, world.flow, now + 60, monotonic=lambda: next(ticks))
    world.add_files(1)
    assert progress.look(world.home, world.flow, now + 120).state is State.IDLE
    assert progress.look(world.home, world.flow, now + 60 + 6 * DUTY).state is State.WAITING


def test_a_seed_is_no_progress(world: World) -> None:
    start = world.processed(3)
    assert progress.position(Observed(world.home)) == Position(1, 2)
    world.home.storage.overwrite(world.home.start(1), to_json(asdict(replace(start, seed_batch=2))))
    assert progress.position(Observed(world.home)) == Position(1, None)
    told = str(progress.look(world.home, world.flow, storage_now(world.home.storage)))
    assert ("no batch committed" in told, "last commit" in told) == (True, False)


def test_a_flow_that_nobody_ever_ran_is_no_trouble(world: World) -> None:
    write_manifest(world.settings)
    world.add_files(3)
    assert progress.look(world.home, world.flow, 1000.0).state is State.NEVER_STARTED


def test_a_once_flow_that_is_done_is_never_late_whatever_waits_in_its_source(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(1)
    world.add_files(1)
    leases.beat(world.home, leases.Heartbeat(1, 1, "running", 1, "then"))
    world.home.storage.create(world.home.supervisor, b"{}")
    generations.finish(world.home, 1, 0)
    for now in (1000.0, 1e6, 1e9):
        assert progress.look(world.home, world.flow, now).state is State.DONE
