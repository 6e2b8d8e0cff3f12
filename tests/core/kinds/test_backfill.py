"""Planning a backfill and carrying it out as far as no Spark is needed: what it may be asked, what it costs,
what it leaves behind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.amounts import REPEATS
from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError, TableLocked
from streamkeeper.flows import backfill_flow, generations, ledger
from streamkeeper.flows.backfill_flow import is_backfill, name_of
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start, StartAt
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import backfill, full_refresh_with_backup
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.recover.requests.full_refresh import WithBackupRequest
from streamkeeper.recover.restart.backfill_source import Backup, Filters, derive, raw_source, spec_of_backup
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.tables import recovery_lock
from tests.worlds.small_world import CHANGES, EVENTS, World

FLOW = "events.clean_events"
KAFKA = """
from streamkeeper import pipelines as dp

dp.create_source(
    "orders_raw", format="kafka",
    options={"kafka.bootstrap.servers": "broker:1", "subscribe": "orders", "maxOffsetsPerTrigger": 7},
)
dp.create_source(
    "events_raw", format="json", path="{data}/events", schema="event_id STRING",
    options={"maxFilesPerTrigger": 3, "cleanSource": "delete", "latestFirst": True, "multiLine": True},
)
dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources=["orders_raw", "events_raw"])
def clean_events(orders, raw):
    return raw
"""

TWO_SOURCES = """
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{data}/events", schema="event_id STRING", options={})
dp.create_source("others", format="json", path="{data}/others", options={})
dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources=["events_raw", "others"])
def clean_events(raw, others):
    return raw
"""


def asked(world: World, **values: Any) -> BackfillRequest:
    return backfill.KIND.parse({"flow": FLOW, **values}, read_manifest(world.settings), "ada")


def plan(world: World, recovery: str = "r1", **values: Any) -> Plan:
    return engine.plan(world.settings, backfill.KIND, asked(world, **values), recovery)


@pytest.fixture
def stands(world: World) -> World:
    world.processed(3)
    world.add_files(2)
    return world


@pytest.fixture
def keyed(world: World) -> World:
    world.declare(CHANGES % "")
    world.processed(3)
    world.add_files(2)
    return world


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown source": ({"source": "other"}, "source is 'other'; events.clean_events reads events_raw"),
    "files without a path": ({"read": "files"}, "no path is given"),
    "a relative path": ({"read": "files", "path": "old"}, "neither absolute nor a URL"),
    "a path for the history": (
        {"path": "/x"},
        "path is '/x', but read is history. It goes with files and table",
    ),
    "a table and a path": ({"read": "table", "table": "t", "path": "/x"}, "both path and table are given"),
    "no table": ({"read": "table"}, "neither path nor table is given"),
    "its own table": ({"read": "table", "table": "events"}, "would be filled with its own rows"),
    "a backup with a source": ({"read": "backup", "source": "events_raw"}, "stand for no source"),
    "offsets of files": ({"from_offsets": {"a": {"0": 1}}}, "is no Kafka source but one of json"),
    "an empty predicate": ({"predicate": " "}, "predicate is an empty text"),
}


@pytest.mark.parametrize(("values", "said"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_with_what_does(world: World, values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match="nothing was changed") as refused:
        asked(world, **values)
    assert said in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(world: World) -> None:
    with pytest.raises(RequestError) as refused:
        asked(world, read="files", path="old", chunk=-1, predicate="")
    assert str(refused.value).count("\n- ") == 3


def test_offsets_of_kafka_are_checked(world: World) -> None:
    world.declare(KAFKA)
    good = asked(
        world, source="orders_raw", from_offsets={"orders": {"0": -2}}, to_offsets={"orders": {"0": 5}}
    )
    assert (good.from_offsets, good.to_offsets) == ({"orders": {"0": -2}}, {"orders": {"0": 5}})
    with pytest.raises(RequestError, match="to_offsets has no number for partition 0"):
        asked(world, source="orders_raw", to_offsets={"orders": {"0": -1}})
    with pytest.raises(RequestError, match=r"reads orders_raw, events_raw\. Name the one"):
        asked(world)


def test_a_table_by_key_costs_nothing_and_an_appended_one_asks_for_its_price(stands: World) -> None:
    found = plan(stands)
    assert [item.price for item in found.refusals] == [REPEATS]
    assert found.details["reads"]["files"] == 5
    assert found.details["reads"]["rows"] == 10
    assert not plan(stands, accept=[REPEATS]).refusals
    with pytest.raises(PlanRefused):
        shared_steps.check_accepted(found)


def test_a_plan_says_what_is_read_and_that_the_flow_runs_on(keyed: World, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "a.json").write_text('{"event_id": "a"}\n' * 4)
    found = plan(keyed, read="files", path=str(archive), predicate="n > 3")
    assert not found.refusals
    said = explain.as_text(found)
    for part in (
        "1 file, 72 B, at most 4 rows",
        "where n > 3",
        "keeps running",
        "updated by key and sequence",
    ):
        assert part in said
    assert plans.from_json(plans.to_json(found)) == found
    assert backfill.KIND.read_request(found.request) == asked(
        keyed, read="files", path=str(archive), predicate="n > 3"
    )


def test_what_is_not_there_is_said_before_anything_is_touched(stands: World) -> None:
    before = stands.tree()
    for values, said in (
        ({"read": "files", "path": str(stands.root / "nothing")}, "There is no file"),
        ({"read": "table", "table": "nothing"}, "There is no Delta table"),
        ({"read": "backup"}, "There is no backup 'newest'"),
    ):
        with pytest.raises(RequestError, match=said):
            plan(stands, accept=[REPEATS], **values)
    assert stands.tree() == before


def test_a_flow_without_a_table_has_nothing_to_fill(world: World) -> None:
    with pytest.raises(RequestError, match="is not there yet, so there is nothing to fill in"):
        plan(world)


def test_a_query_whose_rows_must_meet_one_another_is_refused(stands: World) -> None:
    start = generations.read_start(stands.home, 1)
    assert start is not None
    stands.home.storage.overwrite(
        stands.home.start(1), _json(replace(start, operators=("stateStoreSave", "dedupe")))
    )
    with pytest.raises(RequestError, match=r"keeps state \(stateStoreSave\)"):
        plan(stands)
    stands.home.storage.overwrite(stands.home.start(1), _json(replace(start, operators=("dedupe",))))
    assert plan(stands)


def test_results_of_a_state_are_not_filled_in(stands: World) -> None:
    stands.declare(EVENTS.replace("@dp.append_flow", "@dp.complete_flow"))
    with pytest.raises(RequestError, match="a flow in the mode complete: its rows are results of its whole"):
        plan(stands)
    with pytest.raises(RequestError, match="is replaced as a whole by each batch: a backup cannot be filled"):
        plan(stands, read="backup")


def test_another_source_without_a_schema_needs_the_one_that_the_flow_has_inferred(stands: World) -> None:
    stands.declare(TWO_SOURCES)
    with pytest.raises(
        RequestError, match=r"reads others too, without a declared schema.*Nothing was changed"
    ):
        plan(stands, source="events_raw")
    start = generations.read_start(stands.home, 1)
    assert start is not None
    stands.home.storage.overwrite(
        stands.home.start(1), _json(replace(start, schemas={"others": "event_id STRING"}))
    )
    assert plan(stands, source="events_raw").details["reads"]["files"] == 5


def test_the_source_is_read_in_chunks_of_its_own_and_nothing_of_it_is_removed(world: World) -> None:
    world.declare(KAFKA)
    flow = read_manifest(world.settings).find(FLOW)
    orders, files = flow.pipeline.sources
    raw = raw_source(files, BackfillRequest(FLOW, "history", "events_raw", chunk=2))
    assert raw.options == {"multiLine": "true", "maxFileAge": "36500d", "maxFilesPerTrigger": "2"}
    again = raw_source(
        orders, BackfillRequest(FLOW, "history", "orders_raw", from_offsets={"orders": {"0": 3}}, chunk=11)
    )
    assert (again.start, again.options["maxOffsetsPerTrigger"]) == ({"orders": {"0": 3}}, "11")
    elsewhere = raw_source(orders, BackfillRequest(FLOW, "table", "orders_raw", path="/old"))
    assert (elsewhere.format, elsewhere.path, elsewhere.options) == (
        "delta",
        "/old",
        {"maxFilesPerTrigger": "100"},
    )


def test_nothing_of_the_flows_other_sources_is_removed_or_listed(world: World) -> None:
    world.declare(KAFKA)
    flow = read_manifest(world.settings).find(FLOW)
    marks = Filters(lambda frame: "only", lambda frame: "none", lambda rows, deaths: "changes")
    derived = derive(flow, BackfillRequest(FLOW, "history", "orders_raw"), "backfill-1-0123abcd", marks)
    files = next(source for source in derived.pipeline.sources_of(derived.declaration) if source.reads_files)
    assert files.options == {"multiLine": "true", "pathGlobFilter": "_"}
    assert flow.pipeline.sources[1].options["cleanSource"] == "delete", "the flow's own source is as declared"
    derived = derive(flow, BackfillRequest(FLOW, "history", "events_raw"), "backfill-1-0123abcd", marks)
    orders = next(
        source for source in derived.pipeline.sources_of(derived.declaration) if source.format == "kafka"
    )
    assert orders.options == {"kafka.bootstrap.servers": "broker:1", "subscribe": "orders"}


def test_the_derived_flow_has_a_home_of_its_own_and_the_semantics_of_the_other(keyed: World) -> None:
    flow = read_manifest(keyed.settings).find(FLOW)
    marks = Filters(lambda frame: "only", lambda frame: "none", lambda rows, deaths: "changes")
    derived = derive(flow, asked(keyed), "backfill-1-0123abcd", marks)
    assert derived.name == name_of("clean_events", "backfill-1-0123abcd")
    assert is_backfill(derived.name)
    assert not is_backfill(flow.name)
    assert isinstance(derived.declaration, AutoCdcFlow)
    assert isinstance(flow.declaration, AutoCdcFlow)
    assert derived.declaration.spec == flow.declaration.spec
    assert (derived.declaration.once, derived.declaration.target) == (True, "events")
    view = derived.pipeline.view("events_raw")
    assert view is not None
    assert view.function is marks.only
    assert derived.pipeline.sources_of(derived.declaration)[0].name == view.sources[0]


def test_expectations_hold_for_rows_of_a_source_and_not_for_those_of_a_backup(keyed: World) -> None:
    keyed.declare((CHANGES % "").replace('table("events"', 'table("events", expect_all={"few": "n < 9"}'))
    flow = read_manifest(keyed.settings).find(FLOW)
    marks = Filters(lambda frame: "only", lambda frame: "none", lambda rows, deaths: "changes")
    again = derive(flow, asked(keyed), "backfill-1-0123abcd", marks)
    assert [item.name for item in again.declaration.expectations] == ["few"]
    request = BackfillRequest(FLOW, "backup", "events_raw")
    filled = derive(flow, request, "backfill-1-0123abcd", marks, Backup("/backups/1"))
    assert filled.declaration.expectations == ()


def test_a_backups_changes_may_have_the_sequences_that_a_literal_wrote_beside_several_columns(
    keyed: World,
) -> None:
    declared = read_manifest(keyed.settings).find(FLOW).declaration
    assert isinstance(declared, AutoCdcFlow)
    assert not declared.spec.parts_may_be_null
    assert spec_of_backup(declared.spec, 2).parts_may_be_null
    assert "parts_may_be_null" not in asdict(spec_of_backup(declared.spec, 2)), (
        "manifests and fingerprints are as before"
    )


def test_a_refresh_with_backup_is_refused_with_all_that_does_not_fit(keyed: World) -> None:
    manifest = read_manifest(keyed.settings)
    with pytest.raises(RequestError, match="The full refresh was not planned") as refused:
        WithBackupRequest.parse(
            {"table": "events", "fill_from": "backup", "infer_schemas": True, "keep_last": 0}, manifest, "ada"
        )
    for said in ("infer_schemas is given, but fill_from is backup", "keep_last is 0"):
        assert said in str(refused.value)
    keyed.declare(CHANGES % ", stored_as_scd_type=2")
    with pytest.raises(RequestError, match="SCD type 2, whose rows are versions and not changes"):
        WithBackupRequest.parse(
            {"table": "events", "fill_from": "backup"}, read_manifest(keyed.settings), "ada"
        )


def has_identity(world: World, explicit: bool) -> None:
    """Let the table have an identity column, as Delta writes it beside its newest commit."""
    log = world.root / "warehouse" / "events" / "_delta_log"
    metadata = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.allowExplicitInsert": explicit,
    }
    fields = [{"name": "event_id", "metadata": {}}, {"name": "number", "metadata": metadata}]
    summary = {
        "numFiles": 1,
        "tableSizeBytes": 1,
        "protocol": {},
        "metadata": {"schemaString": json.dumps({"fields": fields})},
    }
    (log / f"{max(log.glob('*.json')).stem}.crc").write_text(json.dumps(summary))


NUMBERED = (
    "has the column number, GENERATED ALWAYS AS IDENTITY.*Nothing was changed.*restore_table, which keeps"
    " the values"
)


def test_rows_of_a_backup_are_refused_by_a_table_that_numbers_its_rows_itself(stands: World) -> None:
    has_identity(stands, explicit=False)
    before = stands.tree()
    with pytest.raises(RequestError, match=NUMBERED):
        plan(stands, accept=[REPEATS], read="backup")
    values = {"table": "events", "fill_from": "backup"}
    request = WithBackupRequest.parse(values, read_manifest(stands.settings), "ada")
    with pytest.raises(RequestError, match=NUMBERED):
        engine.plan(stands.settings, full_refresh_with_backup.KIND, request, "r1")
    assert stands.tree() == before
    assert plan(stands, accept=[REPEATS]).details["reads"]["files"] == 5, "its sources fill it"
    assert engine.plan(
        stands.settings, full_refresh_with_backup.KIND, replace(request, fill_from="sources"), "r1"
    ).flows
    has_identity(stands, explicit=True)
    assert engine.plan(stands.settings, full_refresh_with_backup.KIND, request, "r1").flows, (
        "it takes rows with numbers of their own"
    )


# --- carrying it out


def begin(world: World, recovery: str = "r1") -> Work:
    made = plan(world, recovery)
    engine.propose(world.settings, made)
    engine.approve(world.settings, "events", recovery, "ada")
    engine.carry_out(world.settings, "events", recovery, "lock")
    return Work(world.settings, made, ledger.open(world.home.storage, "events", recovery), "fill")


def test_it_locks_the_table_and_holds_no_flow(keyed: World) -> None:
    begin(keyed)
    assert recovery_lock.holder(keyed.home.storage, "events", "events") == "r1"
    assert keyed.home.owners() == []
    with pytest.raises(TableLocked):
        plan(keyed, "r2")


def decided(work: Work) -> FlowHome:
    """Let the backfill's own flow decide its generation, as its driver does before it looks at anything."""
    work.book.record("fill.started", {})
    home = backfill.own_home(work)
    generations.decide(home, Generation(1, None, StartAt("earliest"), "rebuilt", "q", "", "", "then", "f"))
    return home


def test_one_that_was_decided_and_never_begun_has_changed_nothing_and_can_be_given_up(keyed: World) -> None:
    home = decided(begin(keyed))
    assert is_backfill(home.flow)
    assert engine.give_up(keyed.settings, "events", "r1", "the predicate has a typo")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") is None


def test_one_that_has_begun_can_only_be_run_on(keyed: World) -> None:
    home = decided(begin(keyed))
    generations.begin(home, Start(1, home.checkpoint(1, 1), None, {}, {}, (), None, 1, "then"))
    assert not engine.give_up(keyed.settings, "events", "r1", "changed my mind")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") == "r1"


def test_an_abandoned_one_is_held_and_whoever_empties_the_table_shuts_it_out(keyed: World) -> None:
    work = begin(keyed)
    home, storage = decided(work), keyed.home.storage
    generations.begin(home, Start(1, home.checkpoint(1, 1), None, {}, {}, (), None, 1, "then"))
    engine.abandon(keyed.settings, "events", "r1", "ada")
    assert home.owners() == ["recovery-r1"]
    assert [found.flow for found in backfill_flow.unfinished(storage, "events", "events", but="r2")] == [
        home.flow
    ]
    assert backfill_flow.unfinished(storage, "events", "events", but="r1") == [], "its own"
    assert backfill_flow.unfinished(storage, "events", "copies", but="r2") == [], "another table"
    generations.finish(home, 1, 4)
    assert backfill_flow.unfinished(storage, "events", "events", but="r2") == [], "it came to its end"


def test_one_that_never_started_leaves_no_hold(keyed: World) -> None:
    work = begin(keyed)
    assert engine.give_up(keyed.settings, "events", "r1", "changed my mind")
    assert backfill.own_home(work).owners() == []


def test_a_refresh_that_is_given_up_holds_its_fill_from_the_backup_alone(keyed: World) -> None:
    for recovery, fills in (("f1", "backup"), ("f2", "sources")):
        request = WithBackupRequest.parse(
            {"table": "events", "fill_from": fills}, read_manifest(keyed.settings), "ada"
        )
        made = engine.plan(keyed.settings, full_refresh_with_backup.KIND, request, recovery)
        engine.propose(keyed.settings, made)
        ledger.open(keyed.home.storage, "events", recovery).record("fill.started", {})
        engine.abandon(keyed.settings, "events", recovery, "ada")
        held = FlowHome(keyed.home.storage, "events", name_of("clean_events", recovery)).owners()
        assert held == (["recovery-f1"] if fills == "backup" else [])


def test_a_chunk_that_is_not_in_the_table_ends_it_loudly(keyed: World) -> None:
    work = begin(keyed)
    done = {"flow": "", "query_id": "", "done": True, "batch": 3}
    work.book.record("fill.done", {**done, "missing": "batch 3"})
    with pytest.raises(RecoveryError, match="lacks batch 3 of the backfill"):
        engine.carry_out(keyed.settings, "events", "r1", "verify")
    work.book.record("fill.done", {**done, "missing": None})
    assert engine.carry_out(keyed.settings, "events", "r1", "verify")["chunks"] == 4
    engine.carry_out(keyed.settings, "events", "r1", "unlock")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") is None
    assert not engine.is_open(keyed.settings, "events", "r1")


def _json(value: Any) -> bytes:
    from streamkeeper.storage import to_json

    return to_json(asdict(value))
