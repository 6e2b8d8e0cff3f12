"""Lineage as a server of OpenLineage receives it, checked by the schema that OpenLineage publishes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from jsonschema import ValidationError

from streamkeeper.flows import leases, ledger
from streamkeeper.flows.leases import Lease
from streamkeeper.health import lineage
from streamkeeper.health.lineage import Dataset, LineageFailed
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.storage import to_json
from tests.airflow.listeners import Inbox, webhook
from tests.worlds.metrics import openlineage_schema
from tests.worlds.metrics.driven import HERE
from tests.worlds.small_world import EVENTS, FILES, World, write_manifest

FLOW = "events.clean_events"
SCHEMA = '{"fields": [{"name": "event_id", "type": "string"}, {"name": "tags", "type": {"type": "array"}}]}'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    with webhook() as inbox:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{inbox.port}")
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
        yield inbox


def take_lease(world: World, epoch: int = 1, generation: int = 1) -> Lease:
    lease = Lease(epoch, HERE, generation, f"2026-01-01T00:0{epoch}:00+00:00")
    world.home.storage.create(world.home.lease(epoch), to_json(asdict(lease)))
    return lease


def look(world: World, server: Inbox) -> list[dict[str, Any]]:
    """Let the monitor tell what is new, and give what came: each event is one of the schema."""
    before = len(server.bodies)
    lineage.tell(world.settings, world.home.storage, read_manifest(world.settings))
    assert {*server.paths} <= {"/api/v1/lineage"}
    for event in server.bodies[before:]:
        openlineage_schema.check(event)
    return server.bodies[before:]


def states(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Give the state and the driver's epoch of each event."""
    return [(event["eventType"], event["run"]["facets"]["streamkeeper_driver"]["epoch"]) for event in events]


def test_a_driver_is_a_run_of_its_flow_with_what_it_reads_and_writes(world: World, server: Inbox) -> None:
    world.processed(1)
    world.summarize(SCHEMA)
    lease = take_lease(world)
    (start,) = look(world, server)
    assert (start["eventType"], start["eventTime"]) == ("START", lease.at)
    assert (start["job"]["namespace"], start["job"]["name"]) == ("shop", FLOW)
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [(one["namespace"], one["name"]) for one in start["inputs"]] == [
        ("file", f"{world.settings.data}/events")
    ]
    (output,) = start["outputs"]
    assert (output["namespace"], output["name"]) == ("file", world.settings.table_path("events"))
    assert output["facets"]["version"]["datasetVersion"] == "1"
    fields = output["facets"]["schema"]["fields"]
    assert [(one["name"], one["type"]) for one in fields] == [("event_id", "string"), ("tags", "array")]
    own = start["run"]["facets"]["streamkeeper_driver"]
    assert (own["generation"], own["epoch"], own["start"]) == (1, 1, "earliest")
    assert look(world, server) == [], "it was told"
    world.begin([[file] for file in world.add_files(2)], 2, 2)
    (running,) = look(world, server)
    leases.leave(world.home, lease, "held")
    (complete,) = look(world, server)
    assert states([running, complete]) == [("RUNNING", 1), ("COMPLETE", 1)]
    assert {event["run"]["runId"] for event in server.bodies} == {start["run"]["runId"]}
    assert look(world, server) == []


def test_drivers_that_failed_or_vanished_between_two_looks_are_told_too(world: World, server: Inbox) -> None:
    world.processed(1)
    first = take_lease(world)
    look(world, server)
    leases.note_failure(world.home, first, {"classed": "transient", "message": "no room on the disk"})
    take_lease(world, 2)
    take_lease(world, 3)
    events = look(world, server)
    assert states(events) == [("FAIL", 1), ("START", 2), ("ABORT", 2), ("START", 3)]
    assert "errorMessage" in events[0]["run"]["facets"] and events[2]["eventTime"].endswith("00:03:00+00:00")
    assert len({event["run"]["runId"] for event in server.bodies}) == 3


def test_a_recovery_is_a_run_of_its_own(world: World, server: Inbox) -> None:
    world.processed(1)
    request = {"by": "ada", "reason": "a wrong file"}
    plan = {"flows": [{"flow": FLOW}], "tables": ["events"], "request": request, "recovery": "rewind"}
    books = {}
    for name in ("rewind-old-0", "rewind-now-1", "full_refresh-now-2"):
        books[name] = ledger.open(world.home.storage, "events", name)
        books[name].record("planned", plan)
    books["rewind-old-0"].record("hold.started", {})
    books["rewind-old-0"].record("ended", {})
    assert look(world, server) == [], "planned, or past"
    for name in ("rewind-now-1", "full_refresh-now-2"):
        books[name].record("hold.started", {})
    assert [event["eventType"] for event in look(world, server)] == ["START", "START"]
    books["rewind-now-1"].record("ended", {})
    books["full_refresh-now-2"].record("given_up", {})
    ended, given_up = sorted(look(world, server), key=lambda event: event["eventType"], reverse=True)
    assert [(one["eventType"], one["job"]["name"]) for one in (ended, given_up)] == [
        ("COMPLETE", "events.rewind"),
        ("ABORT", "events.full_refresh"),
    ]
    facet = ended["run"]["facets"]["streamkeeper_recovery"]
    assert {name: facet[name] for name in ("kind", "id", "flows", "by", "reason")} == {
        "kind": "rewind",
        "id": "rewind-now-1",
        "flows": [FLOW],
        **request,
    }
    assert [one["name"] for one in ended["outputs"]] == [world.settings.table_path("events")]
    assert look(world, server) == []


KAFKA = 'format="kafka", options={"kafka.bootstrap.servers": %s, "subscribe": "orders,returns"}'
SOURCES = {
    "a topic": (KAFKA % '"b1:9092,b2:9092"', [("kafka://b1:9092", "orders"), ("kafka://b1:9092", "returns")]),
    "a broker that is not known here": (KAFKA % '"{env:ORDERS_BROKERS}"', []),
    "a bucket": (FILES.replace("{data}/events", "s3a://raw/in/events"), [("s3://raw", "in/events")]),
    "a table": ('format="delta", table="orders"', [("file", "{warehouse}/orders")]),
    "rates": ('format="rate"', []),
}


@pytest.mark.parametrize(("source", "names"), SOURCES.values(), ids=SOURCES)
def test_datasets_are_named_by_the_spec(source: str, names: list[tuple[str, str]], world: World) -> None:
    world.declare(EVENTS.replace(FILES, source))
    write_manifest(world.settings)
    flow = opened_flow(world.flow, world.settings, opened_if_possible)
    assert lineage.inputs_of(flow) == tuple(
        Dataset(namespace, name.replace("{warehouse}", world.settings.warehouse)) for namespace, name in names
    )


def test_what_a_server_did_not_take_is_told_when_it_does(world: World, server: Inbox) -> None:
    world.processed(1)
    leases.leave(world.home, take_lease(world), "held")
    server.answers = [(200, {}, b""), (400, {}, b"no")]
    with pytest.raises(LineageFailed, match=f"{FLOW} was not told to OpenLineage: 400"):
        look(world, server)
    assert states(look(world, server)) == [("START", 1), ("COMPLETE", 1)]
    assert len({event["run"]["runId"] for event in server.bodies}) == 1


def test_a_package_that_is_missing_is_named_with_what_to_install(
    world: World, server: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(LineageFailed, match=r"Install streamkeeper-airflow\[openlineage\]"):
        look(world, server)


def test_lineage_is_told_where_the_variables_ask_for_it() -> None:
    assert [
        lineage.is_wanted(environment)
        for environment in (
            {},
            {"OPENLINEAGE_URL": "http://x"},
            {"OPENLINEAGE__TRANSPORT__TYPE": "console"},
            {"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "True"},
            {"OPENLINEAGE_NAMESPACE": "shop"},
        )
    ] == [False, True, True, False, False]


def test_an_event_that_breaks_the_schema_is_found(world: World, server: Inbox) -> None:
    world.processed(1)
    take_lease(world)
    (event,) = look(world, server)
    for broken in ({"eventTime": "noon"}, {"eventType": "BEGIN"}, {"run": {"runId": "1"}}):
        with pytest.raises(ValidationError):
            openlineage_schema.check({**event, **broken})
