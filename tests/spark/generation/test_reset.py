"""A new generation starts exactly where it was decided to, with the state that it was decided to have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.log import last_transaction
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import query_id
from streamkeeper.flows.generations import (
    AFTER_LAST,
    EARLIEST,
    EMPTY,
    LATEST,
    OFFSETS,
    REBUILT,
    TIMESTAMP,
    StartAt,
)
from tests.oracle import all_rows, counted, first_per
from tests.worlds.flow_world import NAME, SCHEMA, Flowbed, event, pipeline
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
STATELESS = pipeline(view="")
BY_USER = pipeline(view='.dropDuplicates(["user_id"])')


def run(bed: Flowbed) -> None:
    assert bed.run() is Outcome.STOPPED


def test_after_the_last_processed_loses_nothing_and_repeats_nothing(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    for number in range(1, 6):
        bed.arrive(number)
    run(bed)
    bed.declare(pipeline(view='.where("n > 0")'))
    bed.reset()
    bed.arrive(6)
    run(bed)
    bed.arrive(7)
    run(bed)
    bed.holds(all_rows(bed.events))
    start = bed.start(2)
    assert (start.seed_batch, start.positions, start.state) == (0, {"events_raw": {"logOffset": 0}}, None)
    assert start.evidence | {"notes": []} == bed.start(2).evidence
    assert (
        start.evidence["last_commit"],
        start.evidence["last_transaction"],
        start.evidence["ruled_by"],
    ) == (2, 2, "checkpoint")
    assert start.evidence["fenced"] == [1]
    assert last_transaction(str(bed.table), query_id(NAME, 1)).fenced
    fenced, began = ledger.open(bed.home.storage, "events", "test-recovery").events()
    assert (fenced.event, fenced.evidence["last_transaction"]) == ("driver.fenced", 2)
    assert (began.event, began.evidence["seed_batch"]) == ("driver.began", 0)


@pytest.mark.parametrize("state", long_after(1, [EMPTY, REBUILT]))
def test_latest_reads_only_what_comes_after_the_new_generation_began(bed: Flowbed, state: str) -> None:
    bed.arrive(1)
    run(bed)
    for number in (2, 3, 4):
        bed.arrive(number)
    bed.reset(StartAt(LATEST), state=state)
    run(bed)
    bed.arrive(4, 5)
    run(bed)
    skipped_and_known = [event(5)] if state == REBUILT else [event(4), event(5)]
    bed.holds([event(1), *skipped_and_known])


@pytest.mark.long
def test_latest_of_nothing_reads_all_that_comes(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    run(bed)
    bed.reset(StartAt(LATEST))
    run(bed)
    bed.arrive(1)
    run(bed)
    bed.holds(all_rows(bed.events))


def test_a_timestamp_reads_the_files_changed_at_it_or_later(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    for number, second in ((1, 100), (2, 200), (3, 300)):
        os.utime(bed.arrive(number), (second, second))
    run(bed)
    bed.reset(StartAt(TIMESTAMP, timestamp_ms=200_000))
    run(bed)
    bed.holds([*bed.events, event(2), event(3)])


def test_explicit_offsets_count_what_is_up_to_them_as_processed(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    for number in range(1, 6):
        bed.arrive(number)
    run(bed)
    bed.reset(StartAt(OFFSETS, offsets={"events_raw": {"logOffset": 1}}))
    run(bed)
    bed.holds([*bed.events, event(5)])


@pytest.mark.parametrize(
    ("offsets", "said"),
    long_after(
        1,
        [
            ({}, "without an offset are events_raw"),
            ({"events_raw": {"logOffset": 0}, "other": {"logOffset": 0}}, "not of the flow are other"),
            ({"events_raw": {"logOffset": 7}}, "ends with batch 0"),
            ({"events_raw": 7}, "position of source events_raw cannot be used"),
        ],
    ),
    ids=["a source is missing", "an unknown source", "beyond the log", "another kind of offset"],
)
def test_offsets_that_do_not_fit_park_the_flow_and_leave_the_old_generation_as_it_is(
    bed: Flowbed, offsets: dict[str, Any], said: str
) -> None:
    bed.arrive(1)
    run(bed)
    bed.reset(StartAt(OFFSETS, offsets=offsets))
    assert bed.run() is Outcome.PARKED
    assert said in bed.park().details["message"]
    assert bed.park().details["recovery"] == "reset_checkpoint"
    assert generations.read_start(bed.home, 2) is None
    bed.reset(previous=1)
    bed.arrive(1, 2)
    run(bed)
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.parametrize(
    ("before", "after", "state", "added"),
    long_after(
        2,
        [
            pytest.param(
                pipeline(), BY_USER, REBUILT, [event(3)], id="other key, rebuilt: known users stay out"
            ),
            pytest.param(
                pipeline(),
                BY_USER,
                EMPTY,
                [event(8), event(3)],
                id="other key, empty: known users come once more",
            ),
            pytest.param(
                STATELESS,
                pipeline(),
                REBUILT,
                [event(8), event(3)],
                id="deduplication added, rebuilt: known ids stay out",
            ),
            pytest.param(
                STATELESS,
                pipeline(),
                EMPTY,
                [event(8), event(3), event(1)],
                id="deduplication added, empty: a known id comes once more",
            ),
        ],
    ),
)
def test_another_stateful_query_starts_with_the_state_that_was_decided(
    make_bed: Make, before: str, after: str, state: str, added: list[dict[str, Any]]
) -> None:
    bed = make_bed(before)
    bed.arrive(1, 2)
    bed.arrive(4, 5, 6)
    run(bed)
    bed.declare(after)
    bed.reset(state=state)
    run(bed)
    bed.holds(bed.events[:5])
    bed.arrive(8)  # user 1, as event 1
    bed.arrive(3)
    if after != BY_USER:
        bed.arrive(1)
    run(bed)
    bed.holds([*bed.events[:5], *added])
    assert bed.start(2).state == state
    assert bed.start(2).operators == ("dedupe",)


@pytest.mark.parametrize("happened", long_after(1, ["gone", "rewritten"]))
def test_a_rebuild_without_its_history_is_refused_unless_accepted(bed: Flowbed, happened: str) -> None:
    gone = bed.arrive(1, 2)
    bed.arrive(3)
    run(bed)
    if happened == "gone":
        gone.unlink()
    else:
        gone.write_text("")
    bed.declare(BY_USER)
    bed.reset()
    assert bed.run() is Outcome.PARKED
    assert (
        "1 of the processed files of source events_raw are gone or rewritten" in bed.park().details["message"]
    )
    bed.reset(previous=1, accepted=("missing-history",))
    bed.arrive(8, 10)  # users 1 and 3
    run(bed)
    bed.holds([event(1), event(2), event(3), event(8)])


def test_a_new_source_is_read_from_its_beginning_and_one_that_is_gone_is_dropped(make_bed: Make) -> None:
    both = {
        "more": SECOND,
        "sources": ["distinct_events", "second"],
        "parameters": "events, second",
        "flow": "events.unionByName(second)",
    }
    bed = make_bed(pipeline(view=""))
    bed.arrive(1)
    run(bed)
    bed.arrive(10, folder="second")
    bed.declare(pipeline(view="", **both))
    bed.reset()
    bed.arrive(2)
    run(bed)
    bed.holds(all_rows(bed.events))
    assert bed.start(2).evidence["notes"] == ["source second is new: read from its beginning"]
    bed.declare(pipeline(view="", more=SECOND, sources=["second"]))
    bed.reset()
    bed.arrive(11, folder="second")
    lost = bed.arrive(3)
    run(bed)
    bed.holds([item for item in bed.events if item["n"] != 3])
    assert lost.exists()
    assert bed.start(3).evidence["notes"] == ["source events_raw is no longer read"]


def test_a_source_whose_path_is_a_pattern_goes_on_after_the_files_that_it_has_read(make_bed: Make) -> None:
    path = pipeline(view="").replace("{data}/events", "{data}/event[s]")
    bed = make_bed(path)
    bed.arrive(1)
    run(bed)
    bed.reset()
    bed.arrive(2)
    run(bed)
    bed.holds(all_rows(bed.events))


def test_a_source_that_moved_goes_on_with_the_files_of_its_new_folder(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    run(bed)
    bed.declare(STATELESS.replace("{data}/events", "{data}/moved"))
    bed.reset()
    bed.arrive(2, folder="moved")
    run(bed)
    bed.holds(all_rows(bed.events))


def test_windows_that_were_emitted_are_not_emitted_again_and_none_is_lost(make_bed: Make) -> None:
    """Append mode, watermark of 10 s, windows of 10 s; reset to the same counts with one more aggregate,
    state rebuilt.
    """
    windows = (
        '.withWatermark("event_time", "10 seconds").groupBy(F.window("event_time", "10 seconds")).agg({})'
    )
    plain = 'F.count("*").cast("int").alias("user_id")'
    shape = '.selectExpr("cast(window.start as string) event_id", "user_id", "n")'
    before = pipeline(view=windows.format(f'{plain}, F.max("n").alias("n")') + shape, files=1)
    after = pipeline(
        view=windows.format(f'{plain}, F.max("n").alias("n"), F.sum("n").alias("s")') + shape, files=1
    )
    bed = make_bed(before)
    for number in (1, 5, 12, 25, 33):
        bed.arrive(number)
    run(bed)
    done = bed.rows()
    assert [row["user_id"] for row in sorted(done, key=lambda row: row["event_id"])] == [2, 1]
    bed.declare(after)
    bed.reset()
    for number in (38, 65, 66):
        bed.arrive(number)
    run(bed)
    assert bed.start(2).seed_batch == bed.checkpoint(1).last_commit(), "in the batches that it came in"
    assert {name[0]: count for name, count in counted(bed.rows(), ["event_id"]).items()} == dict.fromkeys(
        [f"2026-01-01 00:00:{second}0" for second in range(4)], 1
    )
    assert {row["event_id"][-2:]: row["user_id"] for row in bed.rows()} == {
        "00": 2,
        "10": 1,
        "20": 1,
        "30": 2,
    }


@pytest.mark.long
def test_a_rate_source_goes_on_with_its_next_second(make_bed: Make) -> None:
    rate = """dp.create_source("ticks", format="rate", options={"rowsPerSecond": 5})"""
    columns = ("cast(value as string) event_id", "cast(value as int) user_id", "cast(value as int) n")
    flow = f"ticks.selectExpr{columns}"
    bed = make_bed(pipeline(more=rate, sources=["ticks"], parameters="ticks", flow=flow))
    run(bed)
    while not bed.rows():
        run(bed)
    bed.reset()
    before = len(bed.rows())
    while len(bed.rows()) == before:
        run(bed)
    assert sorted(row["n"] for row in bed.rows()) == list(range(len(bed.rows())))


def test_a_generation_after_one_that_never_began_starts_where_the_last_that_did_stood(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    run(bed)
    bed.reset()
    bed.reset()
    bed.arrive(2)
    run(bed)
    bed.holds(all_rows(bed.events))
    assert bed.start(3).evidence["generation"] == 1
    assert bed.start(3).evidence["fenced"] == [1, 2]


@pytest.mark.long
def test_what_a_passed_over_generation_wrote_behind_the_back_of_a_plan_does_not_come_again(
    make_bed: Make,
) -> None:
    """Generation 3 is decided to follow 1, as by a plan made before a driver that was thought gone began
    generation 2 and wrote.
    """
    bed = make_bed(STATELESS)
    bed.arrive(1)
    run(bed)
    bed.reset()
    bed.arrive(2)
    run(bed)
    bed.reset(previous=1)
    bed.arrive(3)
    run(bed)
    bed.holds(all_rows(bed.events))
    assert bed.start(3).evidence["generation"] == 2


@pytest.mark.long
def test_a_passed_over_generation_that_wrote_is_in_the_way_of_an_explicit_start(bed: Flowbed) -> None:
    bed.arrive(1)
    run(bed)
    bed.reset()
    bed.arrive(2)
    run(bed)
    bed.reset(StartAt(OFFSETS, offsets={"events_raw": {"logOffset": 0}}), previous=1)
    assert bed.run() is Outcome.PARKED
    assert "has started it since and written batch" in bed.park().details["message"]


@pytest.mark.long
def test_after_a_generation_that_was_to_start_from_latest_and_never_began_there_is_no_position(
    bed: Flowbed,
) -> None:
    bed.arrive(1)
    run(bed)
    bed.reset(StartAt(LATEST))
    bed.reset()
    assert bed.run() is Outcome.PARKED
    assert "never did, so it has no position" in bed.park().details["message"]


@pytest.mark.long
def test_generations_of_generations_stay_exact(bed: Flowbed) -> None:
    for number in range(1, 6):
        bed.declare(pipeline(view=f'.dropDuplicates(["event_id"]).where("n != {number + 100}")'))
        if number > 1:
            bed.reset()
        bed.arrive(number, number + 1)
        run(bed)
    bed.holds(first_per(bed.events, ["event_id"]))
    assert bed.start(5).evidence["fenced"] == [1, 2, 3, 4]


def test_inferred_schemas_are_carried_over_unless_they_are_to_be_inferred_anew(make_bed: Make) -> None:
    bed = make_bed(pipeline(schema=None, view=".select('event_id', 'user_id', 'n')"))
    bed.arrive(1)
    run(bed)
    inferred = bed.start(1).schemas
    (bed.root / "data/events/extra.json").write_text(
        '{"event_id": "x", "user_id": 1, "n": 1, "extra": true}\n'
    )
    bed.reset()
    run(bed)
    assert bed.start(2).schemas == inferred
    bed.reset(schemas={})
    run(bed)
    assert "extra BOOLEAN" in bed.start(3).schemas["events_raw"]


@pytest.mark.parametrize(
    ("harm", "start", "outcome"),
    long_after(
        1,
        [
            ("offsets", AFTER_LAST, Outcome.STOPPED),
            ("offsets", EARLIEST, Outcome.STOPPED),
            ("sources/events_raw", AFTER_LAST, Outcome.PARKED),
            ("metadata", AFTER_LAST, Outcome.STOPPED),
        ],
    ),
)
def test_a_damaged_checkpoint_is_only_in_the_way_where_it_is_needed(
    bed: Flowbed, harm: str, start: str, outcome: Outcome
) -> None:
    bed.arrive(1)
    run(bed)
    target = Path(bed.checkpoint(1).path(harm))
    (target / "0" if target.is_dir() else target).write_bytes(b"garb")
    bed.reset(StartAt(start))
    assert bed.run() is outcome
    if outcome is Outcome.PARKED:
        assert str(target) in bed.park().details["message"]


SECOND = f'dp.create_source("second", format="json", path="{{data}}/second", schema="{SCHEMA}")'
