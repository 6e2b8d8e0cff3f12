"""Names of tables in the session catalog without Spark: what they declare, what plans know of a name, what a
catalog-managed table is refused for, and the list of tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from streamkeeper_jobs.catalog import registration
from streamkeeper_jobs.catalog.session_catalog import Entry, Field
from streamkeeper_jobs.recover import full_refresh
from streamkeeper_jobs.steps import perform
from typer.testing import CliRunner

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.cli.commands import app
from streamkeeper.declare.driver import CATALOG, HIVE
from streamkeeper.delta.protocol import CATALOG_MANAGED
from streamkeeper.errors import CatalogError, DeclarationError, RequestError, SourceError
from streamkeeper.flows import ledger
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest import named_tables
from streamkeeper.manifest.environment import opened, opened_flow, opened_if_possible
from streamkeeper.manifest.named_tables import columns_mark
from streamkeeper.recover.plans.kind import KINDS, Work, kind
from streamkeeper.sources.starts import starts_of
from streamkeeper.storage import open_storage
from streamkeeper.tables.by_path import check_by_path
from streamkeeper.tables.readers import readers
from streamkeeper.testing import PipelineTest
from tests.worlds.pipelines import TAIL, load
from tests.worlds.recover.recoveries import planned
from tests.worlds.small_world import EVENTS, READER, World, write_manifest

NAMED = EVENTS.replace('table("events")', 'table("events", registered_as="shop.events")')
BY_NAME = READER.replace('table="events"', 'registered_as="shop.events"')
COLUMNS = '{"type":"struct","fields":[]}'
CALLED = {
    "three parts": ('registered_as="lake.shop.t"', "the table t has registered_as='lake.shop.t'. Allowed"),
    "one part": ('registered_as="t"', "the table t has registered_as='t'. Allowed is `schema.table`"),
    "a comment of no text": (
        'registered_as="shop.t", schema={"id": 1}',
        "the table t has the schema {'id': 1}. Allowed is a dict of comments by column",
    ),
    "columns in DDL": (
        'registered_as="shop.t", schema="id INT"',
        "the table t has the schema 'id INT'. Allowed",
    ),
    "comments without a name": ('schema={"id": "a number"}', "comments of columns .* and no registered_as"),
}


@pytest.fixture
def declared(world: World) -> World:
    """A world with a table that has a name, and a flow that reads it by its name."""
    world.declare(NAMED)
    world.declare(BY_NAME, "reader.py")
    write_manifest(world.settings)
    return world


@pytest.mark.parametrize(("given", "message"), CALLED.values(), ids=CALLED.keys())
def test_what_cannot_be_a_name_is_refused_with_its_line(given: str, message: str, tmp_path: Path) -> None:
    text = 'dp.create_source("raw", format="json", path="/x")' + TAIL.replace('"t")', f'"t", {given})', 1)
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 3: .*{message}"):
        load(tmp_path, text)


def test_two_tables_have_no_name_in_common(tmp_path: Path) -> None:
    two = 'dp.create_streaming_table("a", registered_as="shop.T")\n' + TAIL.replace(
        '"t")', '"t", registered_as="SHOP.t")', 1
    )
    with pytest.raises(
        DeclarationError, match=r"line 4: the table t is registered_as 'SHOP.t', and so is .* a"
    ):
        load(tmp_path, two)


@pytest.mark.parametrize("text", [NAMED, BY_NAME])
def test_the_flows_of_names_have_the_catalog_that_others_see(text: str, tmp_path: Path) -> None:
    head = "from streamkeeper import pipelines as dp\n"
    assert [flow.spark_conf for flow in load(tmp_path, text).flows] == [{CATALOG: HIVE}]
    own = text.replace("append_flow(", f'append_flow(spark_conf={{"{CATALOG}": "in-memory"}}, ')
    assert [flow.spark_conf[CATALOG] for flow in load(tmp_path, own).flows] == ["in-memory"]
    assert load(tmp_path, head + EVENTS).flows[0].spark_conf == {}


def test_only_flows_with_names_have_that_catalog_unless_they_share_a_driver(tmp_path: Path) -> None:
    two = NAMED + NAMED.partition("dp\n\n")[2].replace("events", "others").replace("registered_as", "comment")

    def catalogs(text: str) -> list[str | None]:
        return [flow.spark_conf.get(CATALOG) for flow in load(tmp_path, text).flows]

    assert catalogs(two) == [HIVE, None]
    assert catalogs(two + "dp.configure_pipeline(shared_driver=True)\n") == [HIVE, HIVE]


def test_tests_of_a_pipeline_give_no_names(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(NAMED)
    world.enter(monkeypatch)
    tried = PipelineTest(world.settings.pipelines / "events.py", tmp_path / "a test", cast("Any", None))
    assert (world.settings.register_tables, tried.settings.register_tables) == (True, False)


# --- names after recoveries


def test_names_are_written_anew_after_each_spark_step_that_may_have_changed_tables() -> None:
    steps = {
        name: [
            step.name
            for step in kind(name).steps
            if step.needs_spark and kind(name).may_have_changed(step.name)
        ]
        for name in KINDS
    }
    assert {name: found for name, found in steps.items() if found} == {
        "backfill": ["fill"],
        "clean_up": ["forget_deletes"],
        "full_refresh": ["empty_tables"],
        "full_refresh_with_backup": ["empty_tables", "fill"],
        "rebuild_without_downtime": ["put_in_place"],
        "restore_table": ["put_back", "verify_rows"],
        "rewind": ["put_back"],
    }


class Catalog:
    """A session catalog in a dict; while it is ``down``, it answers nothing."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.down = False

    def look(self, name: str) -> Entry | None:
        if self.down:
            raise CatalogError(f"The session catalog was asked about {name} and answers: away.")
        return self.entries.get(name)

    def has_schema(self, _: str) -> bool:
        return True

    def create(self, name: str, path: str) -> None:
        self.entries[name] = Entry(path, "delta", (), None, {})

    def describe(self, name: str, comment: str | None, properties: dict[str, str]) -> None:
        self.entries[name] = replace(self.entries[name], comment=comment, properties=properties)

    def put_columns(self, name: str, columns: tuple[Field, ...]) -> None:
        self.entries[name] = replace(self.entries[name], columns=columns)


def test_a_recovery_writes_the_names_of_its_tables_and_goes_on_where_the_catalog_is_away(
    declared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, settings = Catalog(), declared.settings
    fields = [{"name": "event_id", "type": "string", "nullable": True, "metadata": {}}]
    metadata = {"schemaString": json.dumps({"fields": fields}), "configuration": {"delta.x": "1"}}
    monkeypatch.setattr(registration, "SessionCatalog", lambda _: catalog)
    monkeypatch.setattr(registration, "read_metadata", lambda *_: metadata)
    monkeypatch.setattr(full_refresh, "empty_tables", lambda *_: {"tables": []})
    declared.processed(1, transactions=1)
    plan = planned(declared, "full_refresh", table="events.events")
    book = ledger.open(open_storage(settings.state), "events", plan.recovery_id)
    work = Work(settings, plan, book, "empty_tables")
    act = str(kind("full_refresh").step("empty_tables").act)

    path = settings.table_path("events")

    def entry() -> Entry | None:
        assert perform(cast("Any", None), act, work) == {"tables": []}
        return catalog.entries.get("shop.events")

    assert entry() is None, "the first start gives a table its name"
    named_tables.note_registration(book.storage, "events", "shop.events", path, "older")
    catalog.down = True
    assert entry() is None
    (note,) = [one for one in events.read(book.storage, "events") if one.kind == Kind.NAME_STALE]
    assert "empty_tables: events: The session catalog was asked about shop.events" in note.text
    catalog.down = False
    made = entry()
    assert made is not None and made.columns == tuple(fields) and made.properties["delta.x"] == "1"
    fields.append({"name": "n", "type": "integer", "nullable": True, "metadata": {}})
    metadata["schemaString"] = json.dumps({"fields": fields})
    made = entry()
    assert made is not None and made.columns == tuple(fields)


OURS = ("s3a://lake/tables/events", "s3://lake/tables/events", "s3a://lake/tables/events/")
OTHERS = ("s3a://lake/tables/events2", "s3a://other/tables/events", "file:/tables/events", None)


@pytest.mark.parametrize("warehouse", ["s3://lake/tables", "s3a://lake/tables/"])
def test_an_entry_at_the_tables_own_place_on_s3_is_taken_over_however_others_spell_it(
    warehouse: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(NAMED)
    world.more["STREAMKEEPER_WAREHOUSE"] = warehouse
    catalog = Catalog()
    monkeypatch.setattr(registration, "SessionCatalog", lambda _: catalog)
    monkeypatch.setattr(registration, "read_metadata", lambda *_: {"schemaString": COLUMNS})
    table = write_manifest(world.settings).pipelines[0].table("events")
    assert table is not None

    def register(location: str | None) -> None:
        plain = None if location is None else plain_path(location)
        catalog.entries["shop.events"] = Entry(plain, "delta", (), "theirs", {})
        registration.register(cast("Any", None), world.settings, "events", table)

    storage, path = open_storage(world.settings.state), world.settings.table_path("events")
    named_tables.note_registration(storage, "events", "shop.before", path, "x")
    for location in OURS:
        register(location)
        assert catalog.entries["shop.events"].properties == {"streamkeeper.pipeline": "events"}
    for location in OTHERS:
        with pytest.raises(DeclarationError, match=r"Nothing was touched"):
            register(location)
        assert catalog.entries["shop.events"].comment == "theirs"
    known = named_tables.registration_of(storage, "events")
    assert known is not None and (known.name, known.location) == ("shop.events", path), "by its new name"


# --- sources by name


def test_a_name_leads_nowhere_until_a_driver_looked_it_up_and_then_to_its_table(declared: World) -> None:
    settings, manifest = declared.settings, write_manifest(declared.settings)
    (source,) = manifest.find("reader.copy_events").sources
    bare = opened(source, settings)
    with pytest.raises(
        SourceError, match=r"reads shop\.events of the session catalog, and no driver has looked"
    ):
        starts_of(bare).is_there(bare)
    path = settings.table_path("events")
    assert list(readers(settings, manifest, path)) == []
    named_tables.note_named_table(open_storage(settings.state), "Shop.Events", path, "an id")
    assert opened(source, settings).path == opened_if_possible(source, settings).path == path
    assert [flow.full_name for flow, _ in readers(settings, manifest, path)] == ["reader.copy_events"]
    named_tables.note_named_table(open_storage(settings.state), "shop.events", "s3://lake/events/", "an id")
    assert list(readers(settings, manifest, "s3a://lake/events")) != [], "on S3, however it is spelt"


# --- catalog-managed tables


def managed(world: World, table: str = "events", feature: str = CATALOG_MANAGED[0]) -> str:
    """Make a table whose newest commits its catalog alone would know."""
    log = Path(world.settings.table_path(table)) / "_delta_log"
    log.mkdir(parents=True)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [feature]}
    actions = (
        {"protocol": protocol},
        {"metaData": {"id": "t", "schemaString": COLUMNS, "configuration": {}}},
    )
    (log / f"{0:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(log.parent)


@pytest.mark.parametrize("feature", CATALOG_MANAGED)
def test_a_catalog_managed_target_is_refused_in_words(feature: str, world: World) -> None:
    flow = opened_flow(world.flow, world.settings)
    check_by_path(world.settings, flow)
    path = managed(world, feature=feature)
    said = rf"line 7: the table events: the Delta table at {path} is catalog-managed .table feature {feature}"
    with pytest.raises(DeclarationError, match=said):
        check_by_path(world.settings, flow)


def test_a_catalog_managed_source_is_refused_also_by_its_checksum(world: World) -> None:
    world.declare(READER, "reader.py")
    path = Path(managed(world))
    flow = write_manifest(world.settings).find("reader.copy_events")
    (path / "_delta_log" / f"{0:020d}.crc").write_text(json.dumps({"protocol": {"readerFeatures": ["x"]}}))
    check_by_path(world.settings, opened_flow(flow, world.settings))
    (path / "_delta_log" / f"{0:020d}.crc").write_text("damaged")
    with pytest.raises(
        DeclarationError, match=r"the source theirs: the Delta table at .* is catalog-managed"
    ):
        check_by_path(world.settings, opened_flow(flow, world.settings))


PLANS: dict[str, Callable[[World], dict[str, Any]]] = {
    "adopt": lambda _: {"checkpoint": "/old", "old_job_is_stopped": True},
    "backfill": lambda world: {
        "read": "files",
        "source": "events_raw",
        "path": str(world.root / "data" / "events"),
    },
}


@pytest.mark.parametrize("recovery", PLANS)
def test_no_recovery_is_planned_into_a_catalog_managed_table(recovery: str, world: World) -> None:
    managed(world)
    before = world.tree()
    with pytest.raises(DeclarationError, match=r"the table events: .* is catalog-managed"):
        planned(world, recovery, flow="events.clean_events", **PLANS[recovery](world))
    assert world.tree() == before


def test_a_backfill_reads_no_catalog_managed_table(world: World) -> None:
    world.processed(1, transactions=1)
    path = managed(world, "old")
    with pytest.raises(RequestError, match=f"the Delta table at {path} is catalog-managed"):
        planned(world, "backfill", flow="events.clean_events", read="table", source="events_raw", path=path)


# --- the list of tables


def test_tables_are_listed_with_the_state_of_their_names(
    declared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared.enter(monkeypatch)
    storage, path = open_storage(declared.settings.state), declared.settings.table_path("events")

    def row() -> dict[str, Any]:
        answer = CliRunner().invoke(app, ["tables", "--json"])
        assert answer.exit_code == 0, answer.output
        by_name = {item["table"]: item for item in json.loads(answer.output)}
        assert by_name.keys() == {"events", "copies"}
        assert (by_name["copies"]["registered_as"], by_name["copies"]["name_state"]) == (None, None)
        return dict(by_name["events"])

    assert row()["name_state"] == "not registered yet: the next start of its flow does it"
    declared.write_table(declared.query_id, 1)
    declared.summarize(COLUMNS)
    named_tables.note_registration(storage, "events", "shop.events", path, columns_mark(COLUMNS))
    found = row()
    assert (found["name_state"], found["path"], found["pipeline"]) == ("registered", path, "events")
    assert (found["flows"], found["size"]["version"]) == (["events.clean_events"], 1)
    declared.summarize('{"type":"struct","fields":[{"name":"a"}]}')
    assert row()["name_state"] == "registered with older columns until the next start of its flow"
    named_tables.note_registration(storage, "events", "shop.old", path, "x")
    assert row()["name_state"] == "registered as shop.old until the next start of its flow"
    table = CliRunner().invoke(app, ["tables"]).output
    assert "shop.events" in table and "clean_events" in table
