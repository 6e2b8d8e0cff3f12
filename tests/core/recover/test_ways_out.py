"""Which way out a plan advises is part of the plan: shown, printed and kept; it names the backups that are
there.
"""

from __future__ import annotations

import pytest

from streamkeeper.flows import ledger
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.advice import RESET, TRADE_OFFS
from streamkeeper.tables import backups
from tests.worlds.recover.recoveries import FLOW
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import World
from tests.worlds.tables.backups import entry


@pytest.fixture
def parked(stands: World) -> World:
    stands.park()
    return stands


def test_what_is_advised_is_what_is_shown_printed_and_kept(parked: World) -> None:
    made = plan(parked)
    engine.propose(parked.settings, made)
    kept = engine.read_plan(parked.settings, "events", "r1")
    assert kept == made
    assert made.ways[0].startswith(f"Recommended for {FLOW}: {RESET}.")
    [planned] = ledger.open(parked.home.storage, "events", "r1").events()
    assert planned.evidence["ways"] == list(made.ways)
    assert made.ways[0] in explain.as_markdown(kept), "there is room for the one that fits"
    assert all(way in explain.as_text(kept) for way in made.ways)
    assert all(row[0] in explain.as_text(kept) for row in TRADE_OFFS[1:])


def test_a_rewind_is_named_where_there_is_a_batch_to_go_back_to(parked: World) -> None:
    said = "If rows since an earlier batch are wrong, `rewind` reads them again; the last batch is 2."
    assert plan(parked).ways[-1] == said


def test_rows_that_are_lost_may_be_brought_in_by_a_backfill(parked: World) -> None:
    said = "If the lost rows of events_raw exist elsewhere (files, a table, a topic), `backfill` can add them"
    assert f"{said} after the reset." in plan(parked, "latest").ways
    assert "`backfill`" not in str(plan(parked).ways)


def test_the_newest_backup_is_named(parked: World) -> None:
    for name, days in (("old", 9), ("new", 2)):
        backups.enter(parked.home.storage, entry(name, days))
    said = next(way for way in plan(parked).ways if "backup" in way)
    assert said.startswith("The backup new of events was made at ")
    assert "`restore_table` restores it, and the flows" in said


def test_a_flow_that_is_not_parked_needs_no_way_out(world: World) -> None:
    world.processed(3)
    assert plan(world).ways == ()
