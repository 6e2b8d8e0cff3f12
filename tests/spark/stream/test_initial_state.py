"""An initial state is given once a generation, and is the same one where its batch is repeated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import AFTER_LAST, BATCH, COPIED, EMPTY, REBUILT, StartAt
from streamkeeper.recover.moves.next_generation import plan_move
from streamkeeper.recover.plans.move import Move
from streamkeeper.testing import PipelineTest
from tests.oracle import counted
from tests.worlds.flow_world import COLUMNS, Flowbed, event
from tests.worlds.states.given import SEEN, TABLE, numbered, numbering, put_table

pytestmark = pytest.mark.long

Make = Callable[..., Flowbed]


def run(bed: Flowbed) -> None:
    assert bed.run() is Outcome.STOPPED


def killed_in_its_first_batch(make_bed: Make) -> Flowbed:
    """Return a flow whose first batch is in its table alone; its initial state has other rows by now."""
    bed = make_bed(numbering(TABLE))
    put_table(bed)
    bed.arrive(1, 2)
    run(bed)
    bed.forget_commit()
    put_table(bed, {3: 30, 8: 80})
    bed.arrive(8, 3, 9)
    return bed


def test_a_first_batch_that_a_restart_repeats_gives_its_state_once(make_bed: Make) -> None:
    """Spark keeps what the first attempt made of it."""
    bed = killed_in_its_first_batch(make_bed)
    run(bed)
    bed.holds(numbered(bed.events))


def test_a_first_batch_that_a_copy_repeats_is_given_the_same_version_of_the_table(make_bed: Make) -> None:
    bed = killed_in_its_first_batch(make_bed)
    bed.reset(StartAt(BATCH, generation=1, batch=0), COPIED)
    run(bed)
    bed.holds(numbered(bed.events))
    assert bed.start(2).evidence["initial_state"]["version"] == 0


def test_a_query_beyond_its_first_batch_needs_the_table_no_more(make_bed: Make) -> None:
    bed = make_bed(numbering(TABLE))
    put_table(bed)
    bed.arrive(1, 2)
    run(bed)
    shutil.rmtree(bed.root / "warehouse" / "known")
    bed.arrive(8, 9)
    run(bed)
    bed.reset(StartAt(BATCH, generation=1, batch=1), COPIED)
    bed.arrive(15, 3)
    run(bed)
    bed.holds(numbered(bed.events))
    bed.reset(state=EMPTY)
    assert bed.run() is Outcome.PARKED
    assert "is of the table known, and there is none at" in bed.park().details["message"]


def test_a_state_that_begins_anew_takes_the_table_as_it_is_and_a_rebuilt_one_as_it_was(
    make_bed: Make,
) -> None:
    bed = make_bed(numbering(TABLE))
    put_table(bed)
    bed.arrive(1, 2, 8)
    run(bed)
    before = list(bed.events)
    put_table(bed, {3: 30})
    bed.reset(state=EMPTY)
    bed.arrive(15, 3)
    run(bed)
    known = {**SEEN, 3: 30}
    empty = numbered(bed.events[len(before) :], known)
    bed.holds([*numbered(before), *empty])
    bed.declare(numbering(TABLE, state="count INT, twice INT", more=" 0"))
    put_table(bed, {4: 40})
    for state, said in (
        (REBUILT, "given again, and history after it. It is read at version 1, as for generation 2."),
        (EMPTY, "given again; the state starts with it and nothing else. It is read as it is when the"),
    ):
        request = Move(StartAt(AFTER_LAST), state)
        planned, _ = plan_move(bed.settings, bed.flow(), request)
        assert any(said in note for note in planned.notes), planned.notes
    bed.reset(state=REBUILT)
    bed.arrive(10, 22, 4)
    run(bed)
    bed.holds([*numbered(before), *empty, *numbered(bed.events, known)[-3:]])


def test_what_its_code_could_not_take_is_given_once_it_can(make_bed: Make) -> None:
    """The generation has begun, and its first batch was never committed."""
    bed = make_bed(numbering(read="given.seen_so_far"))
    bed.arrive(1, 2)
    assert bed.run() is not Outcome.STOPPED
    bed.declare(numbering())
    run(bed)
    bed.holds(numbered(bed.events))
    assert bed.start(1).number == 1


def test_a_test_of_a_pipeline_puts_rows_into_the_table(
    tmp_path: Path, pipeline_test: Callable[..., PipelineTest]
) -> None:
    file = tmp_path / "of its own" / "events.py"
    file.parent.mkdir()
    file.write_text(numbering(TABLE))
    test = pipeline_test(file, schemas={"known": "user_id INT, seen INT"})
    test.arrive("known", [{"user_id": user, "seen": seen} for user, seen in SEEN.items()])
    events = [event(number) for number in (1, 2, 8, 3)]
    test.arrive("events_raw", events)
    assert test.run("clean_events") is Outcome.STOPPED
    assert counted(test.rows("events"), COLUMNS) == counted(numbered(events), COLUMNS)
