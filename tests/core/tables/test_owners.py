"""A flow that would add all that its sources have to rows that none of its pipeline's flows wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamkeeper.delta.log import FENCE
from streamkeeper.errors import RowsOfOthers
from streamkeeper.flows import backfill_flow, generations
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import ADOPTED, AFTER_LAST, EARLIEST, LATEST, REBUILT, Generation, StartAt
from streamkeeper.tables import owners
from streamkeeper.tables.past_versions import EMPTIED, PUT_BACK
from tests.worlds.small_world import CHANGES, EVENTS, World, write_manifest

OLD = "11111111-2222-3333-4444-555555555555"
OTHER_FLOW = """
@dp.append_flow(target="events", sources=["events_raw"])
def more_events(raw):
    return raw
"""
KEPT = EVENTS.replace(
    'create_streaming_table("events")', 'create_streaming_table("events", existing_rows="keep")'
)

Act = Callable[[World], Any]


def file(name: str, kind: str = "add", **more: Any) -> dict[str, Any]:
    return {kind: {"path": name, "dataChange": True, "stats": '{"numRecords": 2}', **more}}


def batch(query: str, number: int = 0) -> dict[str, Any]:
    return {"txn": {"appId": query, "version": number}}


def commit(*actions: dict[str, Any], operation: str = "WRITE") -> Act:
    return lambda world: world.commit(*actions, operation=operation)


def decide(mode: generations.StartMode, flow: str = "clean_events") -> Act:
    def act(world: World) -> None:
        home = FlowHome(world.home.storage, "events", flow)
        old = OLD if mode == ADOPTED else None
        generations.decide(
            home,
            Generation(
                1,
                None,
                StartAt(mode, query_id=old),
                REBUILT,
                home.query_id(1),
                "asked",
                "ada",
                "2026-11-21T10:00:00+00:00",
                "f",
            ),
        )

    return act


def forget_the_first_commit(world: World) -> None:
    world.version(0).unlink()


def owned(world: World) -> None:
    owners.claim(world.settings, "events", "events")


BACKFILL = backfill_flow.name_of("clean_events", "backfill-12345678")
CREATE = commit({"metaData": {"id": "t"}}, operation="CREATE TABLE")
STRANGE = commit(batch(OLD), file("a"), operation="STREAMING UPDATE")
FINE: dict[str, tuple[Act, ...]] = {
    "no table": (),
    "a table made by hand, without rows": (CREATE,),
    "rows that are gone again": (CREATE, STRANGE, commit(file("a", "remove"), operation="DELETE")),
    "an empty file": (commit(batch(OLD), file("a", stats='{"numRecords": 0}')),),
    "another flow's": (
        decide(EARLIEST, "more_events"),
        commit(batch(query_id("events.more_events", 1)), file("a")),
    ),
    "another flow's, and an insert since": (
        decide(EARLIEST, "more_events"),
        commit(batch(query_id("events.more_events", 1)), file("a")),
        commit(file("b")),
    ),
    "a flow's whose state folder is gone": (commit(batch(query_id("events.clean_events", 1)), file("a")),),
    "a backfill's": (decide(EARLIEST, BACKFILL), commit(batch(query_id(f"events.{BACKFILL}", 1)), file("a"))),
    "a restored backup": (STRANGE, commit(batch(f"r1{PUT_BACK}"), file("b"))),
    "emptied by a full refresh": (STRANGE, commit(batch(f"r1{EMPTIED}"), file("a", "remove"))),
    "an adoption that was decided": (STRANGE, decide(ADOPTED)),
    "a reset to a place of somebody's choice": (STRANGE, decide(LATEST)),
    "a table of the pipeline's, whose first commits are gone": (
        STRANGE,
        CREATE,
        owned,
        forget_the_first_commit,
    ),
}
PARKED: dict[str, tuple[tuple[Act, ...], str]] = {
    "a query's": ((CREATE, STRANGE), f"1 commit of the query {OLD}"),
    "a query's that is shut out": ((STRANGE, commit(batch(OLD, FENCE))), f"1 commit of the query {OLD}"),
    "a flow's that is only shut out": (
        (STRANGE, commit(batch(query_id("events.clean_events", 1), FENCE))),
        f"1 commit of the query {OLD}",
    ),
    "a batch job's": (
        (CREATE, commit(file("a")), commit(file("b"))),
        r"version 2 \(WRITE\); version 1 \(WRITE\)",
    ),
    "of which one file is left": (
        (commit(batch(OLD), file("a"), file("b")), commit(file("a", "remove"), operation="DELETE")),
        f"1 commit of the query {OLD}",
    ),
    "of which rows are marked as deleted": (
        (
            STRANGE,
            commit(
                file("a", "remove"),
                file("a", deletionVector={"storageType": "i", "pathOrInlineDv": "x", "cardinality": 1}),
                operation="DELETE",
            ),
        ),
        r"version 1 \(DELETE\)",
    ),
    "beside a backfill's": (
        (STRANGE, decide(EARLIEST, BACKFILL), commit(batch(query_id(f"events.{BACKFILL}", 1)), file("b"))),
        f"1 commit of the query {OLD}",
    ),
    "whose first commits are gone": (
        (STRANGE, CREATE, forget_the_first_commit),
        "its log starts at version 1",
    ),
    "before a reset that begins with all": ((STRANGE, decide(EARLIEST)), f"1 commit of the query {OLD}"),
    "before a reset of a flow that never ran": (
        (STRANGE, decide(AFTER_LAST)),
        f"1 commit of the query {OLD}",
    ),
    "in a table that is claimed": ((owned, STRANGE), f"1 commit of the query {OLD}"),
}


def ensure(world: World, text: str, acts: tuple[Act, ...]) -> None:
    world.declare(text)
    write_manifest(world.settings)
    for act in acts:
        act(world)
    owners.ensure(world.settings, world.home, world.flow)


@pytest.mark.parametrize("acts", FINE.values(), ids=FINE)
def test_a_flow_begins_where_nobody_else_has_rows(world: World, acts: tuple[Act, ...]) -> None:
    ensure(world, EVENTS + OTHER_FLOW, acts)
    assert owners.owner(world.home.storage, "events") == "events"


@pytest.mark.parametrize(("acts", "wrote"), PARKED.values(), ids=PARKED)
def test_a_flow_that_would_double_the_rows_of_others_does_not_begin(
    world: World, acts: tuple[Act, ...], wrote: str
) -> None:
    with pytest.raises(RowsOfOthers, match=rf"line \d+: the table events at .* \({wrote}") as error:
        ensure(world, EVENTS + OTHER_FLOW, acts)
    assert "stop that job and `adopt` its checkpoint" in str(error.value)
    assert "dp.create_streaming_table('events', existing_rows='keep')" in str(error.value)


@pytest.mark.parametrize(
    "text", [KEPT, CHANGES % ""], ids=["declared so", "by key, of which no row comes twice"]
)
def test_it_begins_beside_them(world: World, text: str) -> None:
    ensure(world, text, (STRANGE,))


def test_the_declared_word_changes_the_flow_and_so_lifts_its_park(world: World) -> None:
    found = []
    for text in (EVENTS, KEPT):
        world.declare(text)
        write_manifest(world.settings)
        found.append(world.flow.fingerprint)
    assert found[0] != found[1]
