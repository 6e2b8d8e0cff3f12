"""What a plan counts of a table that a flow writes once more, by the table's log: also of batches that read
nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.support.amounts import DUPLICATES, UNKNOWN_IMPACT
from tests.worlds.recover.recoveries import FLOW, planned, refused
from tests.worlds.small_world import World
from tests.worlds.tables.delta_logs import add

WROTE = (3, 0, 114)
"""Rows that the three batches of ``stands`` wrote."""


@pytest.fixture
def stands(world: World) -> World:
    """Three batches of one file each, which wrote rows of other numbers than they read; a query that keeps
    state.
    """
    wrote(world, "stateStoreSave")
    return world


def wrote(world: World, *operators: str) -> None:
    """Let three batches of one file each have written ``WROTE``."""
    world.processed(3, operators=operators)
    for batch, rows in enumerate(WROTE):
        add_to(world, batch + 1, add(f"{batch}", rows))


def add_to(world: World, version: int, action: dict[str, Any]) -> None:
    with world.version(version).open("a") as file:
        file.write(json.dumps(action) + "\n")


def plan(world: World, of: str, **values: Any) -> Plan:
    return planned(world, of, flow=FLOW, **values)


def again(found: Plan) -> tuple[int | None, bool]:
    amount = found.flows[0].written_again
    assert amount is not None
    return amount.rows, amount.at_most


MOMENT = {"start": "timestamp", "timestamp": "2026-10-01T00:00:00Z"}
OFFSETS = {"start": "offsets", "offsets": {"events_raw": {"logOffset": 0}}}
STARTS: dict[str, tuple[str, dict[str, Any], tuple[int | None, bool]]] = {
    "a rewind": ("rewind", {"batch": "0"}, (114, True)),
    "a rewind to the last": ("rewind", {"batch": "2"}, (0, False)),
    "a rewind that puts the table back": ("rewind", {"batch": "0", "target": "restored"}, (0, False)),
    "after the last": ("reset_checkpoint", {}, (0, False)),
    "earliest": ("reset_checkpoint", {"start": "earliest"}, (117, False)),
    "latest": ("reset_checkpoint", {"start": "latest"}, (117, True)),
    "a timestamp": ("reset_checkpoint", MOMENT, (117, True)),
    "offsets": ("reset_checkpoint", OFFSETS, (117, True)),
}


@pytest.mark.parametrize(("of", "values", "rows"), STARTS.values(), ids=STARTS)
def test_what_comes_a_second_time_is_what_undone_batches_wrote(
    of: str, values: dict[str, Any], rows: tuple[int | None, bool], stands: World
) -> None:
    found = plan(stands, of, **values)
    assert again(found) == rows
    asked = [item for item in found.refusals if item.impact == DUPLICATES]
    assert bool(asked) == bool(rows[0])
    if rows[0]:
        assert f"{rows[0]} rows that it has" in asked[0].message
        assert f"{rows[0]} rows" in explain.as_text(found)
        assert f"{rows[0]} rows" in explain.as_markdown(found)
    assert plans.as_stored(found).flows[0].written_again == found.flows[0].written_again


def test_explicit_offsets_undo_the_batches_beyond_them_where_each_row_follows_from_one(world: World) -> None:
    wrote(world, "dedupe")
    assert again(plan(world, "reset_checkpoint", **OFFSETS)) == (114, True)
    assert again(plan(world, "reset_checkpoint", start="latest")) == (0, False)


@pytest.mark.parametrize("values", [{}, {"start": "latest"}, MOMENT], ids=str)
def test_what_a_query_forgot_that_only_leaves_rows_out_may_come_once_more(
    values: dict[str, Any], world: World
) -> None:
    wrote(world, "dedupe")
    found = plan(world, "reset_checkpoint", state="empty", **values)
    assert again(found) == (117, True)
    assert [cost for cost in refused(found) if cost in {DUPLICATES, UNKNOWN_IMPACT}] == [DUPLICATES]
    assert again(plan(world, "rewind", batch="1", state="empty")) == (117, True)


def test_a_query_that_keeps_state_nobody_knows_how_is_taken_for_one_that_collects_rows(world: World) -> None:
    wrote(world)
    world.park(stateful=True)
    assert again(plan(world, "reset_checkpoint", start="latest")) == (117, True)
    assert refused(plan(world, "reset_checkpoint", state="empty")) == [UNKNOWN_IMPACT]


def test_a_state_that_starts_empty_and_collects_rows_has_a_impact_that_is_not_known(stands: World) -> None:
    found = plan(stands, "reset_checkpoint", state="empty")
    assert refused(found) == [UNKNOWN_IMPACT]
    assert "the state starts empty" in found.refusals[0].message


def test_a_log_that_does_not_reach_back_makes_the_impact_unknown(stands: World) -> None:
    for version in range(2):
        stands.version(version).unlink()
    found = plan(stands, "reset_checkpoint", start="earliest")
    assert UNKNOWN_IMPACT in refused(found)
    assert "it starts at version 2 now" in str(found.flows[0].written_again)
    assert again(plan(stands, "rewind", batch="1")) == (114, True), "as far as this it does"


def test_files_without_statistics_make_the_impact_unknown(stands: World) -> None:
    add_to(stands, 3, add("bare", None))
    assert UNKNOWN_IMPACT in refused(plan(stands, "rewind", batch="1"))


def test_rows_that_others_took_away_make_the_number_a_bound(stands: World) -> None:
    assert again(plan(stands, "reset_checkpoint", start="earliest")) == (117, False)
    stands.commit({"remove": {"path": "2", "dataChange": True}}, operation="DELETE")
    assert again(plan(stands, "reset_checkpoint", start="earliest")) == (117, True)


def test_a_plan_whose_table_gets_more_a_second_time_got_worse(stands: World) -> None:
    accepted = plan(stands, "rewind", batch="1", accept=[DUPLICATES])
    add_to(stands, 3, add("more", 6))
    said = plans.worse(accepted, plan(stands, "rewind", batch="1", accept=[DUPLICATES]))
    assert said == ["table events: its duplicates went from at most 114 rows to at most 120 rows"]
