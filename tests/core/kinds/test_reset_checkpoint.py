"""Planning a reset on real folders: where it starts, what it costs, what it refuses; planning changes nothing
at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import Checkpoint, CommitEntry, write_commit
from streamkeeper.declare.model import Source
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.sources.files.format import Files
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, MISSING_HISTORY, UNKNOWN_IMPACT
from streamkeeper.watch import batch_numbers
from tests.worlds.recover.recoveries import impact, notes, refused
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import CHANGES, EVENTS, RATE, World, write_checkpoint
from tests.worlds.sources.source_impacts import DELTA, HELD, KAFKA, STOOD, Ask, at, begun, broker, table
from tests.worlds.tables.delta_logs import Table

__all__ = ["broker", "table"]
AT = "2026-11-21T10:00:00+00:00"


def keep_ends(world: World, batch: int, sources: dict[str, Any], generation: int = 1) -> None:
    """Write down what a driver does of its last batch."""
    batch_numbers.keep(world.home, [], ends=batch_numbers.Ends(generation, batch, sources))


def rows(found: Plan) -> tuple[int | None, int | None, int | None]:
    """Lost, repeated and replayed rows of the one source."""
    (impact,) = found.flows[0].impacts
    return impact.lost.rows, impact.repeated.rows, impact.replayed.rows


# --- from where, and at what impact


def test_after_the_last_processed_costs_nothing(stands: World) -> None:
    found = plan(stands)
    assert (rows(found), refused(found)) == ((0, 0, 0), [])
    assert (found.flows[0].generation, found.flows[0].previous, found.flows[0].next_generation) == (1, 1, 2)
    assert found.flows[0].position["batch"] == 2
    assert found.flows[0].position["offsets"] == {"events_raw": {"logOffset": 2}}
    assert impact(found).now == "files log 2"
    assert "2 unread files will be read" in impact(found).notes


def test_a_plan_says_what_becomes_of_a_quarantine(stands: World) -> None:
    expect = '@dp.expect_or_drop("short", "length(event_id) < 9", quarantine="refused")\n@dp.append_flow'
    stands.declare(EVENTS.replace("@dp.append_flow", f'dp.create_streaming_table("refused")\n{expect}'))
    said = "The quarantine refused is kept: rows that are read again"
    assert said in notes(plan(stands, "earliest"))


def test_a_table_that_is_kept_by_key_may_be_given_the_same_changes_again(keyed: World) -> None:
    found = plan(keyed, "earliest")
    assert (rows(found), refused(found)) == ((0, 6, 0), [])
    assert "is updated by key and sequence: changes that are read again have no effect" in notes(found)


def test_changes_that_are_lost_are_lost_for_a_table_that_is_kept_by_key_too(keyed: World) -> None:
    assert refused(plan(keyed, "latest")) == [DATA_LOSS]


def test_rows_that_state_was_made_of_are_not_safe_to_repeat_even_there(world: World) -> None:
    world.declare(CHANGES % "")
    world.processed(3, operators=("stateStoreSave",))
    found = plan(world, "earliest")
    assert refused(found) == [DUPLICATES]
    assert "is updated by key" not in notes(found)


@pytest.fixture(params=["update", "complete"])
def totals(request: pytest.FixtureRequest, world: World) -> World:
    """The same, where the table has results of the flow's state."""
    keys = ', keys=["event_id"]' if request.param == "update" else ""
    text = EVENTS.replace('streaming_table("events"', f'streaming_table("events"{keys}')
    world.declare(text.replace("@dp.append_flow", f"@dp.{request.param}_flow"))
    world.processed(3, operators=("stateStoreSave",))
    world.add_files(2)
    return world


def test_results_that_are_made_again_replace_those_that_are_there(totals: World) -> None:
    found = plan(totals, "earliest", state="empty")
    assert (rows(found), refused(found), found.flows[0].written_again) == ((0, 6, 0), [], None)
    assert "replace" in notes(found)
    assert refused(plan(totals)) == []


def test_results_without_what_came_before_are_a_loss(totals: World) -> None:
    assert refused(plan(totals, "after-last", state="empty")) == [DATA_LOSS]
    assert refused(plan(totals, "after-last", state="empty", accept=(DATA_LOSS,))) == []


def test_results_of_a_history_that_is_not_whole_are_a_loss(totals: World) -> None:
    next((totals.root / "data" / "events").iterdir()).unlink()
    assert refused(plan(totals, "earliest", state="empty")) == [DATA_LOSS]


def decided_by(world: World, start: StartAt, **planned: Any) -> None:
    """Let a recovery have decided the next generation."""
    ledger.open(world.home.storage, "events", "r0").record("planned", planned)
    made = generations.first(world.home, world.flow.fingerprint)
    made = replace(made, previous=1, start=start, recovery="r0")
    generations.decide(world.home, generations.with_number(made, world.home, 2))


REFRESH = {"recovery": "full_refresh", "request": {}}


@pytest.mark.parametrize(
    ("start", "planned", "words"),
    [
        pytest.param(StartAt("earliest"), REFRESH, [DATA_LOSS], id="a full refresh"),
        pytest.param(
            StartAt("batch", generation=1, batch=0),
            {"recovery": "rewind", "request": {"target": "restored"}},
            [DATA_LOSS],
            id="a rewind with its table",
        ),
        pytest.param(
            StartAt("batch", generation=1, batch=0),
            {"recovery": "rewind", "request": {"target": "kept"}},
            [],
            id="a rewind without it",
        ),
        pytest.param(StartAt("earliest"), {"recovery": "reset_checkpoint", "request": {}}, [], id="a reset"),
        pytest.param(StartAt("after-last"), REFRESH, [], id="a refresh that the flow goes on after"),
    ],
)
def test_a_start_behind_what_another_recovery_took_from_the_table_is_a_loss(
    start: StartAt, planned: dict[str, Any], words: list[str], stands: World
) -> None:
    decided_by(stands, start, **planned)
    found = plan(stands)
    assert refused(found) == words
    assert refused(plan(stands, accept=(DATA_LOSS,))) == []
    if words:
        assert "generation 2, decided by r0, has not begun: it brings again rows" in found.refusals[0].message
    assert refused(plan(stands, "earliest")) == [DUPLICATES], "what that generation was to do"


def test_a_start_behind_a_refresh_that_has_begun_may_pass_over_what_it_has_not_read_yet(
    stands: World,
) -> None:
    decided_by(stands, StartAt("earliest"), **REFRESH)
    stands.processed(1, number=2)
    assert refused(plan(stands)) == [], "after what it has read"
    found = plan(stands, StartAt("generation", generation=1))
    assert UNKNOWN_IMPACT in refused(found)
    assert "generation 2, decided by r0, began after that position" in found.refusals[-1].message


def test_an_offset_that_the_flow_never_reached_is_refused(stands: World) -> None:
    with pytest.raises(
        RequestError,
        match=r"say logOffset 7, but the flow's files log ends at 2. Give a number from -1 .* to 2",
    ):
        plan(stands, StartAt("offsets", offsets={"events_raw": {"logOffset": 7}}))


# --- the sink is ahead of the checkpoint


def test_a_batch_that_is_in_the_sink_only_rules_so_that_it_does_not_come_twice(world: World) -> None:
    world.processed(3, committed=2, transactions=3)
    found = plan(world)
    stood = found.flows[0].position
    assert (stood["batch"], stood["ruled_by"], stood["last_commit"]) == (2, "sink", 1)
    assert stood["offsets"] == {"events_raw": {"logOffset": 2}}
    assert "The table has batch 2, the checkpoint only 1: the table's log counts" in notes(found)


def test_a_batch_that_was_planned_and_is_nowhere_is_read_again(world: World) -> None:
    world.processed(3, committed=2, transactions=2)
    found = plan(world)
    assert (found.flows[0].position["batch"], found.flows[0].position["ruled_by"]) == (1, "checkpoint")
    assert "1 unread files will be read" in impact(found).notes


def test_a_commit_that_the_table_does_not_know_rules_too(world: World) -> None:
    world.processed(3, committed=3, transactions=2)
    assert plan(world).flows[0].position["batch"] == 2


@pytest.mark.parametrize(
    ("transactions", "missing"),
    [(2, "batch 2"), (0, "batches 0 to 2")],
    ids=["an older table", "a new table"],
)
def test_batches_that_the_table_has_not_are_told_and_refused_unless_all_is_read_again(
    world: World, transactions: int, missing: str
) -> None:
    world.processed(3, committed=3, transactions=transactions)
    found = plan(world)
    assert refused(found) == [DATA_LOSS]
    assert f"the table lacks {missing}" in found.refusals[0].message
    assert f"but the table lacks {missing}: it was replaced" in found.flows[0].notes[0]
    assert refused(plan(world, accept=(DATA_LOSS,))) == []
    assert DATA_LOSS not in refused(plan(world, "earliest"))


def test_a_checkpoint_that_is_older_than_the_table_has_no_position_and_an_unknown_impact(
    world: World,
) -> None:
    world.processed(3, transactions=5)
    with pytest.raises(CheckpointError, match="Batch 4 is the last that the sink has"):
        plan(world)
    assert refused(plan(world, "earliest")) == [UNKNOWN_IMPACT]


def test_a_fenced_generation_stands_where_it_stood_before_the_fence(world: World) -> None:
    world.processed(3)
    world.commit({"txn": {"appId": world.query_id, "version": FENCE}})
    found = plan(world)
    assert (found.flows[0].position["batch"], found.flows[0].position["fenced"]) == (2, True)


def test_what_a_late_driver_committed_after_the_fence_does_not_count(world: World) -> None:
    world.processed(5, transactions=3)
    generations.end(world.home, 1, 2)
    found = plan(world)
    assert (found.flows[0].position["last_commit"], found.flows[0].position["batch"]) == (2, 2)


def test_another_writers_transactions_do_not_count(world: World) -> None:
    world.processed(2)
    world.write_table("another-query", 9)
    assert plan(world).flows[0].position["batch"] == 1


def test_a_flow_that_never_committed_starts_with_what_it_would_have_read_first(world: World) -> None:
    world.processed(1, committed=0)
    found = plan(world)
    assert (found.flows[0].position["batch"], found.flows[0].position["offsets"]) == (None, {})
    assert rows(found) == (0, 0, 0)
    assert "No batch was ever committed" in notes(found)


def test_where_the_tables_log_was_cleaned_up_the_plan_says_that_spark_is_asked(world: World) -> None:
    world.processed(3, transactions=0)
    world.version(0).rename(world.version(40))
    found = plan(world)
    assert (found.flows[0].position["batch"], found.flows[0].position["sink_known"]) == (2, False)
    assert "does not go back far enough" in notes(found)


def test_no_commit_and_a_table_that_cannot_tell_is_no_fresh_start(world: World) -> None:
    world.processed(1, committed=0, transactions=0)
    world.version(0).rename(world.version(40))
    with pytest.raises(
        CheckpointError, match=r"has no committed batch, but the table's log does not go back"
    ):
        plan(world)


# --- state


def test_history_is_replayed_where_the_query_is_known_to_keep_state(stands: World) -> None:
    stands.park(stateful=True)
    found = plan(stands)
    assert (found.flows[0].stateful, rows(found)) == (True, (0, 0, 6))
    assert found.flows[0].failure is not None and found.flows[0].failure["sql_state"] == "42K03"


def test_a_query_that_is_known_to_keep_none_replays_nothing(stands: World) -> None:
    stands.park(stateful=False)
    found = plan(stands)
    assert (found.flows[0].stateful, rows(found)) == (False, (0, 0, 0))
    assert "The query, as declared now, keeps no state." in notes(found)


@pytest.mark.parametrize("operators", [(), ("dedupe",)], ids=["none", "dedupe"])
def test_a_declaration_that_has_committed_batches_tells_by_its_checkpoint_if_it_keeps_state(
    operators: tuple[str, ...], world: World
) -> None:
    world.processed(2, operators=operators)
    found = plan(world)
    assert (found.flows[0].stateful, found.flows[0].operators_before) == (bool(operators), operators)


def test_a_changed_declaration_that_never_ran_is_not_guessed_at(world: World) -> None:
    world.processed(2, operators=("dedupe",))
    world.declare(EVENTS.replace("return raw", "return raw.distinct()"))
    found = plan(world)
    assert found.flows[0].stateful is None
    assert "if the query keeps state, 2 processed files are read again" in str(impact(found).notes)


def test_empty_state_is_told_for_what_it_does(stands: World) -> None:
    stands.park(stateful=True)
    found = plan(stands, state="empty")
    assert rows(found) == (0, 0, 0)
    assert "State starts empty" in notes(found)


@pytest.mark.parametrize(
    ("stateful", "state", "words"),
    [
        pytest.param(True, "rebuilt", [MISSING_HISTORY], id="rebuilt"),
        pytest.param(None, "rebuilt", [MISSING_HISTORY], id="not known"),
        pytest.param(False, "rebuilt", [], id="no state"),
        pytest.param(True, "empty", [UNKNOWN_IMPACT], id="empty"),
    ],
)
@pytest.mark.parametrize("happened", ["gone", "rewritten"])
def test_history_that_is_gone_matters_only_to_a_state_that_is_rebuilt(
    stateful: bool | None, state: str, words: list[str], happened: str, stands: World
) -> None:
    if happened == "gone":
        stands.files[0].unlink()
    else:
        stands.files[0].write_text(stands.files[0].read_text() + "{}\n")
    stands.park(stateful=stateful)
    found = plan(stands, state=state)
    assert refused(found) == words
    assert (impact(found).gone.files == 1) == (state == "rebuilt" and stateful is not False)
    assert refused(plan(stands, state=state, accept=(MISSING_HISTORY, UNKNOWN_IMPACT))) == []


# --- sources that changed


def test_a_new_source_starts_at_its_beginning_and_is_told(stands: World) -> None:
    more = 'dp.create_source("more", format="json", path="{data}/more", schema="event_id STRING")\n'
    two = EVENTS.replace('["events_raw"])', '["events_raw", "more"])').replace("(raw)", "(raw, more)")
    stands.declare(two.replace("dp.create_streaming", more + "dp.create_streaming"))
    (stands.root / "data" / "more").mkdir()
    found = plan(stands)
    assert [impact.source for impact in found.flows[0].impacts] == ["events_raw", "more"]
    assert "New sources start at their beginning: more." in notes(found)


OTHER = 'dp.create_source("other", format="json", path="{data}/other", schema="event_id STRING")\n'
BOTH = EVENTS.replace('["events_raw"])', '["events_raw", "other"])').replace("(raw)", "(raw, other)")


def goes_on(world: World, mode: str = "after-last") -> None:
    """Let a second generation have read another source in place of the first one's."""
    second(world, mode, [[], []], "other")
    world.declare(BOTH.replace("dp.create_streaming", OTHER + "dp.create_streaming"))
    (world.root / "data" / "other").mkdir()


def second(world: World, mode: str, batches: list[list[Path]], source: str, **evidence: Any) -> None:
    """Let a second generation have read two batches of a source."""
    decided = generations.Generation(2, 1, StartAt(mode), "rebuilt", "q2", "", "", AT, world.flow.fingerprint)
    generations.decide(world.home, decided)
    folder, came = world.home.checkpoint(2, 1), {"generation": 1, "batch": 2, **evidence}
    start = generations.Start(2, folder, 0, {}, {}, (), None, 1, AT, came)
    generations.begin(world.home, start)
    write_checkpoint(world.home.storage, folder, decided, batches, 2, source=source)
    world.commit({"txn": {"appId": "q2", "version": 1, "lastUpdated": 1}})


def test_a_source_that_is_read_again_after_a_time_goes_on_where_it_stood(stands: World) -> None:
    goes_on(stands)
    found = plan(stands)
    first = found.flows[0].impacts[0]
    assert (first.source, first.now, first.repeated.files) == ("events_raw", "files log 2", 0)
    assert (first.lost.files, refused(found)) == (0, []) and "2 unread files will be read" in first.notes
    assert "Sources that an earlier generation read go on where it ended: events_raw." in notes(found)
    again = plan(stands, "earliest").flows[0].impacts[0].repeated
    assert (again.files, again.rows) == (3, 6), "the table has them from then"


@pytest.mark.parametrize(
    ("then", "unread"), [("other", 2), ("", 5)], ids=["elsewhere", "it was within that path, and left out"]
)
def test_a_path_that_a_source_reads_again_goes_on_with_the_files_read_there(
    then: str, unread: int, stands: World
) -> None:
    """The files log of the generation between has none of another path."""
    batches = [[stands.root / "data" / "other" / name] for name in ("a.json", "b.json")]
    for [file] in batches:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}\n")
    second(
        stands, "after-last", batches, "events_raw", paths={"events_raw": str(stands.root / "data" / then)}
    )
    found = plan(stands)
    assert (impact(found).repeated.files, refused(found)) == (0, [])
    assert f"{unread} unread files will be read" in impact(found).notes
    assert impact(plan(stands, "earliest")).repeated.files == 5 - unread


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "path"])
def test_what_a_removed_checkpoint_had_read_is_unknown(is_source: bool, stands: World) -> None:
    """What a clean-up removed is not read again as if it were new."""
    if is_source:
        goes_on(stands)
        last_run = {"sources": {"events_raw": "json"}}
        stands.home.storage.overwrite(stands.home.last_run(1), json.dumps(last_run).encode())
    else:
        start = json.loads(stands.home.storage.read(stands.home.start(1)) or b"")
        start["evidence"] = {"paths": {"events_raw": stands.flow.sources[0].path}}
        stands.home.storage.overwrite(stands.home.start(1), json.dumps(start).encode())
        second(stands, "after-last", [[], []], "events_raw", paths={"events_raw": "/elsewhere"})
    stands.home.storage.create(stands.home.gone(1), b"{}")
    found = plan(stands)
    repeated = found.flows[0].impacts[0].repeated
    assert repeated.files is None and "generation 1 read it, and its checkpoint was removed" in str(repeated)
    assert refused(found) == [DUPLICATES]


def test_what_an_emptied_table_had_is_not_in_it(stands: World) -> None:
    goes_on(stands, "earliest")
    found = plan(stands)
    assert found.flows[0].impacts[0].now == "nothing processed yet"
    assert "New sources start at their beginning: events_raw" in notes(found)


def test_files_that_went_before_their_planned_batch_read_them_are_lost(world: World) -> None:
    batches = [world.add_files(1), world.add_files(1), world.add_files(3)]
    world.begin(batches, 2, 2)
    gone, checkpoint = batches[2][1], Checkpoint(world.home.storage, world.home.checkpoint(1, 1))
    [source] = world.flow.sources

    def unread(source: Source = source) -> str:
        return Files().gone_unread(source, checkpoint, {"logOffset": 1}).lost

    assert not unread()
    gone.rename(aside := gone.with_name("_broken.json"))
    assert not unread(), "somebody set it aside"
    aside.rename(other := gone.with_name("broken.txt"))
    assert unread() and not unread(replace(source, options={"pathGlobFilter": "*.json"}))
    other.unlink()
    found = plan(world)
    assert (impact(found).lost.files, refused(found)) == (1, [DATA_LOSS])
    assert f"was planned and not finished no longer exist, such as {gone}" in unread()


def test_a_source_under_another_name_repeats_what_was_read_and_is_refused_until_accepted(
    stands: World,
) -> None:
    stands.declare(EVENTS.replace("events_raw", "raw_events"))
    found = plan(stands)
    assert (rows(found), refused(found)) == ((0, 6, 0), [DUPLICATES])
    assert impact(found).notes[0] == "2 unread files will be read"
    assert refused(plan(stands, accept=(DUPLICATES,))) == []
    assert rows(plan(stands, "latest")) == (4, 0, 0)
    assert "no longer reads: events_raw" in notes(found)
    assert "New sources start at their beginning: raw_events" in notes(found)


def test_a_source_that_became_another_kind_cannot_go_on_from_its_old_position(stands: World) -> None:
    stands.declare(RATE)
    with pytest.raises(
        RequestError, match=r"The source events_raw was another kind of source in the old checkpoint"
    ):
        plan(stands)
    assert impact(plan(stands, "earliest")).source == "events_raw"


@pytest.mark.parametrize(
    "path", ["{data}/events", "{data}//events/", "{data}/x/../events", "file://{data}/events", "{data}/ev*"]
)
def test_files_are_known_again_however_their_folder_is_written(path: str, stands: World) -> None:
    stands.declare(EVENTS.replace("{data}/events", path))
    found = impact(plan(stands, "earliest"))
    assert (found.repeated.files, found.gone.files) == (3, 0)


def test_files_that_spark_would_not_read_are_not_counted(stands: World) -> None:
    folder = stands.root / "data" / "events"
    for name in ("_tmp.json", ".f.json.crc", "f.json._COPYING_", "_hidden/f.json", "more.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}\n")
    (folder / "_day=1").mkdir()
    (folder / "_day=1" / "f.json").write_text("{}\n")
    stands.declare(EVENTS.replace("options={}", 'options={"pathGlobFilter": "*.{json,ndjson}"}'))
    assert impact(plan(stands, "latest")).lost.files == 3


# --- damage: a clear error, and nothing changed


def checkpoint(world: World, name: str) -> str:
    return str(world.root / "state" / world.home.checkpoint(1, 1) / name)


def truncate(name: str, keep: int) -> Callable[[World], None]:
    def damage(world: World) -> None:
        os.truncate(checkpoint(world, name), keep)

    return damage


def remove(*names: str) -> Callable[[World], None]:
    def damage(world: World) -> None:
        for name in names:
            world.home.storage.remove(f"{world.home.checkpoint(1, 1)}/{name}")

    return damage


DAMAGE: dict[str, tuple[Callable[[World], None], str]] = {
    "everything gone": (remove(""), r"There is nothing at .*000001-000001"),
    "emptied": (remove("offsets", "commits", "sources", "metadata"), r"is not a checkpoint"),
    "the table's log": (
        lambda world: world.version(3).write_text('{"txn":{"appId":"' + world.query_id),
        r"is not JSON: the table's log is damaged",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_a_clear_error_and_nothing_is_changed(
    damage: Callable[[World], None], message: str, world: World
) -> None:
    world.processed(3, operators=("dedupe",))
    damage(world)
    with pytest.raises(CheckpointError, match=message):
        plan(world)


LOST = {
    "empty": truncate("offsets/2", 0),
    "torn": truncate("offsets/2", 40),
    "gone": remove("offsets/2"),
    "all gone": remove("offsets"),
}


@pytest.mark.parametrize("operators", [(), ("dedupe",)], ids=["no state", "dedupe"])
@pytest.mark.parametrize("lose", LOST.values(), ids=LOST.keys())
def test_lost_offsets_are_known_where_the_lists_of_files_and_the_table_agree(
    lose: Callable[[World], None], operators: tuple[str, ...], world: World
) -> None:
    world.processed(3, operators=operators)
    world.add_files(1)
    world.ran()
    lose(world)
    found = plan(world)
    assert (rows(found)[:2], refused(found)) == ((0, 0), [])
    assert found.flows[0].position["offsets"] == {"events_raw": {"logOffset": 2}}
    assert "1 unread files will be read" in impact(found).notes
    assert "offsets/2 cannot be read. What was read up to batch 2 is known all the same" in notes(found)


def test_a_batch_between_two_that_are_known_is_known(world: World) -> None:
    world.processed(4, committed=3)
    world.ran()
    remove("offsets/2")(world)
    assert plan(world).flows[0].position["offsets"] == {"events_raw": {"logOffset": 2}}


def _watermark(world: World) -> None:
    name = f"{world.home.checkpoint(1, 1)}/commits/2"
    world.home.storage.overwrite(name, write_commit(CommitEntry(2, 1, 60_000)))


def _one_more_list(world: World) -> None:
    world.home.storage.overwrite(f"{world.home.checkpoint(1, 1)}/sources/events_raw/3", b"v1")


def _other_source(world: World) -> None:
    world.ran("events_raw", "a_topic")


def _nobody_knows_the_sources(world: World) -> None:
    world.home.storage.remove(world.home.last_run(1))
    remove("offsets")(world)


def _table_behind(world: World) -> None:
    world.version(3).unlink()


def _older_ends(world: World) -> None:
    """The driver wrote down what an earlier batch, and one of another generation, had read."""
    world.ran("events_raw", "a_topic")
    keep_ends(world, 1, {"events_raw": {"logOffset": 1}, "a_topic": {"t": {"0": 5}}})


DOUBT: dict[str, tuple[Callable[[World], None], str, list[str]]] = {
    # what is done, why nothing is certain then, and the sources whose newest offsets are named
    "a list without a batch": (_one_more_list, "there are 1 batches, and 2 lists", ["events_raw"]),
    "a batch without input": (_watermark, "batches that read nothing", ["events_raw"]),
    "a source that keeps no lists": (_other_source, "how far the source a_topic was read", []),
    "ends of an earlier batch": (_older_ends, "how far the source a_topic was read", []),
    "sources that nobody knows": (_nobody_knows_the_sources, "are not on record", []),
    "a table that lacks the batch": (_table_behind, "the table lacks batch 2", ["events_raw"]),
}


@pytest.mark.parametrize(("doubt", "why", "named"), DOUBT.values(), ids=DOUBT.keys())
def test_lost_offsets_are_never_guessed_and_the_error_names_a_start_that_can_be_planned(
    doubt: Callable[[World], None], why: str, named: list[str], world: World
) -> None:
    world.processed(3, operators=("dedupe",))
    world.ran()
    remove("offsets/2")(world)
    doubt(world)
    with pytest.raises(CheckpointError, match=why) as refusal:
        plan(world)
    said = re.search(r"explicit offsets, such as (\{.*?\}) \(", str(refusal.value))
    assert "give the flow a new checkpoint" not in str(refusal.value)
    offsets = json.loads(said[1]) if said else {}
    assert [*offsets] == named, refusal.value
    for start in [StartAt("offsets", offsets=offsets)] if offsets else ["earliest"]:
        assert set(refused(plan(world, start))) <= {UNKNOWN_IMPACT, DATA_LOSS, DUPLICATES}


@pytest.mark.parametrize("of", ["delta", "kafka", "files beside a topic"])
def test_lost_offsets_are_those_that_the_driver_wrote_down_after_just_this_batch(
    of: str, world: World, table: Table, broker: Ask
) -> None:
    if of == "files beside a topic":
        world.processed(3)
        world.ran("events_raw", "a_topic")
        ends: dict[str, Any] = {"events_raw": {"logOffset": 2}, "a_topic": {"t": {"0": 5}}}
    else:
        ends = {"events_raw": at(2) if of == "delta" else STOOD}
        initial = {"orders": {"0": 0, "1": 0}} if of == "kafka" else None
        begun(world, DELTA if of == "delta" else KAFKA, ends["events_raw"], initial)
        world.ran()
    broker(HELD)
    last = world.newest() - 1
    remove(f"offsets/{last}")(world)
    keep_ends(world, last, ends, generation=2)
    with pytest.raises(CheckpointError, match="how far the source"):
        plan(world)
    keep_ends(world, last, ends)
    found = plan(world)
    assert refused(found) == [] and found.flows[0].position["offsets"] == ends
    assert "from what the driver wrote down after it" in notes(found)


def test_files_that_lost_lists_may_name_count_as_duplicates(world: World) -> None:
    world.processed(3, per_batch=2)
    world.ran()
    remove("offsets/2", "sources/events_raw/2")(world)
    world.add_files(1)
    found = plan(world, StartAt("offsets", offsets={"events_raw": {"logOffset": 1}}))
    assert DUPLICATES in refused(found)
    assert impact(found).repeated.files == 3, "two of the batch whose list is gone, and one that came later"


@pytest.mark.parametrize("name", ["offsets/2", "sources/events_raw/2"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_damaged_checkpoint_can_still_be_left_for_another_position_at_an_unknown_impact(
    name: str, start: str, world: World
) -> None:
    world.processed(3)
    truncate(name, 10)(world)
    found = plan(world, start)
    assert found.refusals, "what cannot be known must be accepted"
    assert refused(plan(world, start, accept=(UNKNOWN_IMPACT, DATA_LOSS, DUPLICATES))) == []


def test_damage_behind_the_last_batch_does_not_matter_to_a_reset(world: World) -> None:
    world.processed(4)
    remove("offsets/1", "commits/0")(world)
    truncate("offsets/0", 3)(world)
    assert plan(world).flows[0].position["batch"] == 3


@pytest.mark.parametrize(
    "name", [".offsets.tmp", "offsets/notes.txt", "offsets/.9.crc", "commits/x", "sources/events_raw/.1.crc"]
)
def test_a_foreign_file_is_no_batch(name: str, world: World) -> None:
    world.processed(2)
    world.home.storage.overwrite(f"{world.home.checkpoint(1, 1)}/{name}", b"foreign")
    assert plan(world).flows[0].position["batch"] == 1


# --- what cannot be planned


def test_a_flow_that_never_ran_has_nothing_to_reset(world: World) -> None:
    with pytest.raises(
        RequestError, match=r"events.clean_events has no checkpoint yet.*streamkeeper run events.clean_events"
    ):
        plan(world)
