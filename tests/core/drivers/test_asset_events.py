"""Which event of a table's asset is due: from logs and checkpoints as Delta and Spark write them, and an
Airflow that has, or lost, what it was handed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from streamkeeper.checkpoint import CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.delta.log import FENCE
from streamkeeper.flows import generations
from streamkeeper.flows.generations import AFTER_LAST, BATCH, COPIED, EARLIEST, REBUILT, Start, StartAt
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.past_versions import EMPTIED, app_id, mark
from streamkeeper.watch import asset_events
from streamkeeper.watch.asset_events import AssetEvent
from tests.worlds.small_world import EVENTS, World, write_manifest
from tests.worlds.tables.delta_logs import add

REWIND, REFRESH = "rewind-now-1", "full_refresh-now-2"
FLOW = "events.clean_events"


def declared(every: str) -> str:
    return EVENTS.replace(
        'create_streaming_table("events"', f'create_streaming_table("events", asset_every={every}'
    )


def moment_ms(clock: str) -> int:
    """Give a time of the day, or 24:00:00, in milliseconds since 1970."""
    hours, minutes, seconds = map(float, clock.split(":"))
    midnight = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return int((midnight + timedelta(hours=hours, minutes=minutes, seconds=seconds)).timestamp() * 1000)


@dataclass
class Bed:
    """A flow that commits when the test says so, a monitor that looks, and Airflow's events."""

    world: World
    now: float = 1_790_000_000.0
    posted: list[AssetEvent] = field(default_factory=list)
    is_lost: bool = False
    number: int = 1

    def begin(self, number: int = 1, start: StartAt | None = None, recovery: str | None = None) -> None:
        """Let a driver begin a generation, after a batch of the one before where it starts from one."""
        home = self.world.home
        first = generations.first(home, self.world.flow.fingerprint)
        decided = generations.decide(
            home,
            first
            if start is None
            else replace(
                generations.with_number(first, home, number),
                previous=number - 1,
                start=start,
                state=REBUILT if start.mode == EARLIEST else COPIED,
                recovery=recovery,
            ),
        )
        folder, seed = home.checkpoint(number, 1), None if start is None else start.batch
        if seed is not None:
            before = f"{home.checkpoint(number - 1, 1)}/offsets/{seed}"
            home.storage.overwrite(f"{folder}/offsets/{seed}", home.storage.read(before) or b"")
            home.storage.overwrite(f"{folder}/commits/{seed}", write_commit(CommitEntry(seed, 1, 0)))
        at = "2026-11-21T10:00:00+00:00"
        generations.begin(home, Start(number, folder, seed, {}, {}, (), decided.state, 1, at))
        self.number = number

    def commit(self, batch: int, rows: int = 2, watermark: str | None = None) -> None:
        """Commit a batch in the table and in the checkpoint."""
        home, folder = self.world.home, self.world.home.checkpoint(self.number, 1)
        ms = 0 if watermark is None else moment_ms(watermark)
        entry = OffsetEntry(
            batch, 2, ms, 1, {}, {"events_raw": {"logOffset": batch}}, {"sourceMetadataInfo": {}}
        )
        home.storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(entry))
        txn = {"txn": {"appId": home.query_id(self.number), "version": batch, "lastUpdated": 1}}
        added = [add(f"{self.number}-{batch}", rows)] if rows else []
        self.world.commit(txn, *added, operation="STREAMING UPDATE")
        home.storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, 0)))

    def fence(self) -> None:
        generations.end(self.world.home, self.number, None)
        self.world.commit({"txn": {"appId": self.world.home.query_id(self.number), "version": FENCE}})

    def look(self, minutes: float = 1) -> list[AssetEvent]:
        """Look as a task does: Airflow has its event once it has succeeded."""
        self.now += 60 * minutes
        settings = self.world.settings
        (table,) = asset_events.asset_tables(settings, read_manifest(settings))
        ids = {event.extra["id"] for event in self.posted}
        event = asset_events.next_event(self.world.home.storage, table, self.now, ids.__contains__)
        events = [] if event is None else [event]
        self.posted += [] if self.is_lost else events
        return events

    def facts(self, minutes: float = 1) -> list[tuple[Any, ...]]:
        """Look, and give version, batch, commits, rows and recoveries of the event."""
        return [
            (
                event.extra["version"],
                event.extra["flows"][FLOW]["batch"],
                event.extra["commits"],
                event.extra["rows"],
                [recovery["id"] for recovery in event.extra["recoveries"]],
            )
            for event in self.look(minutes)
        ]

    def hours(self) -> list[str]:
        """Look until nothing is due, and give the partitions."""
        keys: list[str] = []
        while events := self.look():
            keys += [key.removeprefix("2026-01-01T").removesuffix(":00:00") for key in events[0].partitions]
        return keys


@pytest.fixture
def bed(world: World) -> Bed:
    return started(world, '"1 minute"')


def started(world: World, every: str) -> Bed:
    world.declare(declared(every))
    write_manifest(world.settings)
    bed = Bed(world)
    bed.begin()
    world.commit({"metaData": {"id": "t"}})
    return bed


def test_an_event_tells_version_batch_rows_and_watermark_of_what_came_since_the_last_one(bed: Bed) -> None:
    assert bed.look() == [], "nothing was committed"
    bed.commit(0, rows=2)
    bed.commit(1, rows=3, watermark="10:30:00")
    (event,) = bed.look()
    assert event.partitions == ()
    assert {name: value for name, value in event.extra.items() if name != "id"} == {
        "table": "events",
        "location": bed.world.settings.table_path("events"),
        "version": 2,
        "commits": 2,
        "rows": 5,
        "watermark": "2026-01-01T10:30:00.000+00:00",
        "flows": {FLOW: {"generation": 1, "batch": 1}},
        "recoveries": [],
    }
    json.dumps(event.extra)
    assert bed.look() == [], "it was told"
    bed.commit(2, rows=0)
    bed.world.commit(add("c0", 5, dataChange=False), operation="OPTIMIZE")
    assert bed.look() == [], "no rows came"
    bed.commit(3, rows=1)
    assert bed.facts() == [(5, 3, 1, 1, [])]


@pytest.mark.parametrize(
    ("every", "due"),
    [
        pytest.param('"1 minute"', [0, 1, 2, 3, 4, 5], id="each minute"),
        pytest.param('"3 minutes"', [0, 3], id="a time"),
        pytest.param('"2 commits"', [1, 3, 5], id="commits"),
        pytest.param('"7 rows"', [3], id="rows"),
        pytest.param("None", [], id="never"),
    ],
)
def test_events_come_as_often_as_declared(every: str, due: list[int], world: World) -> None:
    bed, looks = started(world, every), []
    if every == "None":
        assert list(asset_events.asset_tables(world.settings, read_manifest(world.settings))) == []
        return
    for batch in range(6):
        bed.commit(batch)
        looks += [batch] if bed.look() else []
    assert looks == due


def test_what_airflow_has_is_told_once_and_what_it_lost_again_with_what_came_since(bed: Bed) -> None:
    bed.commit(0)
    bed.is_lost = True
    assert bed.facts() == [(1, 0, 1, 2, [])]
    bed.commit(1)
    assert bed.facts() == [(2, 1, 2, 4, [])], "the task failed, or its process died"
    bed.is_lost = False
    assert bed.facts() == [(2, 1, 2, 4, [])]
    assert bed.look() == []
    ids = [event.extra["id"] for event in bed.posted]
    bed.commit(2)
    bed.look()
    assert len({*ids, bed.posted[-1].extra["id"]}) == 2


def test_what_a_rewind_undid_is_not_told_and_the_rewind_is_told_once(bed: Bed) -> None:
    for batch in range(2):
        bed.commit(batch)
    assert bed.facts() == [(2, 1, 2, 4, [])]
    bed.commit(2)
    recovery_lock.take(bed.world.home.storage, "events", "events", REWIND)
    assert bed.look() == [], "it is under way"
    bed.fence()
    restored = {"operation": "RESTORE", "userMetadata": mark(REWIND), "operationParameters": {"version": 1}}
    bed.world.commit({"remove": {"path": "1-1", "dataChange": True}}, **restored)
    recovery_lock.give_back(bed.world.home.storage, "events", "events", REWIND)
    bed.begin(2, StartAt(BATCH, generation=1, batch=0), REWIND)
    assert bed.facts() == [(5, 0, 0, 0, [REWIND])]
    bed.commit(1, rows=7)
    assert bed.facts() == [(6, 1, 1, 7, [])]
    assert bed.look() == []


def test_a_rewind_that_leaves_the_table_alone_is_told_too_and_a_takeover_is_not(bed: Bed) -> None:
    for batch in range(3):
        bed.commit(batch)
    bed.look()
    bed.fence()
    bed.begin(2, StartAt(AFTER_LAST, batch=2))
    assert bed.look() == []
    bed.fence()
    bed.begin(3, StartAt(BATCH, generation=2, batch=2), REWIND)
    assert bed.facts() == [(3, 2, 0, 0, [REWIND])]
    assert bed.look() == []


def test_a_table_that_was_never_looked_at_has_no_past_to_tell(bed: Bed) -> None:
    bed.commit(0)
    bed.world.commit({"txn": {"appId": app_id(REFRESH, EMPTIED), "version": 1}}, add("x"), operation="WRITE")
    bed.commit(1, rows=3)
    assert bed.facts() == [(3, 1, 1, None, [])]


def test_each_hour_that_the_watermark_has_passed_is_told_once(world: World) -> None:
    bed = started(world, '"watermark hour"')
    bed.commit(0)
    assert bed.look() == [], "no watermark"
    bed.commit(1, watermark="09:20:00")
    assert bed.look() == []
    bed.commit(2, watermark="11:59:59.999")
    assert bed.hours() == ["09", "10"]
    bed.commit(3, rows=0, watermark="12:00:00")
    assert bed.hours() == ["11"], "a batch without rows closes an hour as well"
    bed.commit(4, watermark="12:59:00")
    assert bed.hours() == []
    world.declare(declared('"watermark day"'))
    write_manifest(world.settings)
    assert bed.look() == []
    bed.commit(5, watermark="23:59:59.999")
    assert bed.look() == []
    bed.commit(6, watermark="24:00:00")
    assert bed.hours() == ["00"], "the day, of which some hours were told"


def test_the_hours_of_a_long_past_are_told_some_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asset_events, "MOST_PARTITIONS", 3)
    bed = started(world, '"watermark hour"')
    bed.commit(0, watermark="01:00:00")
    bed.commit(1, watermark="09:00:00")
    assert [len(bed.look()[0].partitions) for _ in range(3)] == [3, 3, 2]
    assert bed.look() == []


def test_hours_that_a_rewind_opens_again_are_told_again(world: World) -> None:
    bed = started(world, '"watermark hour"')
    for batch, watermark in enumerate(["08:00:00", "10:10:00", "13:00:00"]):
        bed.commit(batch, watermark=watermark)
    assert bed.hours() == ["08", "09", "10", "11", "12"]
    bed.fence()
    bed.world.commit({"remove": {"path": "1-2"}}, operation="RESTORE", userMetadata=mark(REWIND))
    decided = generations.decide(
        world.home,
        replace(
            generations.with_number(generations.first(world.home, "f"), world.home, 2),
            previous=1,
            start=StartAt(BATCH, generation=1, batch=1),
            state=COPIED,
            recovery=REWIND,
        ),
    )
    (told,) = bed.look()
    assert ([recovery["kind"] for recovery in told.extra["recoveries"]], told.partitions) == (["rewind"], ())
    assert bed.look() == [], "no driver has begun the generation"
    bed.begin(decided.number, decided.start, REWIND)
    assert bed.look() == [], "told before"
    bed.commit(2, watermark="12:30:00")
    assert bed.hours() == ["10", "11"]


def test_a_full_refresh_opens_all_hours_again(world: World) -> None:
    bed = started(world, '"watermark hour"')
    bed.commit(0, watermark="08:00:00")
    bed.commit(1, watermark="11:00:00")
    assert bed.hours() == ["08", "09", "10"]
    bed.fence()
    emptied = {"txn": {"appId": app_id(REFRESH, EMPTIED), "version": 1}}
    bed.world.commit(emptied, {"remove": {"path": "1-0"}}, operation="WRITE")
    bed.begin(2, StartAt(EARLIEST), REFRESH)
    (told,) = bed.look()
    assert told.extra["recoveries"] == [{"kind": "full_refresh", "id": REFRESH}]
    bed.commit(0, watermark="09:30:00")
    assert bed.hours() == ["08"], "the first hour that was ever told"
    bed.commit(1, watermark="11:00:00")
    assert bed.hours() == ["09", "10"]


@pytest.mark.parametrize("every", ['"59 seconds"', '"hour"', '"0 rows"', "60", '"watermark minute"'])
def test_an_asset_every_that_cannot_be_is_refused(every: str, world: World) -> None:
    world.declare(declared(every))
    (message,) = write_manifest(world.settings).errors.values()
    assert "the table events has asset_every=" in message and "'watermark hour'" in message


def test_who_is_told_of_a_table_is_not_what_its_flow_does(world: World) -> None:
    fingerprints = set()
    for every in ('"1 minute"', '"watermark day"', "None"):
        world.declare(declared(every))
        write_manifest(world.settings)
        fingerprints.add(world.flow.fingerprint)
    assert len(fingerprints) == 1
