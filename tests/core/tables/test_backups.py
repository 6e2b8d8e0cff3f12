"""Backups: what a copy is made of, the catalog that alone makes a backup, what may go, and where flows
stood.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.copy_files import (
    FIRST_COMMIT,
    CopiedFile,
    Progress,
    check_copyable,
    copy_files,
    files_of,
)
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import CheckpointError, RecoveryError, RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.generations import AFTER_LAST, BATCH, EARLIEST, OFFSETS, REBUILT, StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work
from streamkeeper.storage import LocalStorage, open_storage, to_json
from streamkeeper.support.amounts import DATA_LOSS, DOWNSTREAM, UNKNOWN_IMPACT
from streamkeeper.tables import backups, past_versions
from streamkeeper.tables.backups import NEWEST, Checksum, Copying, LeftOver
from streamkeeper.tables.flows_at_version import FlowAt, look_back
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import approve, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, READER, World
from tests.worlds.tables.backups import NOW, entry

TABLE = "events.events"


def add(path: str, size: int = 4, vector: dict[str, Any] | None = None) -> str:
    more = {"deletionVector": vector} if vector else {}
    return json.dumps({"add": {"path": path, "size": size, "dataChange": True, **more}})


class Told:
    """Hears how far a copy is; ``stop_at`` raises when asked to go on for that many times."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.numbers: list[dict[str, int]] = []
        self._left = stop_at

    def __call__(self, **numbers: int) -> None:
        self.numbers.append(numbers)

    def check(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise RecoveryError("given up")


def progress(told: Told, ticks: float = 0.0) -> Progress:
    """Progress whose clock goes on by so many seconds whenever it is looked at."""
    moments = count()
    return Progress(told, told.check, 3, lambda: next(moments) * ticks)


def test_the_files_of_a_version_are_its_data_files_and_its_deletion_vectors_each_once() -> None:
    of_vector = {"storageType": "u", "offset": 1, "sizeInBytes": 40, "cardinality": 1}
    vector = {**of_vector, "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    bare = {**vector, "pathOrInlineDv": "^-aqEH.-t@S}K{vb[*k^"}
    itself = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    inline = {**vector, "storageType": "i", "pathOrInlineDv": itself}
    commit = [
        '{"commitInfo":{}}',
        add("p=a%2520b/one.parquet", 7),
        add("two.parquet", vector=vector),
        add("three.parquet", vector=vector),
        add("four.parquet", vector=bare),
        add("five.parquet", vector=inline),
    ]
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert list(files_of(commit)) == [
        CopiedFile("p=a%20b/one.parquet", 7),
        CopiedFile("two.parquet", 4),
        CopiedFile(f"ab/{name}", None),
        CopiedFile("three.parquet", 4),
        CopiedFile("four.parquet", 4),
        CopiedFile(name, None),
        CopiedFile("five.parquet", 4),
    ]


OUTSIDE = {
    "a shallow clone's": add("file:/elsewhere/one.parquet"),
    "an absolute path": add("/elsewhere/one.parquet"),
    "a bucket's": add("s3a://bucket/one.parquet"),
    "above the folder": add("../one.parquet"),
    "an absolute deletion vector": add(
        "one.parquet", vector={"storageType": "p", "pathOrInlineDv": "file:///elsewhere/v.bin"}
    ),
}


@pytest.mark.parametrize("line", OUTSIDE.values(), ids=OUTSIDE)
def test_a_table_with_files_outside_of_its_folder_is_refused(line: str) -> None:
    with pytest.raises(RequestError, match="shallow clone"):
        list(files_of([line]))


def test_a_table_of_a_feature_that_nobody_knows_is_refused_by_its_name() -> None:
    check_copyable("/t", {"minWriterVersion": 7, "writerFeatures": ["deletionVectors", "clustering"]})
    features = {"readerFeatures": ["catalogManaged"], "writerFeatures": ["catalogManaged", "domainMetadata"]}
    with pytest.raises(RequestError, match=r"uses catalogManaged, and it is not known"):
        check_copyable("/t", features)


Three = tuple[LocalStorage, LocalStorage, list[CopiedFile]]


@pytest.fixture
def three(tmp_path: Path) -> Three:
    source, target = LocalStorage(str(tmp_path / "source")), LocalStorage(str(tmp_path / "target"))
    for number in range(3):
        source.create(f"p={number}/f%20{number}.parquet", b"x" * (number + 1))
    return source, target, [CopiedFile(f"p={number}/f%20{number}.parquet", number + 1) for number in range(3)]


def test_a_copy_goes_on_where_it_was_killed_and_takes_nothing_half_for_whole(three: Three) -> None:
    source, target, files = three
    target.create(files[0].name, b"x")
    target.create(files[2].name, b"xx")  # cut off: what a copy that is no rename would leave
    done = copy_files(source, target, files, progress(told := Told(), 10))
    assert (done.files, done.bytes, done.skipped) == (3, 6, 1)
    assert [target.read(file.name) for file in files] == [source.read(file.name) for file in files]
    assert told.numbers[-1] == {"files": 3, "of": 3, "bytes": 6}
    assert copy_files(source, target, files, progress(Told())).skipped == 3
    assert not list(Path(target.root).rglob(".streamkeeper-*"))


def test_a_copy_ends_when_its_recovery_is_given_up(three: Three) -> None:
    source, target, files = three
    with pytest.raises(RecoveryError, match="given up"):
        copy_files(source, target, files, progress(Told(stop_at=1), 10))


def test_a_file_that_was_taken_while_it_was_copied_ends_the_copy(three: Three) -> None:
    source, target, files = three
    source.remove(files[1].name)
    with pytest.raises(RecoveryError, match=r"f%201\.parquet is not there any more"):
        copy_files(source, target, files, progress(Told()))
    source.create(files[1].name, b"other")
    with pytest.raises(RecoveryError, match="has 5 bytes, and the log says 2"):
        copy_files(source, target, files, progress(Told()))


def test_an_entry_makes_a_backup_and_is_read_back_as_it_was_written(world: World) -> None:
    storage = open_storage(world.settings.state)
    for name, days in (("b1", 2.0), ("b2", 1.0)):
        assert backups.enter(storage, entry(name, days)) == entry(name, days)
    assert backups.enter(storage, entry("b2", 9)) == entry("b2", 1), "the first that was written holds"
    assert [found.id for found in backups.listed(storage, "events", "events")] == ["b1", "b2"]
    assert [found.id for found in backups.every(storage)] == ["b1", "b2"]
    assert backups.find(storage, "events", "events", NEWEST).id == "b2"
    assert backups.find(storage, "events", "events", "b1") == entry("b1", 2)
    with pytest.raises(RequestError, match=r"no backup 'b9' of events\.events\. The last ones are: b1, b2"):
        backups.find(storage, "events", "events", "b9")
    assert backups.needed_generations(storage) == {"events.clean_events": {1}}


RETENTION: dict[str, tuple[dict[str, Any], bool]] = {
    "none: it stays": ({}, False),
    "older than its days": ({"kept_days": 4.5}, True),
    "younger than its days": ({"kept_days": 5.5}, False),
    "enough newer ones": ({"keep_last": 2}, True),
    "too few newer ones": ({"keep_last": 3}, False),
    "too old, but among the last": ({"kept_days": 1.0, "keep_last": 3}, False),
    "not too old, whatever the newer ones": ({"kept_days": 9.0, "keep_last": 1}, False),
    "both": ({"kept_days": 1.0, "keep_last": 2}, True),
    "for longer than years have numbers": ({"kept_days": 9_999_999.0, "keep_last": 1}, False),
}


@pytest.mark.parametrize(("retention", "goes"), RETENTION.values(), ids=RETENTION)
def test_a_backup_goes_when_neither_its_age_nor_its_rank_keeps_it(
    world: World, retention: dict[str, Any], goes: bool
) -> None:
    storage = open_storage(world.settings.state)
    for number, made in enumerate((entry("old", 5, **retention), entry("newer", 3), entry("newest", 1))):
        assert backups.enter(storage, made).id, number
    found = backups.expired(world.settings, NOW)
    assert [item.id for item in found] == (["old"] if goes else [])
    assert not found or found[0].bytes == 4


def test_the_newest_backup_of_a_table_never_expires(world: World) -> None:
    backups.enter(open_storage(world.settings.state), entry("only", 99, kept_days=1.0, keep_last=1))
    assert backups.expired(world.settings, NOW) == []


def test_a_backup_that_an_open_recovery_needs_is_neither_expired_nor_removed(world: World) -> None:
    storage = open_storage(world.settings.state)
    for made in (entry("old", 5, kept_days=1.0), entry("new", 1)):
        backups.enter(storage, made)
    book = ledger.open(storage, "events", "restore_table-1")
    book.record("planned", {"request": {"backup": "newest"}, "details": {"backup": "old"}})
    expired = [found.id for found in backups.expired(world.settings, NOW)]
    assert expired == ["old"], "a plan alone needs nothing"
    book.record("approved", {"by": "ada"})
    assert backups.expired(world.settings, NOW) == []
    with pytest.raises(RecoveryError, match="needed by restore_table-1"):
        backups.remove(world.settings, "events", "events", "old")
    book.record("ended", {})
    backups.remove(world.settings, "events", "events", "old")
    assert [found.id for found in backups.listed(storage, "events", "events")] == ["new"]


@pytest.mark.parametrize("writes", range(3))
def test_a_removal_that_was_killed_leaves_nothing_that_looks_whole_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    storage = open_storage(world.settings.state)
    for made in (entry("old", 5), entry("new", 1)):
        backups.enter(storage, made)
    files = open_storage(backups.folder(world.settings, "events", "events", "old"))
    files.create("target/one.parquet", b"x")
    real, left = LocalStorage.remove, [writes]

    def removing(self: LocalStorage, name: str) -> None:
        if not left[0]:
            raise OSError("killed")
        left[0] -= 1
        real(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "remove", removing)
        with pytest.raises(OSError, match="killed"):
            backups.remove(world.settings, "events", "events", "old")
    assert [found.id for found in backups.listed(storage, "events", "events")] == ["new"]
    [found] = backups.expired(world.settings, NOW)
    assert (found.id, found.reason) == ("old", "its removal was begun")
    backups.remove(world.settings, "events", "events", "old")
    assert backups.expired(world.settings, NOW) == []
    assert files.names() == []
    assert storage.names("events/tables/events/backups") == ["new.json"]


def test_what_a_backup_that_was_given_up_left_behind_is_named_and_can_be_removed(world: World) -> None:
    storage = open_storage(world.settings.state)
    for name in ("left", "going-on", "whole"):
        copied = open_storage(backups.folder(world.settings, "events", "events", name))
        copied.create("target/one.parquet", b"x")
        ledger.open(storage, "events", name).record("pin.started", {})
    ledger.open(storage, "events", "left").record("given_up", {"why": "a test"})
    backups.enter(storage, entry("whole"))
    [found] = backups.left_over(world.settings).unfinished
    assert (found.id, found.table) == ("left", "events")
    backups.enter(storage, entry("left"))
    with pytest.raises(
        RecoveryError, match="was completed after its removal was planned, so it was not removed"
    ):
        backups.remove(world.settings, found.pipeline, found.table, found.id, unfinished=True)
    storage.remove("events/tables/events/backups/left.json")
    backups.remove(world.settings, found.pipeline, found.table, found.id, unfinished=True)
    assert backups.left_over(world.settings) == LeftOver((), ())


def test_a_copy_that_nothing_here_knows_of_is_named_and_never_removed(world: World) -> None:
    """A state folder that was lost, or another environment's copies: what is needed most is what nobody here
    remembers.
    """
    place = backups.folder(world.settings, "events", "events", "of-another-state")
    open_storage(place).create("target/one.parquet", b"x")
    assert backups.left_over(world.settings) == LeftOver((), (place,))


# Where flows stood


def log(world: World, *transactions: tuple[str, int]) -> None:
    """Append commits of these (app id, version) to the table's log."""
    for app_id, version in transactions:
        world.commit({"txn": {"appId": app_id, "version": version}})


def lose(world: World, before: int) -> None:
    """Remove the oldest commits of the table's log, as Delta does in time."""
    for number in range(before):
        world.version(number).unlink(missing_ok=True)


def stood(world: World, version: int) -> FlowAt:
    return look_back("events", world.settings.table_path("events"), version, [world.home]).flow_at(world.home)


def next_generation(
    world: World, start: StartAt, begun: int | None = None, files: int = 1, number: int = 2
) -> str:
    """Decide a generation, the second by the recovery ``r``, and, with ``begun``, let it begin with that seed
    batch; give its query id.
    """
    first = generations.read(world.home, 1)
    assert first is not None
    recovery = "r" if number == 2 else f"r{number}"
    decided = replace(first, previous=number - 1, start=start, recovery=recovery)
    decided = generations.decide(world.home, generations.with_number(decided, world.home, number))
    if begun is not None:
        made = world.begin([world.add_files(files) for _ in range(begun + 1)], begun + 1, 0, number=number)
        world.home.storage.overwrite(world.home.start(number), to_json({**asdict(made), "seed_batch": begun}))
    return decided.query_id


CHANGED: dict[str, dict[str, Any]] = {
    "emptied": {"txn": {"appId": "r/empty_tables", "version": 0}},
    "a backup put back": {"txn": {"appId": "r/put-back", "version": 1}},
    "another put in its place": {"txn": {"appId": "r/put_in_place", "version": 1}},
    "a version put back": {"commitInfo": {"operation": "RESTORE", "userMetadata": past_versions.mark("r")}},
}


@pytest.mark.parametrize("action", CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("begun", [None, 0])
def test_between_the_fence_and_the_change_of_its_table_a_flow_still_stood_after_its_last_batch(
    world: World, action: dict[str, Any], begun: int | None
) -> None:
    world.processed(3)
    log(world, (world.query_id, FENCE), ("someone", 1))
    world.commit(action)
    second = next_generation(world, StartAt(EARLIEST), begun)
    last = FlowAt("events.clean_events", 1, 2, world.query_id, {"events_raw": {"logOffset": 2}})
    assert [stood(world, version) for version in (3, 4, 5)] == [last, last, last]
    if begun is None:
        with pytest.raises(RecoveryError, match="is decided"):
            stood(world, 6)
    else:
        first = {"events_raw": {"logOffset": 0}}
        assert stood(world, 6) == FlowAt("events.clean_events", 2, 0, second, first)
        assert plan_restore(world, version=5).flows[0].start == StartAt(BATCH, generation=1, batch=2)


def test_a_generation_that_wrote_nothing_and_was_fenced_stood_where_it_began_until_the_next_change(
    world: World,
) -> None:
    """Version 5 empties the table for generation 2, which is fenced in 6; version 7 empties it again for
    generation 3.
    """
    world.processed(3)
    log(world, (world.query_id, FENCE), ("r/empty_tables", 0))
    second = next_generation(world, StartAt(EARLIEST), begun=1)
    log(world, (second, FENCE), ("r3/empty_tables", 0))
    third = next_generation(world, StartAt(EARLIEST), begun=0, number=3)
    found = [stood(world, version) for version in (4, 5, 6, 7)]
    assert [(at.generation, at.batch) for at in found] == [(1, 2), (2, 1), (2, 1), (3, 0)]
    assert found[-1].query_id == third


def test_what_a_log_does_not_reach_back_to_is_said_and_not_guessed(world: World) -> None:
    world.processed(3)
    log(world, ("someone", 1))
    lose(world, 4)
    with pytest.raises(CheckpointError, match="does not go back far enough"):
        stood(world, 4)
    with pytest.raises(RequestError, match="its log holds commits 4 to 4"):
        stood(world, 3)


def test_a_log_that_was_cleaned_tells_what_came_before_a_reset_as_long_as_it_holds_that(world: World) -> None:
    """Versions 1 to 3 are batches of generation 1, 4 is its fence, 5 and 6 are somebody's, 7 is a batch of
    generation 2.
    """
    world.processed(3)
    second = next_generation(world, StartAt(EARLIEST), begun=0)
    log(world, (world.query_id, FENCE), ("someone", 1), ("someone", 2), (second, 1))
    lose(world, 2)
    found = [stood(world, version) for version in (2, 3, 4)]
    assert [(at.generation, at.batch) for at in found] == [(1, 1), (1, 2), (2, 0)]
    assert plan_restore(world, version=3).flows[0].start == StartAt(BATCH, generation=1, batch=2)
    lose(world, 4)
    assert stood(world, 5).generation == 2, "the fence is in the log: nothing of the next came before"
    lose(world, 5)
    with pytest.raises(CheckpointError, match="to know what its generation 2 had written"):
        stood(world, 6)


def test_a_last_batch_that_was_cleaned_from_the_log_before_the_change_of_the_table_is_not_guessed(
    world: World,
) -> None:
    world.processed(3)
    log(world, (world.query_id, FENCE), ("r/empty_tables", 0))
    next_generation(world, StartAt(EARLIEST), begun=0)
    lose(world, 4)
    assert stood(world, 5).generation == 2
    with pytest.raises(CheckpointError, match="does not go back far enough"):
        stood(world, 4)


def test_a_once_flow_is_done_in_a_version_that_holds_its_last_batch(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(2)
    generations.finish(world.home, 1, 1)
    assert (stood(world, 1).done, stood(world, 2).done) == (False, True)


# The recovery


BACKUP, RESTORE = "backup_table", "restore_table"
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "more days than a number has": (BACKUP, {"kept_days": 10**400}, "kept_days is 1000"),
    "more days than dates have": (BACKUP, {"kept_days": 36_501}, "a number of days from 0 to 36,500"),
    "a rank of none": (BACKUP, {"keep_last": 0}, "keep_last is 0"),
    "half a rank": (BACKUP, {"keep_last": 1.5}, "keep_last is 1.5"),
    "neither": (RESTORE, {}, "neither a backup nor a version is given"),
    "both": (RESTORE, {"backup": "b1", "version": 3}, "both a backup ('b1') and a version (3) is given"),
    "half a version": (RESTORE, {"version": 1.5}, "version is 1.5"),
}


@pytest.mark.parametrize(("recovery", "values", "said"), BAD.values(), ids=BAD)
def test_a_bad_value_of_the_form_is_refused_with_what_is_allowed(
    world: World, recovery: str, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match="was not planned, and nothing was changed") as caught:
        planned(world, recovery, table=TABLE, **values)
    assert said in str(caught.value)


def test_a_plan_says_what_is_copied_and_from_where_to_where(world: World) -> None:
    world.processed(2)
    world.summarize()
    made = planned(world, BACKUP, "b1", table=TABLE, kept_days=7)
    [copy] = made.copies
    assert (copy.label, copy.bytes, copy.files) == (TABLE, 4096, 3)
    assert copy.source == world.settings.table_path("events")
    assert copy.destination == f"{world.settings.warehouse}/__backups/events/events/b1/target"
    assert plans.as_stored(made) == made


def test_a_table_that_is_not_there_is_not_backed_up(world: World) -> None:
    with pytest.raises(RequestError, match="There is no Delta table at"):
        planned(world, BACKUP, table=TABLE)
    with pytest.raises(RequestError, match="None of these tables is there yet"):
        planned(world, BACKUP, all=True)


def test_the_tables_of_all_pipelines_are_one_backup(world: World) -> None:
    """It is planned, carried out and entered together; a table that no flow has made yet is left out."""
    rates = replace(world, pipeline="rates", name="clean_rates", table="rates", folder="rates", files=[])
    (world.root / "data" / "rates").mkdir()
    for name in ("rates", "late"):
        world.declare(EVENTS.replace("events", name), f"{name}.py")
    for one in (world, rates):
        one.processed(2)
        one.summarize()
        open_storage(one.settings.table_path(one.table)).create("f0.parquet", b"1234")
    made = approve(world, planned(world, BACKUP, "b1", all=True))
    assert [copy.label for copy in made.copies] == [TABLE, "rates.rates"]
    assert made.subject == "events.events, rates.rates"
    text = explain.as_text(made)
    assert "  2 tables together: 6 files, 8.2 kB" in text
    assert "late.late is not backed up." in text
    with pytest.raises(RequestError, match=r"- late\.late: There is no Delta table at"):
        planned(world, BACKUP, tables=[TABLE, "late.late"])
    evidence: dict[str, Any] = {"pin": {"pinned": []}, "verify": {"verified": []}}
    for copied in made.details_as(Copying).copied:
        folder = open_storage(copied.folder)
        folder.create(backups.COMMIT, add("f0.parquet").encode())
        place = {"source": copied.path, "path": folder.path("target")}
        table = {**place, "version": 2, "table_id": "t", "files": 1, "bytes": 4, "rows": None}
        evidence["pin"]["pinned"].append({"table": table, "flows": []})
        evidence["verify"]["verified"].append({"checksum": asdict(Checksum(4, "9", 1)), "schema": "{}"})

    def in_spark(act: str, work: Work) -> dict[str, Any]:
        return evidence[act.rpartition(":")[2]]  # type: ignore[no-any-return]

    recoveries.carry_out(world, "pin", "copy", recovery="b1", in_spark=in_spark)
    assert backups.left_over(world.settings) == LeftOver((), ()), "the backup is under way"
    recoveries.carry_out(world, "verify", "enter", recovery="b1", in_spark=in_spark)
    for table_of in (world, rates):
        [found] = backups.listed(world.home.storage, table_of.pipeline, table_of.table)
        assert (found.id, found.copy.source) == ("b1", world.settings.table_path(table_of.table))


def test_the_copy_is_a_table_once_all_of_it_is_there_and_a_backup_once_it_is_entered(world: World) -> None:
    world.processed(2)
    table = open_storage(world.settings.table_path("events"))
    for number in range(2):
        table.create(f"f{number}.parquet", b"1234")
    made = approve(world, planned(world, BACKUP, "b1", table=TABLE, keep_last=2))
    folder = open_storage(made.details_as(Copying).copied[0].folder)
    commit = "\n".join([add("f0.parquet"), add("f1.parquet")])
    folder.create(backups.COMMIT, commit.encode())
    place = {"source": table.root, "path": folder.path("target")}
    pinned = {**place, "version": 2, "table_id": "t", "files": 2, "bytes": 8, "rows": None}
    checked = {"checksum": asdict(Checksum(4, "9", 1)), "schema": "{}"}
    flows = [asdict(FlowAt("events.clean_events", 1, 1, "q"))]
    evidence = {"pin": {"pinned": [{"table": pinned, "flows": flows}]}, "verify": {"verified": [checked]}}

    def carry_out(step: str) -> dict[str, Any]:
        def in_spark(act: str, work: Work) -> dict[str, Any]:
            return evidence[act.removeprefix("streamkeeper_jobs.recover.backup_table:")]

        return recoveries.carry_out(world, step, recovery="b1", in_spark=in_spark)

    carry_out("pin")
    gone = table.read("f1.parquet")
    table.remove("f1.parquet")
    with pytest.raises(RecoveryError, match="not there any more"):
        carry_out("copy")
    assert folder.read(f"target/{FIRST_COMMIT}") is None, "half a copy is no table"
    table.create("f1.parquet", gone or b"")
    [copied] = carry_out("copy")["copied"]
    assert (copied["files"], copied["bytes"]) == (2, 8)
    assert folder.read(f"target/{FIRST_COMMIT}") == commit.encode()
    carry_out("verify")
    assert backups.listed(world.home.storage, "events", "events") == []
    carry_out("enter")
    [found] = backups.listed(world.home.storage, "events", "events")
    assert (found.id, found.keep_last, found.flows[0].batch) == ("b1", 2, 1)
    assert found.copy.checksum == Checksum(4, "9", 1)
    assert not engine.give_up(world.settings, "events", "b1", "too late")


# Restoring


def plan_restore(world: World, **values: Any) -> plans.Plan:
    return planned(world, RESTORE, table=TABLE, **values)


def test_a_plan_of_a_restore_names_the_backup_what_is_replaced_and_where_each_flow_goes_on(
    world: World,
) -> None:
    world.processed(3)
    for made in (entry("b1", 2), entry("b2", 1, flows=(stood(world, 2),))):
        backups.enter(world.home.storage, made)
    made = plan_restore(world, backup=NEWEST)
    assert made.request["backup"] == "b2"
    [flow] = made.flows
    assert (flow.generation, flow.next_generation) == (1, 2)
    assert flow.start == StartAt(BATCH, generation=1, batch=1)
    assert [impact.repeated.nothing for impact in flow.impacts] == [True], (
        "the table is restored to before them"
    )
    [copy] = made.copies
    assert (copy.source, copy.destination) == ("/b/b2/target", world.settings.table_path("events"))
    said = "Replaced are all rows, columns and properties of events, by the backup b2 of 2026-11-20"
    assert made.notes[0].startswith(said)
    assert made.refusals == ()
    assert plans.as_stored(made) == made


def test_a_stream_that_reads_the_table_is_a_impact_of_a_restore(world: World) -> None:
    world.processed(3)
    world.declare(READER, "copies.py")
    backups.enter(world.home.storage, entry("b1", flows=(stood(world, 2),)))
    found = plan_restore(world, backup="b1")
    assert refused(found) == [DOWNSTREAM]
    assert "copies.copy_events fails at the commit that removes rows" in found.refusals[0].message
    assert plan_restore(world, backup="b1", accept=[DOWNSTREAM]).refusals == ()


def test_what_others_wrote_since_is_a_impact_of_a_version(world: World) -> None:
    world.processed(3)
    world.commit({"remove": {"path": "x", "dataChange": True}}, operation="DELETE")
    (world.root / "warehouse" / "events" / "x").write_text("x")
    [refusal] = plan_restore(world, version=3).refusals
    assert refusal.impact == DATA_LOSS
    assert "since version 3 are undone and cannot be repeated: version 4 (DELETE)" in refusal.message
    assert plan_restore(world, version=3, accept=[DATA_LOSS]).refusals == ()


def test_where_spark_removed_a_batch_the_offsets_that_were_kept_are_gone_on_from(world: World) -> None:
    start = world.processed(3)
    kept = stood(world, 1)
    backups.enter(world.home.storage, entry("b1", flows=(kept,)))
    for name in ("offsets/0", "commits/0"):
        world.home.storage.remove(f"{start.checkpoint}/{name}")
    [flow] = plan_restore(world, backup="b1").flows
    assert flow.start == StartAt(OFFSETS, offsets={"events_raw": {"logOffset": 0}}, generation=1)
    assert flow.state == REBUILT
    backups.enter(world.home.storage, entry("b2", flows=(replace(kept, offsets={}),)))
    with pytest.raises(
        RequestError, match=r"Batch 0 of generation 1 of events.clean_events is no longer available"
    ):
        plan_restore(world, backup="b2")


def test_a_query_with_a_watermark_that_must_be_rebuilt_from_kept_offsets_has_a_impact(world: World) -> None:
    start = world.processed(3, operators=("stateStoreSave",))
    backups.enter(world.home.storage, entry("b1", flows=(replace(stood(world, 1), watermark_ms=5),)))
    for name in ("offsets/0", "commits/0"):
        world.home.storage.remove(f"{start.checkpoint}/{name}")
    assert refused(plan_restore(world, backup="b1")) == [UNKNOWN_IMPACT]
    assert plan_restore(world, backup="b1", accept=[UNKNOWN_IMPACT]).refusals == ()


def test_a_once_flow_that_was_done_stays_done_and_one_that_was_not_runs_again(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(2)
    generations.finish(world.home, 1, 1)
    for name, days_old, version in (("early", 2, 1), ("late", 1, 2)):
        made = entry(name, days_old, flows=(stood(world, version),))
        backups.enter(world.home.storage, made)
    found = [plan_restore(world, backup=name).flows[0].next_generation for name in ("early", "late")]
    assert found == [2, None]
    next_generation(world, StartAt(AFTER_LAST), begun=2)
    generations.finish(world.home, 2, 2)
    again = plan_restore(world, backup="late").flows[0]
    assert again.next_generation == 3, "what generation 2 wrote since is undone"


def test_a_version_that_is_not_there_is_refused_with_what_is(world: World) -> None:
    world.processed(2)
    with pytest.raises(RequestError, match=r"has no version 7: its newest is 2"):
        plan_restore(world, version=7)
    assert plan_restore(world, version=1).flows[0].start == StartAt(BATCH, generation=1, batch=0)


def test_a_flow_that_wrote_nothing_for_as_long_as_the_log_reaches_back_is_only_held(world: World) -> None:
    world.processed(2)
    log(world, ("someone", 1), ("someone", 2))
    lose(world, 3)
    assert plan_restore(world, version=3).flows[0].next_generation is None
