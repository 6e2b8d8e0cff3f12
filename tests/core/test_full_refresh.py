"""Planning a full refresh: what is read again, what is lost for good, who feels it; planning changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamkeeper import emptied, recoveries
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.full_refresh import KIND, RefreshRequest, parse_refresh
from streamkeeper.full_refresh_beside import KIND as BESIDE
from streamkeeper.manifest import read_manifest
from streamkeeper.plans import Plan
from streamkeeper.recovery_kinds import Kind
from streamkeeper.refresh_with_backup import KIND as WITH_BACKUP
from streamkeeper.requests import DOWNSTREAM, LOSS, UNKNOWN_PRICE
from tests.core.small_world import CHANGES, EVENTS, World
from tests.core.test_recovery_engine import SEVERAL, of

READER = """
from streamkeeper import pipelines as dp

dp.create_source("their_events", format="delta", table="events"%s)
dp.create_streaming_table("after")

@dp.append_flow(name="after_events", target="after", sources=["their_events"])
def after_events(raw):
    return raw
"""


@pytest.fixture
def stands(world: World) -> World:
    """Three batches of one file (two rows each) are done, two files wait."""
    world.processed(3)
    world.add_files(2)
    return world


def plan(world: World, *accept: str) -> Plan:
    world.flow  # noqa: B018  # makes the manifest, which is no change of the flow
    before = world.tree()
    try:
        return recoveries.plan(world.settings, KIND, RefreshRequest("events.events", accept, by="ada"), "r1")
    finally:
        assert world.tree() == before


def refused(found: Plan) -> list[str | None]:
    return [item.price for item in found.refusals]


def test_what_the_sources_still_have_is_read_again_and_costs_nothing(stands: World) -> None:
    found = plan(stands)
    (flow,) = found.flows
    assert (flow.start.mode, flow.generation, flow.next_generation, refused(found)) == ("earliest", 1, 2, [])
    assert (flow.prices[0].lost.rows, flow.prices[0].repeated.rows) == (0, 0)
    assert flow.prices[0].notes[0] == "3 files, 120 B, 6 rows of what was read before are read again"
    assert (found.tables, found.details["paths"]) == (("events",), [stands.settings.table_path("events")])
    assert "is at version 3: until VACUUM takes its files it can be put back by restore_table." in " ".join(found.notes)


def test_a_table_that_takes_appends_only_is_refused_before_anybody_is_asked(stands: World) -> None:
    metadata = {"configuration": {"delta.appendOnly": "true"}}
    summary = {"numFiles": 1, "tableSizeBytes": 1, "protocol": {}, "metadata": metadata}
    (stands.root / "warehouse" / "events" / "_delta_log" / f"{3:020d}.crc").write_text(json.dumps(summary))
    with pytest.raises(
        RequestError, match=r"events has the property delta\.appendOnly, so no row of it can be replaced\. Nothing was touched"
    ):
        plan(stands)


@pytest.mark.parametrize("how", ["gone", "written anew"])
def test_history_that_is_gone_is_a_loss_that_someone_must_accept(how: str, stands: World) -> None:
    stands.files[0].unlink() if how == "gone" else stands.files[0].touch()
    found = plan(stands)
    assert (refused(found), found.flows[0].prices[0].lost.files) == ([LOSS], 1)
    assert refused(plan(stands, LOSS)) == []


def test_a_source_without_history_has_an_unknown_price(world: World) -> None:
    rates = EVENTS.replace('format="json", path="{data}/events", schema="event_id STRING", options={}', 'format="rate"')
    world.processed(1)
    world.declare(rates)
    assert refused(plan(world)) == [UNKNOWN_PRICE]
    assert refused(plan(world, UNKNOWN_PRICE)) == []


def test_a_list_of_processed_files_that_cannot_be_read_has_an_unknown_price(stands: World) -> None:
    stands.home.storage.overwrite(f"{stands.home.checkpoint(1, 1)}/sources/events_raw/1", b"v1\n{")
    assert refused(plan(stands)) == [UNKNOWN_PRICE]


def test_all_flows_of_the_table_are_refreshed_together_and_one_that_never_ran_is_only_held(stands: World) -> None:
    stands.declare(SEVERAL)
    of(stands, "more_events").begin([[file] for file in stands.files], 3, 3)
    stands.declare(SEVERAL + '\ndp.append_flow(name="late_events", target="events", sources=["events_raw"])(lambda raw: raw)\n')
    found = plan(stands)
    assert {flow.flow: flow.next_generation for flow in found.flows} == {
        "events.clean_events": 2,
        "events.more_events": 2,
        "events.late_events": None,
    }
    assert found.tables == ("events",), "the flow of another table is left alone"


def test_a_table_by_key_is_emptied_with_its_tombstones_and_a_once_flow_runs_again(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(2)
    path = world.settings.tombstones_path("events")
    assert plan(world).details["paths"] == [world.settings.table_path("events")], "there are none yet"
    log = Path(path) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text('{"metaData":{"id":"t"}}\n')
    found = plan(world)
    assert found.details["paths"] == [world.settings.table_path("events"), path]
    assert found.flows[0].once


READS: dict[str, tuple[str, str]] = {
    "plain": ("", "fails at the commit that removes rows, and is parked"),
    "changes left out": (', options={"skipChangeCommits": "true"}', "gets what is written again a second time"),
    "change data feed": (', options={"readChangeFeed": "true"}', "gets every row as deleted"),
}


@pytest.mark.parametrize(("options", "words"), READS.values(), ids=READS.keys())
def test_streams_that_read_the_table_are_named_with_what_they_feel_and_must_be_accepted(options: str, words: str, stands: World) -> None:
    stands.declare(READER % options, "after.py")
    found = plan(stands)
    assert refused(found) == [DOWNSTREAM]
    assert "after.after_events" in found.refusals[0].message
    assert words in found.refusals[0].message
    assert refused(plan(stands, DOWNSTREAM)) == []


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({}, "table is None, which no pipeline declares. Declared are: events.events"),
    "unknown table": ({"table": "events.nothing"}, "table is 'events.nothing', which no pipeline declares"),
    "a list": ({"table": ["events"]}, "which no pipeline declares"),
    "unknown key": ({"table": "events", "flow": "x"}, "Unknown: 'flow'"),
    "no price": ({"table": "events", "accept": ["all"]}, "allowed are loss"),
    "a table that no flow writes": ({"table": "idle"}, "table is 'idle', which no flow writes"),
}


@pytest.mark.parametrize(("values", "message"), BAD.values(), ids=BAD.keys())
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], message: str, world: World) -> None:
    world.declare(EVENTS + '\ndp.create_streaming_table("idle")\n')
    with pytest.raises(RequestError, match=rf"(?s)not planned, and nothing was touched:\n- .*{message}"):
        parse_refresh(values, read_manifest(world.settings), "ada")


def test_a_table_that_is_not_there_has_nothing_to_refresh(world: World) -> None:
    with pytest.raises(RequestError, match=r"events.events is not there yet .* Start its flows first"):
        plan(world)


def test_a_request_comes_back_from_its_plan(stands: World) -> None:
    assert KIND.read_request(plan(stands, LOSS).request) == RefreshRequest("events.events", (LOSS,), by="ada")


def test_a_recovery_that_shut_a_flow_out_or_emptied_a_table_counts_as_one_that_changed_something(stands: World) -> None:
    made = plan(stands)
    recoveries.propose(stands.settings, made)
    recoveries.approve(stands.settings, "events", "r1", "ada")
    for step in ("hold", "plan_again"):
        recoveries.carry_out(stands.settings, "events", "r1", step)

    def fails(*_: object) -> dict[str, Any]:
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        recoveries.carry_out(stands.settings, "events", "r1", "empty_tables", fails)
    before = stands.tree()
    stands.write_table(emptied.app_id("r1"), 1)
    assert not recoveries.give_up(stands.settings, "events", "r1", "rejected"), "the table was emptied"
    [newest] = set(stands.tree()) - set(before)
    (stands.root / newest).unlink()
    assert recoveries.give_up(stands.settings, "events", "r1", "rejected"), "nothing was changed yet"


LATE = """
@dp.append_flow(name="late_events", target="events", sources=["events_raw"])
def late_events(raw):
    return raw
"""


@pytest.mark.parametrize("kind", [KIND, WITH_BACKUP, BESIDE], ids=lambda kind: kind.name)
def test_a_flow_that_is_declared_after_the_plan_is_not_held_so_the_recovery_ends_under_the_hold(kind: Kind, stands: World) -> None:
    log = stands.root / "warehouse" / "events" / "_delta_log"
    summary = {"numFiles": 1, "tableSizeBytes": 1, "protocol": {}, "metadata": {"configuration": {}}}
    (log / f"{3:020d}.crc").write_text(json.dumps(summary))
    manifest = read_manifest(stands.settings)
    made = recoveries.plan(stands.settings, kind, kind.parse({"table": "events"}, manifest, "ada"), "r1")
    recoveries.propose(stands.settings, made)
    recoveries.approve(stands.settings, "events", "r1", "ada")
    stands.declare(EVENTS + LATE)
    for step in kind.step_names[: kind.step_names.index("plan_again")]:
        recoveries.carry_out(stands.settings, "events", "r1", step, lambda *_: {})
    with pytest.raises(RecoveryError, match=r"Other flows write events now .*: events.late_events\. .* Nothing was changed.*abandon r1"):
        recoveries.carry_out(stands.settings, "events", "r1", "plan_again")
    assert recoveries.give_up(stands.settings, "events", "r1", "rejected")
