"""Restores from a backup that is older than the batches which Spark keeps: the plan asks for all that the
driver would refuse later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.delta.history import offset_before
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.generations import BATCH, EARLIEST, OFFSETS, REBUILT, Start
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, MISSING_HISTORY, UNKNOWN_IMPACT
from streamkeeper.tables import backups
from streamkeeper.tables.flows_at_version import FlowAt
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import impact, notes, planned
from tests.worlds.small_world import CHANGES, EVENTS, World, write_manifest
from tests.worlds.sources import source_impacts
from tests.worlds.sources.source_impacts import DELTA, Ask, broker, table
from tests.worlds.tables.backups import entry
from tests.worlds.tables.delta_logs import ID, Table, add

__all__ = ["broker", "table"]

KAFKA = source_impacts.KAFKA.replace('"subscribe": "orders"', '"subscribePattern": "orders.*"')
RENAMED = EVENTS.replace('"events_raw"', '"events_new"')
KEPT: Offsets = {"orders": {"0": 6, "1": 3}}
NOW: Offsets = {"orders": {"0": 9, "1": 3}}
HELD = Topics({"orders": {"0": OffsetRange(0, 10), "1": OffsetRange(0, 3)}}, {"orders": "id-1"})


def kept(world: World, text: str, then: Any, now: Any, initial: Offsets | None = None) -> World:
    """Let a flow have committed two batches, back its table up after the first, and let Spark remove that one
    from the checkpoint.

    :param then: the offset of its source after the first batch, ``now`` after the second.
    """
    world.committed(text, 1, now, initial, topics={})
    enter(world, {"events_raw": then})
    return world


def enter(world: World, offsets: Mapping[str, Any]) -> None:
    """Enter a backup that was made after batch 0."""
    stood = FlowAt("events.clean_events", 1, 0, world.query_id, dict(offsets))
    backups.enter(world.home.storage, entry("b1", 1, flows=(stood,)))


def plan(world: World, **asked: Any) -> Plan:
    return planned(world, "restore_table", table="events.events", backup="b1", **asked)


def refused(world: World, **asked: Any) -> list[str | None]:
    return recoveries.refused(plan(world, **asked))


WIDER = Topics(
    {"orders": {**HELD.ranges["orders"], "2": OffsetRange(0, 5)}, "orders-2": {"0": OffsetRange(4, 9)}},
    HELD.ids,
)
EXPIRED = Topics({"orders": {"0": OffsetRange(8, 10), "1": OffsetRange(0, 3)}}, HELD.ids)


@pytest.mark.parametrize(
    ("held", "words", "said"),
    [
        pytest.param(HELD, [], "at most 4 unread records will be read", id="as it was"),
        pytest.param(
            WIDER, [], "new since then, and read from the first record: orders/2, orders-2", id="wider"
        ),
        pytest.param(
            EXPIRED, [DATA_LOSS], "orders/0 was read up to 6, and holds nothing before 8", id="expired"
        ),
    ],
)
def test_topics_that_changed_since_the_backup_are_told_and_what_is_gone_is_asked_for(
    held: Topics, words: list[str], said: str, *, world: World, broker: Ask
) -> None:
    broker(held)
    kept(world, KAFKA, KEPT, NOW, {"orders": {"0": 0, "1": 0}})
    [flow] = plan(world).flows
    assert (flow.start.mode, flow.start.generation, flow.start.offsets) == (OFFSETS, 1, {"events_raw": KEPT})
    assert any(said in note for note in flow.impacts[0].notes)
    assert refused(world) == words
    assert refused(world, accept=(DATA_LOSS,)) == []


def test_brokers_that_do_not_answer_leave_a_loss_possible_which_is_asked_for_before_the_table_is_replaced(
    world: World, broker: Ask
) -> None:
    asked = broker("b:1 does not answer within 5 s")
    kept(world, KAFKA, KEPT, NOW)
    made = plan(world)
    [refusal] = made.refusals
    said = "it is unknown whether all unread rows still exist: b:1 does not answer within 5 s"
    assert (refusal.impact, said in refusal.message) == (DATA_LOSS, True)
    assert "checks before it changes anything" not in str(impact(made).notes), "the table is replaced by then"
    assert refused(world, accept=(DATA_LOSS,)) == []
    assert len(asked) == 4, "each plan asks twice: for where it stood, and for where it stands"
    world.park(stateful=True)
    assert refused(world) == [DATA_LOSS, MISSING_HISTORY], "its state is made of what nobody can look at"
    assert refused(world, state="empty") == [DATA_LOSS, UNKNOWN_IMPACT]


def test_a_source_table_that_is_not_there_leaves_a_loss_possible(world: World) -> None:
    kept(world, DELTA, offset_before(ID, 1), offset_before(ID, 3))
    [refusal] = plan(world).refusals
    assert (refusal.impact, "there is no Delta table at" in refusal.message) == (DATA_LOSS, True)


def test_commits_that_were_cleaned_up_since_are_a_loss_and_no_state_is_rebuilt_up_to_the_rest(
    world: World, table: Table
) -> None:
    kept(world, DELTA, offset_before(ID, 1), offset_before(ID, 3))
    table.clean_up(2)
    assert refused(world) == [DATA_LOSS]
    world.park(stateful=True)
    [refusal] = plan(world, accept=(DATA_LOSS,)).refusals
    said = "the table of events_raw cannot be reconstructed at version 1"
    assert (refusal.impact, said in refusal.message) == (None, True)
    assert refused(world, accept=(DATA_LOSS,), state="empty") == [UNKNOWN_IMPACT]


def test_files_that_vacuum_took_of_the_version_that_a_state_is_rebuilt_from_block_the_plan(
    world: World, table: Table
) -> None:
    table.commit({"remove": {"path": "a0", "dataChange": False}}, add("a2", 2, dataChange=False))
    kept(world, DELTA, offset_before(ID, 2), offset_before(ID, 4))
    world.park(stateful=True)
    assert refused(world) == []
    (table.root / "a0").unlink()
    [refusal] = plan(world).refusals
    said = "VACUUM removed files that version 1 of the table of events_raw needs, such as a0"
    assert (refusal.impact, said in refusal.message) == (None, True)
    assert refused(world, state="empty") == [UNKNOWN_IMPACT]
    world.park(stateful=None)
    assert refused(world) == [], "whether the query keeps state is not known"
    assert "state cannot be rebuilt: VACUUM removed" in str(impact(plan(world)).notes)


def spark_removes_the_first_batch(world: World, start: Start) -> None:
    for name in ("offsets/0", "commits/0"):
        world.home.storage.remove(f"{start.checkpoint}/{name}")


def test_a_state_without_its_batchs_offsets_is_rebuilt_and_what_its_history_lacks_is_asked_for(
    world: World,
) -> None:
    start = world.processed(3, operators=("dedupe",))
    world.home.storage.create(f"{start.checkpoint}/state/0/0/1.delta", b"x")
    world.park(stateful=True)
    spark_removes_the_first_batch(world, start)
    enter(world, {"events_raw": {"logOffset": 0}})
    [flow] = plan(world).flows
    assert flow.state == REBUILT
    assert "Its state is rebuilt" in notes(plan(world))
    world.files[0].unlink()
    assert refused(world) == [MISSING_HISTORY]
    assert refused(world, accept=(MISSING_HISTORY,)) == []


def test_files_that_were_read_under_another_name_and_are_read_again_come_twice_and_are_asked_for(
    world: World,
) -> None:
    start = world.processed(3, per_batch=2)
    spark_removes_the_first_batch(world, start)
    enter(world, {"events_raw": {"logOffset": 0}})
    world.declare(RENAMED)
    write_manifest(world.settings)
    again = impact(plan(world)).repeated
    assert (again.files, again.rows) == (2, 4), "the two of the backup; later ones are not in the table"
    assert refused(world) == [DUPLICATES]


def test_offsets_whose_checkpoint_is_half_removed_are_no_place_to_go_on_from(world: World) -> None:
    start = world.processed(3)
    spark_removes_the_first_batch(world, start)
    enter(world, {"events_raw": {"logOffset": 0}})
    assert plan(world).flows[0].start.mode == OFFSETS
    generations.retire(world.home, 1, "clean_up-1")
    with pytest.raises(RequestError, match=r"The checkpoint of generation 1 of .* was removed"):
        plan(world)


def put_transactions(world: World, wrote: dict[str, int]) -> None:
    """Enter a backup whose copy has transactions of writers, and whose entry names no flow."""
    copy = World(world.root, table="b1")
    copy.commit(*({"txn": {"appId": writer, "version": last}} for writer, last in wrote.items()))
    target = replace(entry("b1").copy, path=copy.settings.table_path("b1"))
    backups.enter(world.home.storage, entry("b1", 1, copy=target, flows=()))


def test_a_flow_that_a_backup_does_not_name_and_has_rows_of_goes_on_after_its_batch_there(
    world: World,
) -> None:
    world.processed(3)
    put_transactions(world, {world.query_id: 1})
    [flow] = plan(world).flows
    assert (flow.start.mode, flow.start.generation, flow.start.batch) == (BATCH, 1, 1)
    assert refused(world) == []


@pytest.mark.parametrize("why", ["the batch is removed", "it was fenced in"])
def test_a_flow_whose_rows_a_backup_has_and_nobody_knows_up_to_where_comes_twice_and_is_asked_for(
    why: str, world: World
) -> None:
    start = world.processed(3)
    if why == "the batch is removed":
        spark_removes_the_first_batch(world, start)
    put_transactions(world, {world.query_id: FENCE if why == "it was fenced in" else 0})
    [refusal] = plan(world).refusals
    said = "the backup has rows of events.clean_events, which was not declared when it was made"
    assert (refusal.impact, said in refusal.message) == (DUPLICATES, True)
    found = plan(world, accept=(DUPLICATES,))
    assert (found.flows[0].start.mode, found.refusals) == (EARLIEST, ())
    assert "had written nothing" not in notes(found)


def test_a_table_by_key_takes_rows_that_a_backup_has_a_second_time(world: World) -> None:
    world.declare(CHANGES % "")
    world.processed(3)
    put_transactions(world, {world.query_id: FENCE})
    assert refused(world) == []


def test_a_flow_that_was_declared_after_a_backup_begins_with_all_that_its_sources_have(world: World) -> None:
    world.processed(3)
    put_transactions(world, {"another": 3})
    [flow] = plan(world).flows
    assert (flow.start.mode, refused(world)) == (EARLIEST, [])
