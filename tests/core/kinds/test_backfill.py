"""Planning a backfill and carrying it out as far as no Spark is needed: what it may be asked, what it costs,
what it leaves behind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError, TableLocked
from streamkeeper.flows import backfill_flow, generations, ledger
from streamkeeper.flows.backfill_flow import is_backfill, name_of
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Start
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import backfill
from streamkeeper.recover.moves.backfill_source import Backup, Filters, derive, raw_source, spec_of_backup
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.sources.files.options import EVER
from streamkeeper.storage import to_json
from streamkeeper.support.amounts import DUPLICATES
from streamkeeper.tables import recovery_lock
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import FLOW, approve, carry_out, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, World

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
    found: BackfillRequest = recoveries.asked(world, "backfill", flow=FLOW, **values)
    return found


def plan(world: World, recovery: str = "r1", **values: Any) -> Plan:
    return planned(world, "backfill", recovery, flow=FLOW, **values)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown source": ({"source": "other"}, "source is 'other'; events.clean_events reads events_raw"),
    "files without a path": ({"read": "files"}, "no path is given"),
    "a relative path": ({"read": "files", "path": "old"}, "neither absolute nor a URL"),
    **{
        f"an address of {place[:4]}": (
            {"read": "files", "path": place},
            "nor the URL of a store. Allowed are",
        )
        for place in ("http://127.0.0.1:9/x", "zip://x::file:///etc/passwd", "github://a:b@main/x")
    },
    "a path for the history": (
        {"path": "/x"},
        "path is '/x', but read is history. It goes with files and table",
    ),
    "a table and a path": ({"read": "table", "table": "t", "path": "/x"}, "both path and table are given"),
    "no table": ({"read": "table"}, "neither path nor table is given"),
    "its own table": ({"read": "table", "table": "events"}, "would be filled with its own rows"),
    "a backup with a source": ({"read": "backup", "source": "events_raw"}, "stand for no source"),
    "offsets of files": ({"from_offsets": {"a": {"0": 1}}}, "is no Kafka source but one of json"),
    "versions of files": ({"from_version": 1, "to_version": 2}, "is no Delta source but one of json"),
    "a predicate that calls the JVM": ({"predicate": "reflect('a', 'b') = 1"}, "calls into the JVM"),
    "a sub-query": ({"predicate": "id in (select id from other)"}, "has a sub-query"),
    "an empty predicate": ({"predicate": " "}, "predicate is an empty text"),
}


@pytest.mark.parametrize(("values", "said"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_with_what_does(world: World, values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match="nothing was changed") as refused:
        asked(world, **values)
    assert said in str(refused.value)


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


def test_a_table_by_key_costs_nothing_and_an_appended_one_asks_for_its_impact(stands: World) -> None:
    found = plan(stands)
    assert refused(found) == [DUPLICATES]
    assert found.details["reads"]["files"] == 5
    assert found.details["reads"]["rows"] == 10
    assert not plan(stands, accept=[DUPLICATES]).refusals
    with pytest.raises(PlanRefused):
        shared_steps.check_accepted(found)


def test_a_plan_says_what_is_read_and_that_the_flow_runs_on(keyed: World, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "a.json").write_text('{"event_id": "a"}\n' * 4)
    found = plan(keyed, read="files", path=str(archive), predicate="n > 3")
    assert not found.refusals
    said = explain.as_text(found)
    for part in ("1 file, 72 B, at most 4 rows", "where n > 3", "keeps running", "updated by key and"):
        assert part in said
    again = asked(keyed, read="files", path=str(archive), predicate="n > 3")
    assert backfill.KIND.read_request(found.request) == again


def test_what_is_not_there_is_said_before_anything_is_touched(stands: World) -> None:
    for values, said in (
        ({"read": "files", "path": str(stands.root / "nothing")}, "There is no file"),
        ({"read": "table", "table": "nothing"}, "There is no Delta table"),
        ({"read": "backup"}, "There is no backup 'newest'"),
    ):
        with pytest.raises(RequestError, match=said):
            plan(stands, accept=[DUPLICATES], **values)


def test_a_backfill_reads_below_the_allowed_roots_alone(
    stands: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("allowed", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text("{}")
    with pytest.raises(RequestError, match="a view of processes"):
        plan(stands, read="files", path="/proc/self")
    settings = replace(stands.settings, allowed_roots=(str(tmp_path / "allowed"),))
    monkeypatch.setattr(World, "settings", settings)
    assert plan(stands, read="files", path=str(tmp_path / "allowed")).request["path"]
    with pytest.raises(RequestError, match=r"other lies in none of the folders that may be used: .*allowed"):
        plan(stands, read="files", path=str(tmp_path / "other"))


def test_a_flow_without_a_table_has_nothing_to_fill(world: World) -> None:
    with pytest.raises(RequestError, match="is not there yet, so there is nothing to fill in"):
        plan(world)


def began_with(world: World, **changed: Any) -> None:
    """Let the first generation have begun with something else."""
    start = asdict(generations.read_start(world.home, 1) or pytest.fail())
    world.home.storage.overwrite(world.home.start(1), to_json({**start, **changed}))


def test_a_query_whose_rows_must_meet_one_another_is_refused(stands: World) -> None:
    began_with(stands, operators=("stateStoreSave", "dedupe"))
    with pytest.raises(RequestError, match=r"keeps state \(stateStoreSave\)"):
        plan(stands)
    began_with(stands, operators=("dedupe",))
    assert plan(stands)


def test_a_table_that_each_batch_replaces_is_not_filled_from_a_backup(stands: World) -> None:
    stands.declare(EVENTS.replace("@dp.append_flow", "@dp.complete_flow"))
    with pytest.raises(RequestError, match="is replaced as a whole by each batch: a backup cannot be filled"):
        plan(stands, read="backup")


def test_another_source_without_a_schema_needs_the_one_that_the_flow_has_inferred(stands: World) -> None:
    stands.declare(TWO_SOURCES)
    with pytest.raises(
        RequestError, match=r"reads others too, without a declared schema.*Nothing was changed"
    ):
        plan(stands, source="events_raw")
    began_with(stands, schemas={"others": "event_id STRING"})
    assert plan(stands, source="events_raw").details["reads"]["files"] == 5


def test_the_source_is_read_in_chunks_of_its_own_and_nothing_of_it_is_removed(world: World) -> None:
    world.declare(KAFKA)
    flow = read_manifest(world.settings).find(FLOW)
    orders, files = flow.pipeline.sources
    raw = raw_source(files, BackfillRequest(FLOW, "history", "events_raw", chunk=2))
    assert raw.options == {"multiLine": "true", "maxFileAge": EVER, "maxFilesPerTrigger": "2"}
    again = raw_source(
        orders, BackfillRequest(FLOW, "history", "orders_raw", from_offsets={"orders": {"0": 3}}, chunk=11)
    )
    assert (again.start, again.options["maxOffsetsPerTrigger"]) == ({"orders": {"0": 3}}, "11")
    elsewhere = raw_source(orders, BackfillRequest(FLOW, "table", "orders_raw", path="/old"))
    assert (elsewhere.format, elsewhere.path) == ("delta", "/old")
    assert elsewhere.options == {"maxFilesPerTrigger": "100"}


MARKS = Filters(lambda frame: "only", lambda frame: "none", lambda rows, deaths: "changes")


def derived(flow: Flow, request: BackfillRequest, backup: Backup | None = None) -> Flow:
    return derive(flow, request, "backfill-1-0123abcd", MARKS, backup)


def test_nothing_of_the_flows_other_sources_is_removed_or_listed(world: World) -> None:
    world.declare(KAFKA)
    flow = read_manifest(world.settings).find(FLOW)
    made = derived(flow, BackfillRequest(FLOW, "history", "orders_raw"))
    [files] = [source for source in made.pipeline.sources_of(made.declaration) if source.reads_files]
    assert files.options == {"multiLine": "true", "pathGlobFilter": "_"}
    assert flow.pipeline.sources[1].options["cleanSource"] == "delete", "the flow's own source is as declared"
    made = derived(flow, BackfillRequest(FLOW, "history", "events_raw"))
    [orders] = [item for item in made.pipeline.sources_of(made.declaration) if item.format == "kafka"]
    assert orders.options == {"kafka.bootstrap.servers": "broker:1", "subscribe": "orders"}


def test_the_derived_flow_has_a_home_of_its_own_and_the_semantics_of_the_other(keyed: World) -> None:
    flow = read_manifest(keyed.settings).find(FLOW)
    made = derived(flow, asked(keyed))
    assert made.name == name_of("clean_events", "backfill-1-0123abcd")
    assert (is_backfill(made.name), is_backfill(flow.name)) == (True, False)
    assert isinstance(made.declaration, AutoCdcFlow)
    assert made.declaration.spec == flow.declaration.spec
    assert (made.declaration.once, made.declaration.target) == (True, "events")
    view = made.pipeline.view("events_raw")
    assert view is not None and view.function is MARKS.only
    assert made.pipeline.sources_of(made.declaration)[0].name == view.sources[0]


def test_expectations_hold_for_rows_of_a_source_and_not_for_those_of_a_backup(keyed: World) -> None:
    keyed.declare((CHANGES % "").replace('table("events"', 'table("events", expect_all={"few": "n < 9"}'))
    flow = read_manifest(keyed.settings).find(FLOW)
    assert [item.name for item in derived(flow, asked(keyed)).declaration.expectations] == ["few"]
    filled = derived(flow, BackfillRequest(FLOW, "backup", "events_raw"), Backup("/backups/1"))
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


def refresh(world: World, recovery: str = "r1", **values: Any) -> Plan:
    asked = {"table": "events", "fill_from": "backup", **values}
    return planned(world, "full_refresh_with_backup", recovery, **asked)


def test_a_refresh_with_backup_is_refused_with_all_that_does_not_fit(keyed: World) -> None:
    with pytest.raises(RequestError, match="The full refresh was not planned") as refused:
        refresh(keyed, infer_schemas=True, keep_last=0)
    for said in ("infer_schemas is given, but fill_from is backup", "keep_last is 0"):
        assert said in str(refused.value)
    keyed.declare(CHANGES % ", stored_as_scd_type=2")
    with pytest.raises(RequestError, match="SCD type 2, whose rows are versions and not changes"):
        refresh(keyed)


def has_identity(world: World, explicit: bool) -> None:
    """Let the table have an identity column, as Delta writes it beside its newest commit."""
    metadata = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.allowExplicitInsert": explicit,
    }
    fields = [{"name": "event_id", "metadata": {}}, {"name": "number", "metadata": metadata}]
    world.summarize(json.dumps({"fields": fields}))


NUMBERED = (
    "has the column number, GENERATED ALWAYS AS IDENTITY.*Nothing was changed.*restore_table, which keeps"
    " the values"
)


def test_rows_of_a_backup_are_refused_by_a_table_that_numbers_its_rows_itself(stands: World) -> None:
    has_identity(stands, explicit=False)
    with pytest.raises(RequestError, match=NUMBERED):
        plan(stands, accept=[DUPLICATES], read="backup")
    with pytest.raises(RequestError, match=NUMBERED):
        refresh(stands)
    assert plan(stands, accept=[DUPLICATES]).details["reads"]["files"] == 5, "its sources fill it"
    assert refresh(stands, fill_from="sources").flows
    has_identity(stands, explicit=True)
    assert refresh(stands).flows, "it takes rows with numbers of their own"


# --- carrying it out


def begin(world: World, recovery: str = "r1") -> Work:
    made = approve(world, plan(world, recovery))
    carry_out(world, "lock", recovery=recovery)
    return Work(world.settings, made, ledger.open(world.home.storage, "events", recovery), "fill")


def test_it_locks_the_table_and_holds_no_flow(keyed: World) -> None:
    begin(keyed)
    assert recovery_lock.holder(keyed.home.storage, "events", "events") == "r1"
    assert keyed.home.owners() == []
    with pytest.raises(TableLocked):
        plan(keyed, "r2")


def decided(work: Work, begun: bool = False) -> FlowHome:
    """Let the backfill's own flow decide its generation, as its driver does before it looks at anything, and
    begin it.
    """
    work.book.record("fill.started", {})
    home = backfill.own_home(work)
    generations.decide(home, generations.first(home, "f"))
    if begun:
        generations.begin(
            home, Start(1, home.checkpoint(1, 1), None, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00")
        )
    return home


def test_one_that_was_decided_and_never_begun_has_changed_nothing_and_can_be_given_up(keyed: World) -> None:
    home = decided(begin(keyed))
    assert is_backfill(home.flow)
    assert engine.give_up(keyed.settings, "events", "r1", "the predicate has a typo")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") is None


def test_one_that_has_begun_can_only_be_run_on(keyed: World) -> None:
    decided(begin(keyed), begun=True)
    assert not engine.give_up(keyed.settings, "events", "r1", "changed my mind")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") == "r1"


def test_an_abandoned_one_is_held_and_whoever_empties_the_table_shuts_it_out(keyed: World) -> None:
    work = begin(keyed)
    home, storage = decided(work, begun=True), keyed.home.storage
    engine.abandon(keyed.settings, "events", "r1", "ada")
    assert home.owners() == ["recovery-r1"]
    [left] = backfill_flow.unfinished(storage, "events", "events", but="r2")
    assert left.flow == home.flow
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
        engine.propose(keyed.settings, refresh(keyed, recovery, fill_from=fills))
        ledger.open(keyed.home.storage, "events", recovery).record("fill.started", {})
        engine.abandon(keyed.settings, "events", recovery, "ada")
        held = FlowHome(keyed.home.storage, "events", name_of("clean_events", recovery)).owners()
        assert held == (["recovery-f1"] if fills == "backup" else [])


def test_a_chunk_that_is_not_in_the_table_ends_it_loudly(keyed: World) -> None:
    work = begin(keyed)
    done = {"flow": "", "query_id": "", "done": True, "batch": 3}
    work.book.record("fill.done", {**done, "missing": "batch 3"})
    with pytest.raises(RecoveryError, match="lacks batch 3 of the backfill"):
        carry_out(keyed, "verify")
    work.book.record("fill.done", {**done, "missing": None})
    assert carry_out(keyed, "verify")["chunks"] == 4
    carry_out(keyed, "unlock")
    assert recovery_lock.holder(keyed.home.storage, "events", "events") is None
    assert not engine.is_open(keyed.settings, "events", "r1")
