"""Cleaning up: what goes, what stays and why; killed anywhere it leaves nothing that looks whole, and goes
on.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any

import pytest

from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.backfill_flow import name_of
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, BATCH, COPIED, REBUILT, Generation, Start, StartAt
from streamkeeper.flows.leases import Lease, Process
from streamkeeper.flows.ledger import Ledger
from streamkeeper.history import events
from streamkeeper.history.events import Event, Kind
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.observe import past_positions
from streamkeeper.recover.kinds import clean_up
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.steps import clean_up as clean_up_steps
from streamkeeper.storage import to_json
from streamkeeper.tables import backups, recovery_lock
from streamkeeper.tables.flows_at_version import FlowAt
from tests.worlds.recover.recoveries import FLOW, asked, planned
from tests.worlds.small_world import CHANGES, EVENTS, World
from tests.worlds.tables.backups import entry

TODAY = datetime(2026, 11, 21, 12, tzinfo=timezone.utc).timestamp()
DAY = 86400.0


def noon(day: int) -> str:
    """A day of November 2026."""
    return f"2026-11-{day:02d}T12:00:00+00:00"


def decide(home: FlowHome, number: int, start: StartAt, at: str) -> None:
    made = Generation(number, number - 1 or None, start, REBUILT, "q", "", "", at, "f", "r")
    generations.decide(home, generations.with_number(made, home, number))


def begin(world: World, number: int, day: int, flow: str = "clean_events") -> None:
    """Let a generation begin on a day of November 2026, with a checkpoint of a few files."""
    home = FlowHome(world.home.storage, "events", flow)
    decide(home, number, StartAt(AFTER_LAST), noon(day))
    folder = home.checkpoint(number, number)
    generations.begin(home, Start(number, folder, None, {}, {}, (), None, number, noon(day)))
    for name in ("metadata", "offsets/0", "commits/0", "sources/events_raw/0"):
        home.storage.overwrite(f"{folder}/{name}", b"x")


@pytest.fixture
def stands(world: World) -> World:
    """Generations that began on the 1st, the 10th, the 15th and the 19th; today is the 21st."""
    world.declare()
    for number, day in ((1, 1), (2, 10), (3, 15), (4, 19)):
        begin(world, number, day)
    return world


def plan(world: World, days: float = 3, **more: Any) -> Plan:
    """Plan a clean-up for today, and make sure that this changed no file."""
    request = asked(world, "clean_up", **{"pipeline": "events", "keep_days": days, **more})
    manifest, before = read_manifest(world.settings), world.tree()
    try:
        return clean_up.plan(world.settings, manifest, request, "c1", TODAY)
    finally:
        assert world.tree() == before


def goes(found: Plan) -> list[str]:
    return sorted(name.rpartition("/")[2] for item in found.details["remove"] for name in item["names"])


def kept(found: Plan, words: str) -> bool:
    return any(words in note for note in found.notes)


def clean(world: World, found: Plan) -> dict[str, Any]:
    return clean_up_steps.remove(
        Work(world.settings, found, ledger.open(world.home.storage, "events", "c1"), "remove")
    )


@pytest.mark.parametrize(
    ("days", "gone"),
    [
        (30, []),
        (10, ["000001-000001"]),
        (5, ["000001-000001", "000002-000002"]),
        (1, ["000001-000001", "000002-000002", "000003-000003"]),
    ],
)
def test_a_checkpoint_goes_when_its_generation_was_left_longer_ago_than_the_retention(
    days: float, gone: list[str], stands: World
) -> None:
    assert goes(plan(stands, days)) == gone


def test_what_stays_is_said_with_the_reason(stands: World) -> None:
    found = plan(stands, 5)
    gone = "is removed: it was retired longer ago than the retention."
    assert kept(found, f"The checkpoint of generation 2 of events.clean_events {gone}")
    stays = "stays: generation 4 took over at 2026-11-19T12:00:00+00:00, which is within"
    assert kept(found, f"generation 3 of events.clean_events {stays}")
    assert not kept(found, "generation 4 of")


def test_what_a_flow_declares_to_be_rewound_to_stays_longer(stands: World) -> None:
    """Batches of an hour's trigger: 240 of them are ten days, and Spark keeps them."""
    hourly = 'sources=["events_raw"], trigger="1 hour", rewind_window="10 days"'
    stands.declare(EVENTS.replace('sources=["events_raw"]', hourly))
    found = plan(stands, 1)
    assert goes(found) == ["000001-000001"], "the second took over on the 10th, eleven days ago"
    assert kept(found, "generation 3 took over at 2026-11-15T12:00:00+00:00, which is within the flow's")


def test_what_is_left_of_a_pipeline_that_is_declared_no_more_is_named(stands: World) -> None:
    others = EVENTS.replace('"events"', '"others"').replace("clean_events", "clean_others")
    stands.declare(others, "others.py")
    (stands.root / "pipelines" / "events.py").unlink()
    found = planned(stands, "clean_up", pipeline="others")
    assert kept(found, "The pipeline events is no longer declared")
    assert kept(found, "flows clean_events is kept. If it was renamed, run `streamkeeper rename events NEW`.")
    assert kept(found, f"{stands.settings.state}/events by hand")
    stands.declare(EVENTS)
    assert not kept(plan(stands), "no longer declared")


def test_what_is_decided_to_begin_from_an_earlier_one_keeps_it(stands: World) -> None:
    decide(stands.home, 5, StartAt(BATCH, generation=2, batch=0), noon(20))
    found = plan(stands, 1)
    assert goes(found) == ["000001-000001", "000003-000003"]
    said = "generation 5, which is decided and not started yet, starts from it"
    assert kept(found, f"generation 2 of events.clean_events stays: {said}")


def rewind_to_first(world: World) -> Ledger:
    """Plan the rewind ``w1`` to a batch of generation 1; return its ledger."""
    start = StartAt(BATCH, generation=1, batch=0)
    flow = FlowPlan(FLOW, "events", 4, 5, 4, "f", start, COPIED)
    book = ledger.open(world.home.storage, "events", "w1")
    book.record("planned", plans.to_json(Plan("rewind", "w1", "events", ("events",), {}, (flow,), (), "")))
    return book


def test_what_a_recovery_names_that_is_not_over_stays(stands: World) -> None:
    book = rewind_to_first(stands)
    found = plan(stands, 1)
    assert goes(found) == ["000002-000002", "000003-000003"]
    assert kept(found, "generation 1 of events.clean_events stays: the recovery w1 is not over and needs it")
    book.record("ended", {})
    assert goes(plan(stands, 1)) == ["000001-000001", "000002-000002", "000003-000003"]


def test_attempts_that_another_driver_was_faster_than_go_with_time(stands: World) -> None:
    for name in ("000004-000003", "000004-000004-listing", "000004-000005-listing", "000005-000009"):
        stands.home.storage.overwrite(f"{stands.home.root}/checkpoints/{name}/metadata", b"x")
    assert goes(plan(stands, 3)) == ["000001-000001", "000002-000002"]
    assert "000004-000003" not in goes(plan(stands, 2.5))
    found = plan(stands, 1)
    assert {"000004-000003", "000004-000005-listing"} <= set(goes(found))
    assert not {"000004-000004", "000004-000004-listing", "000005-000009"} & set(goes(found))


def test_the_newest_leases_stay(stands: World) -> None:
    for epoch in range(1, 14):
        stands.home.storage.overwrite(stands.home.lease(epoch), b"{}")
        stands.home.storage.overwrite(stands.home.heartbeat(epoch), b"{}")
    found = plan(stands, 30)
    assert kept(found, "up to epoch 3 are removed: the newest 10 stay")
    clean(stands, found)
    assert stands.home.epochs() == list(range(4, 14))
    assert stands.home.storage.names(f"{stands.home.root}/heartbeats")[0] == "000004"


# --- carried out


def test_what_goes_is_gone_and_what_was_decided_stays(stands: World) -> None:
    clean(stands, plan(stands, 5))
    assert stands.home.storage.names(f"{stands.home.root}/checkpoints") == ["000003-000003", "000004-000004"]
    assert stands.home.generations() == [1, 2, 3, 4]
    assert past_positions.begun(stands.home) == [3, 4]
    with pytest.raises(RequestError, match="was removed: clean_up does that"):
        past_positions.at_end(stands.home, str(stands.root / "warehouse" / "events"), 2)
    assert clean(stands, plan(stands, 5)) == {"removed": 0, "left": {}}


def test_a_clean_up_that_was_killed_leaves_nothing_that_looks_whole_and_goes_on(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plan(stands, 5)
    real = shutil.rmtree
    calls: list[str] = []

    def die(path: Any, *_: Any) -> None:
        calls.append(str(path))
        real(f"{path}/commits")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            clean(stands, found)
    assert [path.rpartition("/")[2] for path in calls] == ["000001-000001"]
    left = stands.home.storage.names(f"{stands.home.root}/checkpoints/000001-000001")
    assert left == ["metadata", "offsets", "sources"]
    assert past_positions.begun(stands.home) == [2, 3, 4]
    assert recovery_lock.holder(stands.home.storage, "events", "events") is None
    clean(stands, found)
    assert stands.home.storage.names(f"{stands.home.root}/checkpoints") == ["000003-000003", "000004-000004"]


def test_a_table_that_a_recovery_works_on_is_left_for_another_day(stands: World) -> None:
    found = plan(stands, 5)
    recovery_lock.take(stands.home.storage, "events", "events", "other")
    before = stands.tree()
    left = clean(stands, found)["left"]
    assert "The recovery other has locked the table events" in left["clean_events"]
    assert stands.tree() == before


def test_a_generation_that_is_wanted_again_since_the_plan_stays(stands: World) -> None:
    found = plan(stands, 5)
    decide(stands.home, 5, StartAt(BATCH, generation=1, batch=0), noon(20))
    assert clean(stands, found)["left"] == {"clean_events": "generation 1 is in use again"}
    assert past_positions.begun(stands.home) == [1, 3, 4]


def test_a_generation_that_a_recovery_names_which_was_planned_since_stays(stands: World) -> None:
    found = plan(stands, 5)
    rewind_to_first(stands)
    said = "the recovery w1 is not over and needs generation 1"
    assert clean(stands, found)["left"] == {"clean_events": said}
    assert past_positions.begun(stands.home) == [1, 3, 4]


# --- flows that are declared no more


@pytest.fixture
def renamed(stands: World) -> World:
    """``old_events`` has files, and no declaration any more."""
    begin(stands, 1, 1, flow="old_events")
    begin(stands, 2, 2, flow="old_events")
    return stands


def old(world: World) -> FlowHome:
    return FlowHome(world.home.storage, "events", "old_events")


def test_a_flow_that_is_declared_no_more_is_named_and_its_present_checkpoint_kept(renamed: World) -> None:
    found = plan(renamed, 11)
    said = "no longer declared (renamed, or removed?): its files stay until forget_flows names it"
    assert kept(found, f"events.old_events is {said}")
    clean(renamed, found)
    assert past_positions.begun(old(renamed)) == [2]


def test_it_goes_when_someone_decides_so_and_leaves_what_its_ids_were(renamed: World) -> None:
    found = plan(renamed, 30, forget_flows="old_events")
    assert kept(found, "events.old_events is removed, as requested")
    clean(renamed, found)
    assert renamed.home.storage.names(old(renamed).root) == ["generations"]
    assert old(renamed).generations() == [1, 2]
    assert not kept(plan(renamed, 30), "old_events")


def test_it_stays_while_a_driver_of_it_lives(renamed: World) -> None:
    home = old(renamed)
    home.storage.create(home.lease(1), to_json(asdict(Lease(1, Process.current(), 2, noon(21)))))
    left = clean(renamed, plan(renamed, 30, forget_flows="old_events"))["left"]
    assert left == {"old_events": "a driver of it may be alive"}
    assert past_positions.begun(home) == [1, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"forget_flows": "clean_events"}, "forget_flows names clean_events, which the pipeline declares"),
        ({"forget_flows": "no/name"}, "forget_flows is 'no/name'. Allowed are names of flows"),
        (
            {"forget_flows": "unknown"},
            "names unknown, which have no state. Flows with state that are not declared: old_events",
        ),
        ({"keep_days": 0.5}, "keep_days is 0.5; it must be a number of days from 1 to 36,500"),
        (
            {"tombstone_days": 10**6},
            "tombstone_days is 1000000; it must be a number of days from 1 to 36,500",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], said: str, renamed: World) -> None:
    with pytest.raises(RequestError, match=said):
        plan(renamed, **values)


# --- what tables by key forget


@pytest.fixture
def keyed(world: World) -> World:
    """A table by key, and a flow that began to write it on the 1st."""
    world.declare(CHANGES % "")
    begin(world, 1, 1)
    committed(world, 60)
    world.write_table("q", 0)
    return world


def committed(world: World, *ages: float, number: int = 1) -> None:
    """Let a generation have committed batches so many seconds ago."""
    for batch, age in enumerate(ages):
        name = f"{world.home.checkpoint(number, number)}/commits/{batch}"
        world.home.storage.overwrite(name, b"x")
        os.utime(world.settings.state + "/" + name, (TODAY - age, TODAY - age))


def go_on(world: World, mode: str, day: int, begun: bool = True) -> None:
    """Let a generation 2 be decided on a day of November, and begin right then, or not."""
    start = StartAt(mode, generation=1, batch=0) if mode == BATCH else StartAt(mode)
    decide(world.home, 2, start, noon(day))
    if begun:
        folder = world.home.checkpoint(2, 2)
        generations.begin(world.home, Start(2, folder, 0, {}, {}, (), None, 2, noon(day)))
        world.home.storage.overwrite(f"{folder}/commits/0", b"x")


def forgets(found: Plan) -> str | None:
    """Give before when what the table learned goes."""
    return next((str(item["before"]) for item in found.details["tombstones"]), None)


def test_tables_by_key_forget_with_the_moment_that_the_plan_says(keyed: World) -> None:
    found = plan(keyed, tombstone_days=2)
    assert found.details["tombstones"] == ({"table": "events", "before": "2026-11-19T11:59:00+00:00"},)
    assert kept(found, "forgets deletes and truncates received before 2026-11-19T11:59:00+00:00.")
    assert kind("clean_up").read_request(found.request).tombstone_days == 2


def test_a_table_that_is_not_there_has_nothing_to_forget(world: World) -> None:
    world.declare(CHANGES % "")
    assert plan(world, tombstone_days=2).details["tombstones"] == ()


@pytest.mark.parametrize(
    "ages", [(40 * DAY,), (41 * DAY, 1 * DAY, 0)], ids=["it stands still", "it went on a day ago"]
)
def test_a_pause_of_a_flow_counts_on_top_of_the_retention(keyed: World, ages: tuple[float, ...]) -> None:
    """A change that was late by less than the retention may have come meanwhile."""
    committed(keyed, *ages)
    found = plan(keyed, tombstone_days=30)
    assert forgets(found) == "2026-09-12T12:00:00+00:00", "70 days ago"
    assert kept(
        found,
        f"; it keeps later ones, since {FLOW}, which writes it, committed nothing for 40 d, and may have to"
        " read changes that arrived meanwhile.",
    )


WENT_BACK = "began generation 2 (batch) within the retention, and may read older changes"
GOES_BACK = "is to start generation 2 (batch), and may read older changes"
FORGETS_NOTHING = f"The table events forgets no deletes and truncates: {FLOW}, which writes it,"


@pytest.mark.parametrize(
    ("decided", "days", "why"),
    [
        pytest.param((BATCH, 19, True), 30, WENT_BACK, id="went back"),
        pytest.param((BATCH, 19, True), 1, None, id="went back longer ago than the retention"),
        pytest.param((BATCH, 1, False), 2, GOES_BACK, id="is to go back"),
        pytest.param((AFTER_LAST, 19, True), 30, None, id="went on"),
        pytest.param((AFTER_LAST, 19, False), 30, None, id="is to continue"),
    ],
)
def test_nothing_is_forgotten_while_a_flow_reads_what_is_older(
    keyed: World, decided: tuple[str, int, bool], days: float, why: str | None
) -> None:
    go_on(keyed, *decided)
    found = plan(keyed, tombstone_days=days)
    assert (forgets(found) is None) == (why is not None)
    assert why is None or kept(found, f"{FORGETS_NOTHING} {why}.")


def test_nothing_is_forgotten_before_all_flows_of_the_table_have_committed(keyed: World) -> None:
    (keyed.root / "state" / f"{keyed.home.checkpoint(1, 1)}/commits/0").unlink()
    assert kept(plan(keyed), f"{FORGETS_NOTHING} has committed nothing")


def test_a_flow_that_runs_once_counts_until_it_is_done(keyed: World) -> None:
    keyed.declare(CHANGES % ", once=True")
    assert kept(plan(keyed), f"{FORGETS_NOTHING} runs once and is not done.")
    generations.finish(keyed.home, 1, 0)
    assert forgets(plan(keyed, tombstone_days=2)) == "2026-11-19T12:00:00+00:00"


def test_it_is_planned_while_a_recovery_works_on_a_table(world: World) -> None:
    world.declare(EVENTS)
    begin(world, 1, 1)
    recovery_lock.take(world.home.storage, "events", "events", "other")
    assert planned(world, "clean_up", pipeline="events").tables == ()


def test_a_plan_that_removes_nothing_says_so(world: World) -> None:
    world.declare(EVENTS)
    begin(world, 1, 1)
    assert planned(world, "clean_up", pipeline="events").notes == ("Nothing is to be removed.",)


def test_what_a_backfill_worked_with_goes_when_its_recovery_ended_long_ago(stands: World) -> None:
    name = name_of("clean_events", "backfill-x-0123abcd")
    begin(stands, 1, 12, flow=name)

    def removed() -> list[str]:
        items = plan(stands).details["remove"]
        return [file for item in items if item["flow"] == name for file in item["names"]]

    assert f"events/{name}/checkpoints" in removed(), "no such recovery"
    book = ledger.open(stands.home.storage, "events", "backfill-x-0123abcd")
    book.record("planned", {})
    assert not removed(), "it is not over"
    book.record("ended", {})
    assert not removed(), "it ended just now"
    assert not kept(plan(stands), "no longer declared")


def test_generations_that_a_backup_goes_back_to_stay_and_old_backups_go(stands: World) -> None:
    storage = stands.home.storage
    for number, (name, days_old) in enumerate((("b1", 20), ("b2", 2)), start=1):
        where = (FlowAt(FLOW, number, 5, "q"),)
        backups.enter(storage, entry(name, days_old, flows=where, kept_days=7))
    found = plan(stands)
    assert kept(found, "generation 1 of events.clean_events stays: a backup refers to it")
    [gone] = found.details["backups"]
    assert (gone["id"], gone["reason"]) == ("b1", "it is older than 7 days")
    work = Work(stands.settings, found, ledger.open(storage, "events", "c1"), "remove_backups")
    assert clean_up_steps.remove_backups(work) == {"removed": ["b1"], "left": {}}
    assert [entry.id for entry in backups.listed(storage, "events", "events")] == ["b2"]
    assert not kept(plan(stands), "generation 1 of events.clean_events stays")


def cleaned(world: World, at: float) -> None:
    """Note that a clean-up was planned at a time."""
    event = Event("", at, Kind.RECOVERY_PLANNED, (), "clean_up", recovery="clean_up-daily-1")
    events.write(world.home.storage, "events", event, at)


@pytest.mark.parametrize("ahead", [31, 365])
def test_a_clock_that_jumped_removes_nothing_and_a_person_may_say_that_it_is_right(
    ahead: int, stands: World
) -> None:
    cleaned(stands, TODAY - 7 * DAY - 60)
    assert plan(stands).details["remove"], "a week after the last one, by a weekly schedule that is late"
    cleaned(stands, TODAY - 2 * DAY)
    request = asked(stands, "clean_up", pipeline="events", keep_days=3)
    manifest, later = read_manifest(stands.settings), TODAY + ahead * DAY
    with pytest.raises(RequestError, match=r"last clean-up .*more than 8 days before.*--after-pause"):
        clean_up.plan(stands.settings, manifest, request, "c2", later)
    right = replace(request, after_pause=True)
    assert clean_up.plan(stands.settings, manifest, right, "c2", later).details["remove"]


@pytest.mark.parametrize("first", [1, 9])
def test_the_first_clean_up_believes_the_clock_as_far_as_the_oldest_event(first: int, stands: World) -> None:
    event = Event("", TODAY - first * DAY, Kind.STARTED, ("events.clean_events",), "a driver")
    events.write(stands.home.storage, "events", event, "1")
    if first < 7:
        assert plan(stands).details["remove"]
        return
    with pytest.raises(RequestError, match="first event of events"):
        plan(stands)


def test_a_clock_that_is_behind_removes_nothing(stands: World) -> None:
    request = asked(stands, "clean_up", pipeline="events", keep_days=3)
    made = clean_up.plan(stands.settings, read_manifest(stands.settings), request, "c2", TODAY - 31 * DAY)
    assert not made.details["remove"]
