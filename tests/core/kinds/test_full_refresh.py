"""Planning a full refresh: what is read again, what is lost for good, who feels it; planning changes
nothing.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.backfill_flow import name_of
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import EARLIEST, LATEST, StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.storage import to_json
from streamkeeper.support.amounts import DATA_LOSS, DOWNSTREAM, UNKNOWN_IMPACT
from streamkeeper.tables import other_writers, past_versions
from tests.worlds.pipelines import LATE, READER, SEVERAL
from tests.worlds.recover.recoveries import approve, asked, carry_out, impact, of, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, RATE, World


def plan(world: World, *accept: str) -> Plan:
    return planned(world, "full_refresh", table="events", accept=accept)


def test_what_the_sources_still_have_is_read_again_and_costs_nothing(stands: World) -> None:
    found = plan(stands)
    (flow,) = found.flows
    assert (flow.start.mode, flow.generation, flow.next_generation, refused(found)) == ("earliest", 1, 2, [])
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (0, 0)
    assert impact(found).notes[0] == "3 files, 120 B, 6 rows of the rows read before are read again"
    assert (found.tables, found.details["path"]) == (("events",), stands.settings.table_path("events"))
    said = "is at version 3: restore_table can restore it until VACUUM removes its files."
    assert said in " ".join(found.notes)


def test_a_table_that_takes_appends_only_is_refused_before_anybody_is_asked(stands: World) -> None:
    stands.summarize(**{"delta.appendOnly": "true"})
    said = r"events has the property delta\.appendOnly, so no row of it can be replaced\. Nothing was changed"
    with pytest.raises(RequestError, match=said):
        plan(stands)


@pytest.mark.parametrize("how", ["gone", "rewritten"])
def test_history_that_is_gone_is_a_loss_that_someone_must_accept(how: str, stands: World) -> None:
    stands.files[0].unlink() if how == "gone" else stands.files[0].touch()
    found = plan(stands)
    assert (refused(found), impact(found).lost.files) == ([DATA_LOSS], 1)
    assert refused(plan(stands, DATA_LOSS)) == []


def test_a_source_without_history_has_an_unknown_impact(world: World) -> None:
    world.processed(1)
    world.declare(RATE)
    assert refused(plan(world)) == [UNKNOWN_IMPACT]
    assert refused(plan(world, UNKNOWN_IMPACT)) == []


def test_a_list_of_processed_files_that_cannot_be_read_has_an_unknown_impact(stands: World) -> None:
    stands.home.storage.overwrite(f"{stands.home.checkpoint(1, 1)}/sources/events_raw/1", b"v1\n{")
    assert refused(plan(stands)) == [UNKNOWN_IMPACT]


def test_all_flows_of_the_table_are_refreshed_together_and_one_that_never_ran_is_only_held(
    stands: World,
) -> None:
    stands.declare(SEVERAL)
    of(stands, "more_events").begin([[file] for file in stands.files], 3, 3)
    stands.declare(SEVERAL + LATE)
    found = plan(stands)
    assert {flow.flow: flow.next_generation for flow in found.flows} == {
        "events.clean_events": 2,
        "events.more_events": 2,
        "events.late_events": None,
    }
    assert found.tables == ("events",), "the flow of another table is left alone"


def test_one_that_never_began_reads_everything_wherever_it_was_decided_to_begin(world: World) -> None:
    world.processed(1)
    world.home.storage.remove(world.home.start(1))
    world.home.storage.remove(world.home.generation(1))
    decided = generations.first(world.home, "f")
    generations.decide(world.home, replace(decided, start=StartAt(LATEST)))
    [flow] = plan(world).flows
    assert (flow.generation, flow.next_generation, flow.start) == (1, None, StartAt(EARLIEST))


def test_a_table_by_key_is_emptied_and_a_once_flow_runs_again(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(2)
    found = plan(world)
    assert found.details["path"] == world.settings.table_path("events")
    assert found.flows[0].once


READS: dict[str, tuple[str, str]] = {
    "plain": ("", "fails at the commit that removes rows and is parked"),
    "changes left out": (
        ', options={"skipChangeCommits": "true"}',
        "gets the rows written again as duplicates",
    ),
    "change data feed": (', options={"readChangeFeed": "true"}', "gets every row as deleted"),
}


@pytest.mark.parametrize(("options", "words"), READS.values(), ids=READS.keys())
def test_streams_that_read_the_table_are_named_with_what_they_feel_and_must_be_accepted(
    options: str, words: str, stands: World
) -> None:
    stands.declare(READER % options, "after.py")
    found = plan(stands)
    assert refused(found) == [DOWNSTREAM]
    assert "after.after_events" in found.refusals[0].message
    assert words in found.refusals[0].message
    assert refused(plan(stands, DOWNSTREAM)) == []


FOLLOWS: dict[str, tuple[str, list[str], str]] = {
    # how a change feed is applied, what must be accepted, and what is said
    "in its order": ("change_feed=True", [DOWNSTREAM], "its table is right again afterwards"),
    "ranked": ('sequence_by=["_commit_version", "rank"], apply_as_deletes="gone"', [DOWNSTREAM], "inserted"),
    "ranked by a column of the table": (
        'sequence_by=["_commit_version", "Event_id"], apply_as_deletes="gone"',
        [DOWNSTREAM, DATA_LOSS],
        "rows whose delete and insert have the same sequence are lost to its table",
    ),
    "by a column": (
        'sequence_by="n", apply_as_deletes="_change_type = \'delete\'"',
        [DOWNSTREAM, DATA_LOSS],
        "rows whose delete and insert have the same sequence are lost to its table",
    ),
}


@pytest.mark.parametrize(("order", "impacts", "words"), FOLLOWS.values(), ids=FOLLOWS.keys())
def test_an_auto_cdc_flow_that_may_lose_rows_by_its_change_feed_makes_a_loss_that_someone_must_accept(
    order: str, impacts: list[str], words: str, stands: World
) -> None:
    head = (READER % ', options={"readChangeFeed": "true"}').partition("@dp")[0]
    flow = f'name="f", target="after", source="their_events", keys=["event_id"], {order}'
    stands.declare(f"{head}dp.create_auto_cdc_flow({flow})\n", "after.py")
    stands.summarize('{"type": "struct", "fields": [{"name": "event_id"}]}')
    found = plan(stands)
    assert refused(found) == impacts
    assert words in found.refusals[-1].message
    assert refused(plan(stands, DOWNSTREAM, DATA_LOSS)) == []


def test_a_table_that_no_flow_writes_is_refused(world: World) -> None:
    world.declare(EVENTS + '\ndp.create_streaming_table("idle")\n')
    with pytest.raises(RequestError, match=r"nothing was changed:\n- .*'events\.idle', which"):
        asked(world, "full_refresh", table="idle")


def test_a_table_that_is_not_there_has_nothing_to_refresh(world: World) -> None:
    with pytest.raises(RequestError, match=r"events.events is not there yet .* Start its flows first"):
        plan(world)


def test_a_recovery_that_shut_a_flow_out_or_emptied_a_table_counts_as_one_that_changed_something(
    stands: World,
) -> None:
    approve(stands, plan(stands))

    def fails(*_: object) -> dict[str, Any]:
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        carry_out(stands, "hold", "plan_again", "empty_tables", in_spark=fails)
    before = stands.tree()
    stands.write_table(past_versions.app_id("r1", past_versions.EMPTIED), 1)
    assert not engine.give_up(stands.settings, "events", "r1", "rejected"), "the table was emptied"
    [newest] = set(stands.tree()) - set(before)
    (stands.root / newest).unlink()
    assert engine.give_up(stands.settings, "events", "r1", "rejected"), "nothing was changed yet"


def write(
    world: World, app: str | None = None, operation: str = "WRITE", batch: int = 0, **told: Any
) -> None:
    """Write a commit of the table that changes rows, under a ``txnAppId`` or none."""
    added = {"add": {"path": f"{batch}-{app}", "dataChange": operation != "OPTIMIZE"}}
    txn = [{"txn": {"appId": app, "version": batch}}] if app else []
    world.commit(added, *txn, operation=operation, **told)


def test_what_nobodys_flow_wrote_is_a_loss_that_someone_must_accept(stands: World) -> None:
    write(stands, stands.query_id, batch=2)
    write(stands, operation="OPTIMIZE")
    assert refused(plan(stands)) == []
    write(stands)
    write(stands, operation="MERGE")
    [refusal] = plan(stands).refusals
    assert (refusal.impact, refusal.flow) == (DATA_LOSS, None)
    said = "are lost: no flow can produce them again: version 7 (MERGE); version 6 (WRITE)"
    assert f"rows written by others {said}" in refusal.message
    found = plan(stands, DATA_LOSS)
    assert refused(found) == []
    assert "Rows written by others are lost" in " ".join(found.notes)


def test_what_somebody_deleted_comes_back_which_is_said_and_costs_nothing(stands: World) -> None:
    write(stands, operation="DELETE")
    found = plan(stands)
    assert refused(found) == []
    said = "Rows that others deleted return, as far as the sources still have them: version 4 (DELETE)."
    assert said in found.notes


def test_each_of_many_commits_is_not_named(stands: World) -> None:
    for _ in range(8):
        write(stands)
    assert "version 7 (WRITE); 3 commits more" in plan(stands).refusals[0].message


def test_a_flow_that_is_declared_no_more_is_named_with_how_much_it_wrote(stands: World) -> None:
    stands.declare(SEVERAL)
    of(stands, "more_events").begin([[file] for file in stands.files], 3, 0)
    for batch in range(3):
        write(stands, query_id("events.more_events", 1), batch=batch)
    assert refused(plan(stands)) == []
    stands.declare(EVENTS)
    [refusal] = plan(stands).refusals
    assert "3 commits of events.more_events, which is not declared to write it" in refusal.message


def fill(world: World, recovery: str, kind: str, request: dict[str, str]) -> None:
    """Bring a chunk of a backfill that a recovery planned."""
    home = FlowHome(world.home.storage, "events", name_of("clean_events", recovery))
    generations.decide(home, generations.first(home, "f"))
    planned = {"recovery": kind, "recovery_id": recovery, "request": request}
    ledger.open(home.storage, "events", recovery).record("planned", planned)
    write(world, query_id(home.full_name, 1))


def test_a_table_that_was_filled_from_its_backup_has_what_others_wrote_before_that(stands: World) -> None:
    write(stands, past_versions.app_id("r-00000000", past_versions.EMPTIED), operation="DELETE")
    fill(stands, "r-00000000", "full_refresh_with_backup", {"table": "events.events", "fill_from": "backup"})
    assert refused(plan(stands)) == [], "the fill alone is no impact: the rows were the table's own"
    write(stands)
    write(stands, past_versions.app_id("r-11111111", past_versions.EMPTIED), operation="DELETE")
    fill(stands, "r-11111111", "full_refresh_with_backup", {"table": "events.events", "fill_from": "backup"})
    assert "version 6 (WRITE)" in plan(stands).refusals[0].message


@pytest.mark.parametrize(
    ("read", "impacts"), [("history", []), ("files", [DATA_LOSS]), ("backup", [DATA_LOSS])]
)
def test_a_backfill_is_a_loss_unless_it_read_what_the_source_still_has(
    read: str, impacts: list[str], stands: World
) -> None:
    fill(stands, "backfill-1", "backfill", {"flow": "events.clean_events", "read": read})
    found = plan(stands)
    assert refused(found) == impacts
    if impacts:
        assert f"1 commit of the backfill backfill-1 (read: {read})" in found.refusals[0].message


def test_rows_of_a_query_whose_checkpoint_was_adopted_are_the_flows_own(stands: World) -> None:
    first = generations.read(stands.home, 1)
    assert first is not None
    adopted = replace(first, start=StartAt("adopted", query_id="the old job"))
    stands.home.storage.overwrite(stands.home.generation(1), to_json(asdict(adopted)))
    write(stands, "the old job")
    assert refused(plan(stands)) == []


GONE: dict[str, tuple[str | None, dict[str, Any]]] = {
    "emptied": (past_versions.app_id("r0", past_versions.EMPTIED), {"operation": "DELETE"}),
    "put in place": (past_versions.app_id("r0", past_versions.PUT_IN_PLACE), {"operation": "Manual Update"}),
    "undone": (
        None,
        {
            "operation": "RESTORE",
            "operationParameters": {"version": "3"},
            "userMetadata": past_versions.mark("r0"),
        },
    ),
}


@pytest.mark.parametrize(("app", "told"), GONE.values(), ids=GONE.keys())
def test_what_others_wrote_is_no_impact_once_it_is_gone(
    app: str | None, told: dict[str, Any], stands: World
) -> None:
    write(stands)
    assert refused(plan(stands)) == [DATA_LOSS]
    write(stands, app, **told)
    found = plan(stands)
    assert (refused(found), [note for note in found.notes if "not known" in note]) == ([], [])


def test_a_log_that_does_not_tell_everything_is_a_note_and_no_impact(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands.version(0).rename(stands.version(0).with_suffix(".checkpoint.parquet"))
    found = plan(stands)
    assert refused(found) == []
    said = "It is unknown whether others wrote some of its older rows: its log starts at version 1 now."
    assert said in " ".join(found.notes)
    monkeypatch.setattr(other_writers, "COMMITS", 2)
    assert "read are only the newest 2 commits of its log" in " ".join(plan(stands).notes)
    write(stands, past_versions.app_id("r0", past_versions.PUT_BACK), operation="Manual Update")
    assert "its version 4 is a restored backup" in " ".join(plan(stands).notes)


@pytest.mark.parametrize(
    ("recovery", "values", "impacts"),
    [
        pytest.param(
            "full_refresh_with_backup", {"fill_from": "sources"}, [DATA_LOSS], id="filled from its sources"
        ),
        pytest.param("full_refresh_with_backup", {"fill_from": "backup"}, [], id="filled from the backup"),
        pytest.param("rebuild_without_downtime", {}, [DATA_LOSS], id="beside"),
    ],
)
def test_rows_of_others_come_back_from_a_backup_alone(
    recovery: str, values: dict[str, str], impacts: list[str], stands: World
) -> None:
    write(stands)
    stands.summarize()
    found = planned(stands, recovery, table="events", **values)
    assert refused(found) == impacts
    assert ("Rows written by others are lost" in " ".join(found.notes)) == bool(impacts)


@pytest.mark.parametrize("recovery", ["full_refresh", "full_refresh_with_backup", "rebuild_without_downtime"])
def test_a_flow_that_is_declared_after_the_plan_is_not_held_so_the_recovery_ends_under_the_hold(
    recovery: str, stands: World
) -> None:
    stands.summarize()
    made = approve(stands, planned(stands, recovery, table="events"))
    stands.declare(EVENTS + LATE)
    carry_out(stands, *made.steps[: made.steps.index("plan_again")], in_spark=lambda *_: {})
    with pytest.raises(
        RecoveryError,
        match=r"Other flows write events now .*: events.late_events\. .* Nothing was changed.*abandon r1",
    ):
        carry_out(stands, "plan_again")
    assert engine.give_up(stands.settings, "events", "r1", "rejected")
