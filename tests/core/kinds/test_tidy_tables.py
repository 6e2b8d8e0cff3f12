"""Which tables are tidied, and how much of their past must stay."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from streamkeeper.checkpoint import CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.drivers import submit
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome, clock_ahead, vacuums_folder
from streamkeeper.flows.generations import Generation, Start, StartAt
from streamkeeper.flows.leases import Process
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.tidy_tables import (
    KIND,
    MARGIN_HOURS,
    TableTidy,
    Tidying,
    plan,
    property_hours,
)
from streamkeeper.recover.plans import explain, schedules
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.requests.tidy_tables import LEAST_HOURS, TidyRequest
from streamkeeper.recover.steps import submission
from streamkeeper.storage import LocalStorage, to_json
from streamkeeper.tables import recovery_lock, running_vacuums
from tests.worlds.small_world import World, write_manifest

NOW = 1_790_000_000.0
HOUR = 3600
AT = "2026-01-01T00:00:00+00:00"
READER = """
from streamkeeper import pipelines as dp

dp.create_source("told", format="delta", table="events")
dp.create_streaming_table("copied")

@dp.append_flow(name="copy", target="copied", sources=["told"])
def copy(told):
    return told
"""
CUSTOMERS = """
from streamkeeper import pipelines as dp

dp.create_source("changes", format="json", path="{data}/changes", schema="id INT, at INT")
dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(name="apply", target="customers", source="changes", keys=["id"], sequence_by="at")
"""


@pytest.fixture
def manifest(world: World) -> Manifest:
    world.declare()
    world.declare(READER, "copies.py")
    world.declare(CUSTOMERS, "customers.py")
    write_manifest(world.settings)
    return read_manifest(world.settings)


def write_log(world: World, table: str, ages: list[float]) -> None:
    """Write a table's log whose versions were committed so many hours ago."""
    log = world.root / "warehouse" / table / "_delta_log"
    log.mkdir(parents=True)
    for version, hours in enumerate(ages):
        commit = log / f"{version:020d}.json"
        commit.write_text('{"metaData":{"id":"t"}}\n' if version == 0 else '{"commitInfo":{}}\n')
        os.utime(commit, (NOW - hours * HOUR, NOW - hours * HOUR))


def at_version(version: int) -> dict[str, Any]:
    return {
        "sourceVersion": 1,
        "reservoirId": "t",
        "reservoirVersion": version,
        "index": -1,
        "isStartingVersion": False,
    }


def let_the_reader_stand_at(world: World, version: int) -> None:
    let_the_reader_have(world, at_version(version))


def let_the_reader_have(world: World, *offsets: Any, committed: int | None = None) -> FlowHome:
    """Let it plan a batch up to each of some offsets, and commit the first of them, by default all."""
    home = FlowHome(LocalStorage(world.settings.state), "copies", "copy")
    generations.decide(home, generations.first(home, "f"))
    folder = home.checkpoint(1, 1)
    generations.begin(home, Start(1, folder, None, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00"))
    for batch, offset in enumerate(offsets):
        entry = OffsetEntry(batch, 2, 0, 0, {}, {"told": offset}, {"sourceMetadataInfo": {}})
        home.storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(entry))
        if committed is None or batch < committed:
            home.storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, 0)))
    return home


def planned(world: World, manifest: Manifest, table: str, **request: Any) -> TableTidy:
    asked = TidyRequest(table.partition(".")[0], (table,), **request)
    [found] = plan(world.settings, manifest, asked, "r1", NOW).details_as(Tidying).tables
    return found


def test_a_table_is_tidied_with_the_retention_that_was_asked_for(world: World, manifest: Manifest) -> None:
    write_log(world, "events", [5.0])
    found = planned(world, manifest, "events.events", retention_hours=200.0)
    assert found == TableTidy("events", "events", False, 200.0)
    assert found.describe() == "events.events: small files are compacted; files of the last 200 h are kept."


def test_an_auto_cdc_table_is_tidied_in_the_writers_turn(world: World, manifest: Manifest) -> None:
    write_log(world, "customers", [5.0])
    assert planned(world, manifest, "customers.customers").locked


@pytest.mark.parametrize(
    ("stands_at", "hours", "noted"),
    [
        pytest.param(1, 400 + MARGIN_HOURS, True, id="behind: its version's files stay"),
        pytest.param(2, LEAST_HOURS, True, id="nearly up to date: the retention is longer"),
        pytest.param(3, LEAST_HOURS, False, id="up to date: needs nothing"),
    ],
)
def test_what_a_flow_that_reads_the_table_still_needs_stays(
    stands_at: int, hours: float, noted: bool, world: World, manifest: Manifest
) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    let_the_reader_stand_at(world, stands_at)
    found = planned(world, manifest, "events.events")
    assert found.retention_hours == pytest.approx(hours)
    assert found.notes == ((f"copies.copy reads it and is at version {stands_at}.",) if noted else ())


def test_a_reader_that_stands_in_another_kind_of_source_needs_nothing(
    world: World, manifest: Manifest
) -> None:
    """Its source became the table's stream under an old name: it cannot go on from there, and costs no table
    its tidying.
    """
    write_log(world, "events", [500.0, 400.0, 10.0])
    let_the_reader_have(world, {"logOffset": 3})
    found = planned(world, manifest, "events.events")
    assert (found.retention_hours, found.left_alone) == (LEAST_HOURS, None)


@pytest.mark.parametrize(
    ("start", "version"),
    [
        pytest.param(StartAt("batch", generation=1, batch=0), 1, id="rewound to a batch"),
        pytest.param(StartAt("offsets", offsets={"told": at_version(1)}), 1, id="explicit offsets"),
        pytest.param(StartAt("timestamp", timestamp_ms=int((NOW - 401 * HOUR) * 1000)), 1, id="a moment"),
        pytest.param(StartAt("after-last"), None, id="where the last one stands"),
        pytest.param(StartAt("latest"), None, id="the end"),
        pytest.param(StartAt("earliest"), None, id="the table as it is then"),
    ],
)
def test_what_a_reader_needs_that_is_decided_and_not_begun_stays(
    start: StartAt, version: int | None, world: World, manifest: Manifest
) -> None:
    """A person's hold may keep it waiting: meanwhile the last that was begun is up to date."""
    write_log(world, "events", [500.0, 400.0, 10.0])
    home = let_the_reader_have(world, at_version(1), at_version(3))
    generations.decide(home, Generation(2, 1, start, "rebuilt", "q", "", "", AT, "f", "r"))
    found = planned(world, manifest, "events.events")
    assert found.retention_hours == (LEAST_HOURS if version is None else pytest.approx(400 + MARGIN_HOURS))
    said = (
        "copies.copy reads it, and generation 2 of it, decided and not started yet, starts at version"
        f" {version}."
    )
    assert found.notes == (() if version is None else (said,))


@pytest.mark.parametrize(
    "start",
    [StartAt("side-table"), StartAt("batch", generation=7, batch=0), StartAt("batch", generation=1, batch=9)],
    ids=str,
)
def test_a_reader_of_which_nobody_knows_where_it_begins_leaves_the_table_alone(
    start: StartAt, world: World, manifest: Manifest
) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    home = let_the_reader_have(world, at_version(3))
    generations.decide(home, Generation(2, 1, start, "rebuilt", "q", "", "", AT, "f", "r"))
    found = planned(world, manifest, "events.events")
    assert found.left_alone is not None
    assert "the files to keep are unknown" in found.left_alone


def test_a_reader_whose_first_batch_is_under_way_needs_the_snapshot_that_it_reads(
    world: World, manifest: Manifest
) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    let_the_reader_have(world, {**at_version(1), "index": 4, "isStartingVersion": True}, committed=0)
    assert planned(world, manifest, "events.events").retention_hours == pytest.approx(400 + MARGIN_HOURS)


def test_a_reader_whose_version_is_gone_from_the_log_leaves_the_table_alone(
    world: World, manifest: Manifest
) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    (world.root / "warehouse/events/_delta_log" / f"{0:020d}.json").unlink()
    let_the_reader_stand_at(world, 0)
    found = planned(world, manifest, "events.events")
    assert found.left_alone is not None
    assert "holds versions 1 to 2, and not 0" in found.left_alone


@pytest.mark.parametrize(
    ("table", "prepare", "why"),
    [
        ("events.events", None, "there is no table yet"),
        ("events.events", "recovery", "the recovery r1 has locked it"),
    ],
    ids=["no table", "a recovery works on it"],
)
def test_a_table_that_cannot_be_tidied_is_left_alone_with_the_reason(
    table: str, prepare: str | None, why: str, world: World, manifest: Manifest
) -> None:
    if prepare:
        write_log(world, "events", [5.0])
        recovery_lock.take(LocalStorage(world.settings.state), "events", "events", "r1")
    found = planned(world, manifest, table)
    assert (found.left_alone, found.retention_hours) == (why, None)
    assert found.describe() == f"{table} is skipped: {why}."


def test_without_vacuum_nothing_of_the_past_is_looked_at(world: World, manifest: Manifest) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    let_the_reader_stand_at(world, 1)
    assert planned(world, manifest, "events.events", vacuum=False).retention_hours is None


def proposed(world: World, manifest: Manifest, **values: Any) -> Work:
    """Let a tidying be planned and approved, of the pipeline ``events`` where nothing else is asked for."""
    request = KIND.parse({"pipeline": "events", **values}, manifest, "ada")
    made = engine.propose(world.settings, engine.plan(world.settings, KIND, request, "r1"))
    engine.approve(world.settings, made.pipeline, "r1", "ada")
    return Work(
        world.settings, made, ledger.open(LocalStorage(world.settings.state), made.pipeline, "r1"), "tidy"
    )


def test_a_plan_says_what_is_done_to_each_table_and_comes_back_from_the_ledger_as_it_was(
    world: World, manifest: Manifest
) -> None:
    write_log(world, "events", [500.0, 400.0, 10.0])
    let_the_reader_stand_at(world, 1)
    made = plan(world.settings, manifest, TidyRequest("events", ("events.events",)), "r1", NOW)
    assert (made.subject, made.tables, made.steps) == ("events", (), ("tidy",))
    assert plans.as_stored(made).details_as(Tidying) == made.details_as(Tidying)
    assert (
        "events.events: small files are compacted; files of the last 424 h are kept. copies.copy reads it"
        " and is at version 1."
    ) in explain.as_text(made)


def test_a_plan_of_a_thousand_tables_is_handed_on_by_the_ledger_and_on_no_command_line(
    world: World,
) -> None:
    """One argument of a command holds 128 KiB; a plan of 412 tables had more."""
    tables = "".join(f'dp.create_streaming_table("t{number}")\n' for number in range(1_000))
    world.declare(CUSTOMERS + tables, "many.py")
    manifest = read_manifest(world.settings)
    assert manifest.errors == {}
    for number in range(1_000):
        write_log(world, f"t{number}", [5.0])
    work = proposed(world, manifest, pipeline="many")
    assert len(work.plan.details["tables"]) == 1_001
    command = submission.recovery_step(world.settings, "many", "r1", "tidy").command()
    assert command[-7:] == [
        str(submit.RECOVERY_JOB), "--pipeline", "many", "--recovery", "r1", "--step", "tidy",
    ]  # fmt: skip
    assert max(map(len, command)) < 4096


def test_where_every_table_is_left_alone_no_spark_is_started(world: World, manifest: Manifest) -> None:
    proposed(world, manifest)
    assert engine.without_spark(world.settings, "events", "r1", "tidy") == {
        "tables": [],
        "left": {"events": "there is no table yet"},
    }
    assert not engine.is_open(world.settings, "events", "r1")


def test_a_tidying_locks_no_table_and_may_be_given_up_at_any_moment(world: World, manifest: Manifest) -> None:
    write_log(world, "events", [5.0])
    work = proposed(world, manifest)
    work.book.record("tidy.started", {})
    assert recovery_lock.holder(work.book.storage, "events", "events") is None
    assert engine.give_up(world.settings, "events", "r1", "it was killed")
    with pytest.raises(RecoveryError, match="was given up"):
        work.check_stop()


def test_no_table_means_all_of_the_pipeline(manifest: Manifest) -> None:
    found = TidyRequest.parse({"pipeline": "events"}, manifest, "ada")
    assert found == TidyRequest("events", ("events.events",), by="ada")


def test_the_form_asks_nobody_unless_it_is_told_to(manifest: Manifest) -> None:
    assert {field.name: field.default for field in KIND.form(manifest)}["approval"] is False


def test_a_pipelines_own_schedule_tidies_its_tables_with_nobody_asked(world: World) -> None:
    world.declare(
        CUSTOMERS + 'dp.schedule("tidy_tables", tables=["customers"], cron="@weekly")\n', "customers.py"
    )
    manifest = read_manifest(world.settings)
    [pipeline] = [item for item in manifest.pipelines if item.name == "customers"]
    conf = schedules.conf_of(pipeline, pipeline.schedules[0])
    assert conf == {
        "reason": "scheduled: @weekly",
        "pipeline": "customers",
        "tables": ["customers.customers"],
        "approval": False,
    }
    assert TidyRequest.parse(conf, manifest, "ada").tables == ("customers.customers",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"tables": ["events.events", "copies.copied"]},
            "tables names copies.copied, which events has not. Allowed are events.events",
        ),
        ({"retention_hours": 24}, "a number of hours, 168 or more"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], words: str, manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="No table was tidied, and nothing was changed") as refused:
        TidyRequest.parse({"pipeline": "events", **values}, manifest, "ada")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("duration", "hours"),
    [
        ("interval 30 days", 720.0),
        ("interval 1 week", 168.0),
        ("200 HOURS", 200.0),
        ("interval 1 month", None),
        ("", None),
    ],
)
def test_a_retention_property_is_read_in_hours(duration: str, hours: float | None) -> None:
    assert property_hours(duration) == hours


@pytest.mark.parametrize(("days", "ahead"), [(31, "31 d"), (0, None), (-31, None)])
def test_a_host_whose_clock_is_ahead_of_the_storages_removes_no_file_by_its_age(
    days: int, ahead: str | None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = time.time() + days * 24 * HOUR
    monkeypatch.setattr(time, "time", lambda: moment)
    wrong = clock_ahead(world.home.storage)
    assert (
        (wrong is None) if ahead is None else (wrong or "").startswith(f"this host's clock is {ahead} ahead")
    )


def test_a_vacuum_is_known_to_be_under_way_while_it_runs(world: World) -> None:
    storage = LocalStorage(world.settings.state)
    assert running_vacuums.under_way(storage, "events", "events") is None
    with running_vacuums.noted(storage, "events", "events", None):
        assert str(running_vacuums.under_way(storage, "events", "events")).startswith(
            f"a VACUUM of events (pid {os.getpid()} on "
        )
        assert running_vacuums.under_way(storage, "events", "others") is None
    assert running_vacuums.under_way(storage, "events", "events") is None


def test_a_vacuum_that_was_killed_is_not_waited_for(world: World) -> None:
    storage = LocalStorage(world.settings.state)
    gone = asdict(replace(Process.current(), started=1))
    storage.create(
        f"{vacuums_folder(storage, 'events', 'events')}/1.json", to_json({"processes": [gone], "at": "then"})
    )
    running_vacuums.wait_until_gone(storage, "events", "events", lambda: None, print)
    assert storage.names(vacuums_folder(storage, "events", "events")) == []


def test_a_vacuum_is_waited_for_until_it_is_gone_or_the_waiting_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, said, looks = (
        LocalStorage(world.settings.state),
        list[str](),
        iter((None, None, RecoveryError("given up"))),
    )
    monkeypatch.setattr(running_vacuums, "POLL", 0.0)

    def check() -> None:
        if (error := next(looks)) is not None:
            raise error

    with (
        running_vacuums.noted(storage, "events", "events", None),
        pytest.raises(RecoveryError, match="given up"),
    ):
        running_vacuums.wait_until_gone(storage, "events", "events", check, said.append)
    assert len(said) == 1
