"""Which way out a plan advises is part of the plan: shown, printed and kept; it names the backups that are
there.
"""

from __future__ import annotations

import pytest

from streamkeeper.flows import ledger
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import reset_checkpoint
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.advice import RESET, TRADE_OFFS
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups
from tests.worlds.small_world import World
from tests.worlds.tables.backups import entry

FLOW = "events.clean_events"


def plan(world: World, start: str = "after-last") -> Plan:
    return engine.plan(world.settings, reset_checkpoint.KIND, ResetRequest((FLOW,), StartAt(start)), "r1")


@pytest.fixture
def parked(world: World) -> World:
    world.processed(3)
    world.add_files(1)
    world.park()
    return world


def test_what_is_advised_is_what_is_shown_printed_and_kept(parked: World) -> None:
    made = plan(parked)
    engine.propose(parked.settings, made)
    kept = engine.read_plan(parked.settings, "events", "r1")
    assert kept == made
    assert made.ways[0].startswith(f"Recommended for {FLOW}: {RESET}.")
    assert ledger.open(open_storage(parked.settings.state), "events", "r1").events()[0].evidence[
        "ways"
    ] == list(made.ways)
    assert made.ways[0] in explain.as_markdown(kept), "there is room for the one that fits"
    assert all(way in explain.as_text(kept) for way in made.ways)
    assert all(row[0] in explain.as_text(kept) for row in TRADE_OFFS[1:])


def test_a_rewind_is_named_where_there_is_a_batch_to_go_back_to(parked: World) -> None:
    assert (
        plan(parked).ways[-1]
        == "If rows since an earlier batch are wrong, `rewind` reads them again; the last batch is 2."
    )


def test_rows_that_are_lost_may_be_brought_in_by_a_backfill(parked: World) -> None:
    found = plan(parked, "latest").ways
    said = (
        "If the lost rows of events_raw exist elsewhere (files, a table, a topic), `backfill` can add them"
        " after the reset."
    )
    assert said in found
    assert said not in plan(parked).ways


def test_the_newest_backup_is_named(parked: World) -> None:
    storage = open_storage(parked.settings.state)
    for name, days in (("old", 9), ("new", 2)):
        backups.enter(storage, entry(name, days))
    said = next(way for way in plan(parked).ways if "backup" in way)
    assert said.startswith("The backup new of events was made at ")
    assert "`restore_table` restores it, and the flows" in said


def test_a_flow_that_is_not_parked_needs_no_way_out(world: World) -> None:
    world.processed(3)
    assert plan(world).ways == ()
