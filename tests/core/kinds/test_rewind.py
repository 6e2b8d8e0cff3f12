"""Planning a rewind, and a reset from an earlier generation: where to, at what impact, what is refused;
planning changes nothing at all.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import COPIED, EARLIEST, REBUILT, Generation, Start, StartAt
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.rewind import RewindRequest
from streamkeeper.sources.kafka.offsets import OffsetRange, Topics
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, MISSING_HISTORY
from streamkeeper.tables import past_versions
from tests.worlds.recover.recoveries import FLOW, approve, carry_out, impact, notes, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, READER, World, write_checkpoint
from tests.worlds.sources.source_impacts import KAFKA, Ask, broker

__all__ = ["broker"]

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def plan(world: World, of: str = "rewind", **values: Any) -> Plan:
    return planned(world, of, flow=FLOW, **values)


def repeated(found: Plan) -> int | None:
    return impact(found).repeated.rows


def txn(version: int, flow: str = FLOW, generation: int = 1) -> dict[str, Any]:
    return {"txn": {"appId": query_id(flow, generation), "version": version}}


def decide_second(home: FlowHome, first: Generation) -> Generation:
    return generations.decide(home, generations.with_number(replace(first, previous=1), home, 2))


def began(home: FlowHome, decided: Generation, batches: list[list[Path]], seed: int | None = None) -> str:
    """Let a generation begin and commit some batches; give its checkpoint."""
    folder = home.checkpoint(decided.number, 1)
    after = {} if seed is None else {"events_raw": {"logOffset": seed}}
    at = "2026-11-21T11:00:00+00:00"
    generations.begin(home, Start(decided.number, folder, seed, after, {}, (), None, 1, at))
    write_checkpoint(home.storage, folder, decided, batches, len(batches))
    return folder


@pytest.fixture
def stands(world: World) -> World:
    """Four batches of one file, two rows each; one file waits. The table is at version 4."""
    world.processed(4)
    world.add_files(1)
    return world


# --- to where


def test_a_rewind_to_a_batch_repeats_what_came_after_it_and_is_refused_until_accepted(stands: World) -> None:
    found = plan(stands, batch="1")
    assert (repeated(found), refused(found)) == (4, [DUPLICATES])
    assert found.flows[0].start == StartAt("batch", generation=1, batch=1)
    assert (found.flows[0].generation, found.flows[0].next_generation, found.flows[0].previous) == (1, 2, 1)
    assert found.details == {"place": "batch 1 of generation 1", "put_back": []}
    assert refused(plan(stands, batch="1", accept=[DUPLICATES])) == []
    assert impact(found).then == "after batch 1 of generation 1: files log 1"
    assert "1 unread files will be read" in impact(found).notes


def test_a_rewind_to_the_last_batch_costs_nothing(stands: World) -> None:
    assert (repeated(plan(stands, batch="1/3")), refused(plan(stands, batch="3"))) == (0, [])


def test_a_table_that_is_put_back_gets_nothing_twice(stands: World) -> None:
    found = plan(stands, batch="1", target="restored")
    assert (repeated(found), refused(found)) == (0, [])
    path = stands.settings.table_path("events")
    assert found.details["put_back"] == [{"path": path, "version": 2, "newest": 4}]
    assert "4 rows are read and written again, into the restored table" in str(impact(found).notes)
    assert "restored from version 4 to version 2; batches undone: 2 of events.clean_events" in found.notes[0]


def test_a_rewind_to_positions_is_a_reset_to_them(stands: World) -> None:
    found = plan(stands, offsets={"events_raw": {"logOffset": 0}}, accept=[DUPLICATES])
    assert (repeated(found), found.flows[0].start.mode, found.details) == (6, "offsets", {"put_back": []})


def test_a_rewind_to_a_time_names_the_batch_that_it_found(stands: World) -> None:
    found = plan(stands, timestamp=datetime.now(timezone.utc).isoformat(), accept=[DUPLICATES])
    assert found.flows[0].start.batch == 3
    assert "its commit was written at" in found.flows[0].notes[0]


def test_a_flow_without_a_checkpoint_has_nothing_to_go_back_to(world: World) -> None:
    world.declare()
    with pytest.raises(RequestError, match="has no checkpoint yet"):
        plan(world, batch="1")


# --- what it needs


def test_state_that_is_there_is_copied_and_history_is_no_impact_then(world: World) -> None:
    start = world.processed(3, operators=("dedupe",))
    for version in (1, 2, 3):
        world.home.storage.overwrite(f"{start.checkpoint}/state/0/0/{version}.delta", b"x")
    world.files[0].unlink()
    found = plan(world, batch="1", target="restored")
    assert (found.flows[0].state, refused(found)) == (COPIED, [])


def test_state_that_is_gone_is_rebuilt_and_its_history_must_be_there(world: World) -> None:
    world.processed(3, operators=("dedupe",))
    found = plan(world, batch="1", target="restored")
    assert (found.flows[0].state, impact(found).replayed.rows) == (REBUILT, 4)
    world.files[0].unlink()
    assert refused(plan(world, batch="1", target="restored")) == [MISSING_HISTORY]


def test_a_state_is_not_copied_to_where_its_source_has_nothing_any_more(world: World, broker: Ask) -> None:
    broker(Topics({"orders": {"0": OffsetRange(8, 10), "1": OffsetRange(0, 3)}}, {}))
    world.committed(KAFKA, 1, {"orders": {"0": 9, "1": 3}}, {"orders": {"0": 0, "1": 0}}, topics={})
    folder, storage = world.home.checkpoint(1, 1), world.home.storage
    then = {"events_raw": {"orders": {"0": 6, "1": 3}}}
    entry = OffsetEntry(0, 2, 0, 1, {}, then, {"sourceMetadataInfo": {}})
    storage.overwrite(f"{folder}/offsets/0", write_offsets(entry))
    storage.overwrite(f"{folder}/commits/0", write_commit(CommitEntry(0, 1, 0)))
    found = plan(world, batch="0", target="restored")
    assert (found.flows[0].state, refused(found)) == (REBUILT, [DATA_LOSS])
    assert "a copied one would continue with data that events_raw no longer has" in notes(found)
    assert plan(world, batch="1").flows[0].state == COPIED


def test_files_that_are_gone_since_are_lost_where_the_table_is_put_back(stands: World) -> None:
    stands.files[3].unlink()
    found = plan(stands, batch="1", target="restored")
    assert refused(found) == [DATA_LOSS]
    assert impact(found).lost.files == 1
    assert refused(plan(stands, batch="1")) == [DUPLICATES]
    assert repeated(plan(stands, batch="1")) == 2


def test_files_of_the_version_that_vacuum_removed_refuse_the_rewind(stands: World) -> None:
    stands.commit({"remove": {"path": "part-0", "dataChange": False}}, operation="OPTIMIZE")
    found = plan(stands, batch="1", target="restored")
    assert refused(found) == [None]
    assert "VACUUM removed files that version 2 of " in found.refusals[0].message
    (stands.root / "warehouse" / "events" / "part-0").write_text("x")
    assert refused(plan(stands, batch="1", target="restored")) == []


def test_a_commit_of_nobodys_is_undone_only_with_a_yes(stands: World) -> None:
    stands.commit({"remove": {"path": "x"}}, operation="DELETE")
    (stands.root / "warehouse" / "events" / "x").write_text("x")
    found = plan(stands, batch="1", target="restored")
    assert refused(found) == [DATA_LOSS]
    assert "version 5 (DELETE)" in found.refusals[0].message
    assert refused(plan(stands, batch="1", target="restored", accept=[DATA_LOSS])) == []


def test_a_stream_that_reads_the_table_feels_that_it_is_put_back(stands: World) -> None:
    stands.declare(READER, "copies.py")
    found = plan(stands, batch="1", target="restored")
    assert refused(found) == ["downstream"]
    assert "copies.copy_events" in found.refusals[0].message
    assert refused(plan(stands, batch="1", target="restored", accept=["downstream"])) == []
    assert refused(plan(stands, batch="1")) == [DUPLICATES]


# --- several flows of one table


OTHER = """
dp.create_source("more", format="json", path="{data}/more", schema="event_id STRING, n INT", options={})
dp.create_auto_cdc_flow(name="other", target="events", source="more", keys=["event_id"], sequence_by="n")
"""


MORE = """
dp.create_source("more", format="json", path="{data}/more", schema="event_id STRING, n INT", options={})

@dp.append_flow(name="more_events", target="events", sources=["more"])
def more_events(more):
    return more
"""


@pytest.fixture
def shared(world: World) -> World:
    """AUTO CDC; the flow ``other`` wrote its batches 0 and 1 after batches 1 and 3 of the first, as versions
    3 and 6.
    """
    world.declare(CHANGES % "" + OTHER)
    world.processed(4, transactions=0)
    home = FlowHome(world.home.storage, "events", "other")
    fingerprint = read_manifest(world.settings).find("events.other").fingerprint
    decided = generations.decide(home, generations.first(home, fingerprint))
    folder, firsts = began(home, decided, []), world.home.checkpoint(1, 1)
    (world.root / "data" / "more").mkdir()
    for app, batch in ((1, 0), (1, 1), (2, 0), (1, 2), (1, 3), (2, 1)):
        world.commit(txn(batch, FLOW if app == 1 else "events.other"))
    for batch in (0, 1):
        for name in ("offsets", "commits", "sources/events_raw"):
            content = (home.storage.read(f"{firsts}/{name}/{batch}") or b"").replace(b"events_raw", b"more")
            to = f"{folder}/{name.replace('events_raw', 'more')}/{batch}"
            home.storage.overwrite(to, content.replace(b"/events/", b"/more/"))
        shutil.copy2(world.files[batch], world.root / "data" / "more")
    return world


def one_batch_more(shared: World) -> None:
    """The first flow has a batch 4, too, after all that the other one wrote."""
    shared.commit(txn(4))
    start = generations.read_start(shared.home, 1)
    assert start is not None
    for name in ("offsets", "commits", "sources/events_raw"):
        content = shared.home.storage.read(f"{start.checkpoint}/{name}/3")
        assert content is not None
        shared.home.storage.overwrite(
            f"{start.checkpoint}/{name}/4", content.replace(b'"logOffset":3', b'"logOffset":4')
        )


def test_a_flow_that_wrote_since_must_be_named(shared: World) -> None:
    found = plan(shared, batch="1", target="restored")
    assert refused(found) == [None]
    assert "events.other wrote 2 batches into events since version 2" in found.refusals[0].message
    found = plan(shared, batch="2", target="restored", along=["events.other"])
    assert refused(found) == []
    assert [(flow.flow, flow.start, flow.next_generation) for flow in found.flows] == [
        (FLOW, StartAt("batch", generation=1, batch=2), 2),
        ("events.other", StartAt("batch", generation=1, batch=0), 2),
    ]


def test_a_flow_that_had_written_nothing_then_begins_from_its_beginning(shared: World) -> None:
    found = plan(shared, batch="1", target="restored", along=["events.other"])
    assert found.flows[1].start == StartAt(EARLIEST)
    assert any("had written nothing at that version" in note for note in found.flows[1].notes)


def test_a_flow_that_has_written_nothing_since_is_only_held(shared: World) -> None:
    one_batch_more(shared)
    shared.commit(txn(FENCE))
    found = plan(shared, batch="4", target="restored")
    assert [(flow.flow, flow.next_generation) for flow in found.flows] == [(FLOW, 2), ("events.other", None)]


def test_a_flow_that_wrote_nothing_since_its_table_was_emptied_must_be_named(shared: World) -> None:
    """OffsetRange only, it would read again what the version that is put back has of it."""
    for name in (FLOW, "events.other"):
        shared.commit(txn(FENCE, name), operation="Manual Update")
    emptied = {"txn": {"appId": "r0/empty_tables", "version": 0}}
    shared.commit(emptied, {"remove": {"path": "x"}}, operation="DELETE")
    (shared.root / "warehouse" / "events" / "x").write_text("x")
    for home in (shared.home, FlowHome(shared.home.storage, "events", "other")):
        first = generations.read(home, 1)
        assert first is not None
        began(home, decide_second(home, replace(first, start=StartAt(EARLIEST), recovery="r0")), [])
    found = plan(shared, batch="1/3", target="restored")
    assert refused(found) == [None]
    assert "events.other" in found.refusals[0].message
    found = plan(shared, batch="1/3", target="restored", along=["events.other"])
    assert refused(found) == []
    assert [flow.start for flow in found.flows] == [
        StartAt("batch", generation=1, batch=3),
        StartAt("batch", generation=1, batch=0),
    ]


def test_a_table_by_key_that_is_kept_gets_nothing_twice_and_asks_nothing(shared: World) -> None:
    found = plan(shared, batch="1")
    assert ([flow.flow for flow in found.flows], repeated(found), refused(found)) == ([FLOW], 4, [])
    assert any("changes that are read again have no effect" in note for note in found.flows[0].notes)


def held(world: World, **values: Any) -> None:
    """Let a rewind be approved and decided."""
    approve(world, plan(world, batch="1", **values))
    carry_out(world, "hold", "plan_again", "decide")


def test_what_cannot_be_carried_out_any_more_under_the_hold_is_asked_about_nobody(shared: World) -> None:
    """The other flow writes while the approval waits: to undo its batch is an impact that nobody can
    accept.
    """
    one_batch_more(shared)
    approve(shared, plan(shared, batch="4", target="restored"))
    carry_out(shared, "hold")
    shared.commit(txn(2, "events.other"))
    with pytest.raises(
        PlanRefused, match=r"Nothing was changed:\nIt cannot be carried out: events\.other wrote 1 batches"
    ):
        carry_out(shared, "plan_again")
    assert engine.give_up(shared.settings, "events", "r1", "refused")
    assert (shared.home.generations(), shared.home.owners()) == ([1], [])


def test_a_flow_that_never_began_is_held_while_its_table_is_put_back(stands: World) -> None:
    """Its first batch would be undone, and its checkpoint would count it as done."""
    stands.declare(EVENTS + MORE)
    found = plan(stands, batch="1", target="restored")
    assert [(flow.flow, flow.next_generation) for flow in found.flows] == [
        (FLOW, 2),
        ("events.more_events", None),
    ]
    home = FlowHome(stands.home.storage, "events", "more_events")
    generations.decide(
        home, generations.first(home, read_manifest(stands.settings).find("events.more_events").fingerprint)
    )
    found = plan(stands, batch="1", target="restored")
    more = found.flows[1]
    assert (more.flow, more.generation, more.next_generation) == ("events.more_events", 1, None)
    assert any("It never started" in note for note in more.notes)


def test_no_spark_is_started_where_the_target_is_kept(stands: World) -> None:
    held(stands, accept=[DUPLICATES])
    found = engine.without_spark(stands.settings, "events", "r1", "put_back")
    assert found == {"tables": [], "note": "the target is kept as it is"}
    carry_out(stands, "put_back", "verify_files", "verify_tables", "release")
    assert stands.home.owners() == []


def test_a_step_without_anything_to_do_does_nothing_where_spark_is_started_for_it_all_the_same(
    stands: World,
) -> None:
    held(stands, accept=[DUPLICATES])

    def act(_name: str, _work: Work) -> dict[str, Any]:
        raise AssertionError("there is nothing to do")

    found = carry_out(stands, "put_back", in_spark=act)
    assert found == {"tables": [], "note": "the target is kept as it is"}


def test_spark_is_needed_where_it_is_put_back(stands: World) -> None:
    held(stands, target="restored")
    assert engine.without_spark(stands.settings, "events", "r1", "put_back") is None
    with pytest.raises(RecoveryError, match="needs Spark"):
        carry_out(stands, "put_back")


# --- from an earlier generation


def second_generation(world: World) -> None:
    """A second generation that went on after the first and read one file more."""
    first = generations.first(world.home, world.flow.fingerprint)
    decided = decide_second(world.home, replace(first, start=StartAt("after-last")))
    began(world.home, decided, [world.files[:-1], world.files[-1:]], seed=0)
    world.commit(txn(FENCE), operation="Manual Update")
    world.commit(txn(1, generation=2))


def test_a_reset_from_an_earlier_generation_repeats_what_came_since(stands: World) -> None:
    second_generation(stands)
    found = plan(stands, "reset_checkpoint", start="generation", generation=1)
    assert (repeated(found), refused(found), found.flows[0].state) == (2, [DUPLICATES], COPIED)
    assert found.flows[0].start == StartAt("batch", generation=1, batch=3)
    assert (found.flows[0].previous, found.flows[0].next_generation) == (2, 3)
    assert repeated(plan(stands, batch="1/0", accept=[DUPLICATES])) == 8


def test_a_rewind_across_generations_puts_the_table_back_to_where_that_one_was(stands: World) -> None:
    second_generation(stands)
    found = plan(stands, batch="1/2", target="restored")
    assert [back["version"] for back in found.details["put_back"]] == [3]
    found = plan(stands, batch="2/0", target="restored")
    assert [back["version"] for back in found.details["put_back"]] == [5]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "start is generation, but no generation is given"),
        ({"generation": 1.5}, "generation is 1.5; it must be a whole number, 1 or more"),
        ({"generation": 1, "start": "earliest"}, "generation is 1, but start is earliest"),
    ],
)
def test_a_generation_that_cannot_be_is_refused(values: dict[str, Any], said: str, stands: World) -> None:
    with pytest.raises(RequestError, match=said):
        plan(stands, "reset_checkpoint", **{"start": "generation", **values})


def test_a_generation_is_told_on_the_command_line_in_one_word() -> None:
    shorthand = kind("reset_checkpoint").request.shorthand
    assert shorthand({"start": "generation:3"}) == {"start": "generation", "generation": 3}
    assert shorthand({"start": "generation:x"}) == {"start": "generation", "generation": "x"}


# --- the form


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "none is given. Give exactly one target"),
        ({"batch": "1", "timestamp": "2026-11-21T10:00:00Z"}, "batch and timestamp are given"),
        ({"batch": "9" * 5000}, "batch is '9999"),
        ({"batch": "x"}, "batch is 'x'. Allowed is a batch such as 17, or one of a generation such as 2/17"),
        ({"timestamp": "2030-01-01T00:00:00Z"}, "lies in the future"),
        ({"offsets": {"other": 1}}, "offsets name other, which the flow does not read"),
        ({"offsets": {"events_raw": {"logOffset": 1}}, "target": "restored"}, "a position has no version"),
        ({"batch": "1", "along": ["events.clean_events"], "target": "restored"}, "which is the flow itself"),
        ({"batch": "1", "along": ["other.flow"], "target": "restored"}, "along is .*other.flow"),
        ({"batch": "1", "along": ["rates.clean_rates"], "target": "restored"}, "which does not write events"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], said: str, world: World) -> None:
    world.declare()
    world.declare(EVENTS.replace("events", "rates"), "rates.py")
    with pytest.raises(RequestError, match=said):
        RewindRequest.parse({"flow": FLOW, **values}, read_manifest(world.settings), "ada", NOW)


def test_a_rewind_is_kept_and_told_as_it_was_planned(stands: World) -> None:
    found = plan(stands, batch="1", target="restored")
    assert plans.as_stored(found) == found
    assert kind("rewind").read_request(found.request).to == StartAt("batch", batch=1)
    assert "put_back" in explain.as_text(found)
    assert "batch 1 of generation 1" in explain.as_text(found)
    assert past_versions.restored_by(str(stands.root / "warehouse" / "events"), "r1", 0) is None
    assert Path(found.details["put_back"][0]["path"]).name == "events"
