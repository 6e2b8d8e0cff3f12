"""How much waits in a source, as numbers, against what was put there: files, a Delta table's log, rates, and
what brokers say.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import FileEntry, write_files_log
from streamkeeper.checkpoint.files_log import FilesLog
from streamkeeper.declare.model import Location, Source
from streamkeeper.errors import SourceError
from streamkeeper.sources.base.format import Lag
from streamkeeper.sources.delta import format as delta_format
from streamkeeper.sources.files.listing import PassedOver, list_files
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics
from streamkeeper.watch import behind
from tests.worlds.small_world import EVENTS, World
from tests.worlds.sources.source_impacts import DELTA, FILES, KAFKA, STOOD, Ask, at, begun, broker, table
from tests.worlds.tables.delta_logs import START_MS, Table, add

__all__ = ["broker", "table"]


def lag(world: World) -> Lag:
    """Return the lag of the flow's one source."""
    measured = behind.measure(world.home, world.flow, lambda flow: flow)
    assert measured is not None and list(measured.sources) == ["events_raw"]
    return measured.sources["events_raw"]


def since(written_ms: float) -> Any:
    return pytest.approx(time.time() - written_ms / 1000, abs=5)


# --- files


def written(files: list[Path], hours_ago: float) -> int:
    """Let files have been written that long ago; give their bytes."""
    moment = time.time() - 3600 * hours_ago
    for file in files:
        os.utime(file, (moment, moment))
    return sum(file.stat().st_size for file in files)


def test_files_that_were_not_read_are_counted_with_the_age_of_the_oldest(world: World) -> None:
    world.clock_ms = round(1000 * (time.time() - 36_000))
    world.processed(3, per_batch=2)
    assert lag(world) == Lag(0, 0, 0, None, 0.0)
    old, new = world.add_files(4), world.add_files(3, rows=5)
    size = written(old, 2) + written(new, 1)
    assert lag(world) == Lag(None, 7, size, None, since(1000 * time.time() - 7_200_000))


def test_before_its_first_commit_all_files_of_a_flow_wait(world: World) -> None:
    size = written(world.add_files(3), 5)
    waits = Lag(None, 3, size, None, since(1000 * time.time() - 18_000_000))
    assert lag(world) == waits, "it never began"
    world.begin([world.files], 0, 0)
    assert lag(world) == waits, "a batch is planned"


def test_hidden_files_do_not_wait_and_folders_are_listed_to_their_depth(world: World) -> None:
    world.processed(1)
    folder = world.root / "data" / "events"
    (folder / "day=1" / "_hidden").mkdir(parents=True)
    (folder / "linked").symlink_to(folder / "day=1")
    for name in ("_SUCCESS", ".f.json.crc", "f.json._COPYING_", "day=1/_hidden/f.json", "day=1/f.json"):
        (folder / name).write_text("{}")
    (folder / "gone.json").symlink_to(folder / "nowhere.json")
    assert (lag(world).files, lag(world).bytes) == (1, 2)


def listed(root: Path, path: str, **options: str) -> tuple[list[str], list[str]]:
    """Return the files below a path that Spark reads, and those that it passes over."""
    passed_over = PassedOver()
    files = list_files(
        Source("raw", "json", f"{root}/{path}", "n INT", options, Location("p.py", 1)), passed_over
    )
    below = (
        sorted(str(Path(name).relative_to(root)) for name in names) for names in (files, passed_over.folders)
    )
    return next(below), next(below)


def test_folders_below_the_source_s_own_are_read_only_where_spark_looks_into_them(
    tmp_path: Path, world: World
) -> None:
    for name in ("in/a", "in/2026/b", "in/2026/11/c", "days/a", "days/day=1/more/b", "days/other/c"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    assert listed(tmp_path, "in") == (["in/a"], ["in/2026/11/c", "in/2026/b"])
    assert listed(tmp_path, "in", recursivefilelookup="True") == (["in/2026/11/c", "in/2026/b", "in/a"], [])
    assert listed(tmp_path, "in/*") == (["in/2026/b", "in/a"], ["in/2026/11/c"])
    assert listed(tmp_path, "days") == (["days/a", "days/day=1/more/b", "days/other/c"], []), "by its columns"
    world.processed(1)
    (below := world.root / "data" / "events" / "2026").mkdir()
    (below / "f.json").write_text("{}")
    skips = lag(world)
    assert (skips.files, skips.skipped) == (0, 1)
    assert f"such as {below / 'f.json'}: declare recursiveFileLookup" in skips.skipped_reason


def test_of_the_log_only_the_end_is_read_however_much_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = world.processed(1)
    entries = [FileEntry(f"file:///data/{number:09d}.json", 1_000 + number, 0) for number in range(20_000)]
    log = f"{start.checkpoint}/sources/events_raw"
    world.home.storage.overwrite(f"{log}/9.compact", b"".join(write_files_log(entries)))
    offset = b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\nevents_raw:{"logOffset":9}'
    world.home.storage.overwrite(f"{start.checkpoint}/offsets/0", offset)
    monkeypatch.setattr(FilesLog, "entries", lambda *_: pytest.fail("the whole log is read"))
    assert lag(world).files == 1, "the world's own file, which this log does not have"
    world.add_files(1500)
    assert lag(world).files == 1501


def test_where_the_newest_files_are_read_first_what_waits_is_unknown(world: World) -> None:
    world.declare(EVENTS.replace("options={}", 'options={"latestFirst": "true"}'))
    world.processed(1)
    assert lag(world).unknown and "newest files first" in lag(world).reason


def test_where_positions_or_folder_cannot_be_read_the_reason_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.processed(1)

    scan = os.scandir

    def refused(path: str) -> Any:
        if path.endswith("data/events"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", refused)
        assert lag(world).unknown and "data/events cannot be listed: Permission denied" in lag(world).reason
    world.home.storage.overwrite(f"{world.home.checkpoint(1, 1)}/offsets/0", b"v2\n")
    assert lag(world).unknown and "offsets/0" in lag(world).reason


def test_of_an_object_store_the_listing_alone_tells_the_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for each file's time is a search among all of them (s3fs), or a request."""
    fsspec = pytest.importorskip("fsspec")

    class Store:
        def find(self, base: str, detail: bool) -> dict[str, dict[str, Any]]:
            old = datetime.now(timezone.utc) - timedelta(hours=2)
            return {f"{base}/{name}.json": {"LastModified": old, "size": 7} for name in ("a", "b", "_c")}

    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _path: (Store(), "bucket/in"))
    world.declare(EVENTS.replace("{data}/events", "s3://bucket/in"))
    assert lag(world) == Lag(None, 2, 14, None, pytest.approx(7200, abs=60))


@pytest.mark.parametrize("root", ["a local folder", "memory://bucket"])
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("in-{a,c}", ["in-a/1", "in-c/1"]),
        ("in-[^a]", ["in-b/1", "in-c/1"]),
        ("in-?/{1,2{x,y}}", ["in-a/1", "in-b/1", "in-c/1"]),
        ("in-*", ["in-a/1", "in-b/1", "in-c/1"]),
        ("out/*", ["out/1"]),
    ],
)
def test_a_path_that_is_a_pattern_is_listed_as_hadoop_reads_it(
    root: str, pattern: str, found: list[str], tmp_path: Path
) -> None:
    fsspec = pytest.importorskip("fsspec")
    base = root if "://" in root else str(tmp_path)
    for name in ("in-a/1", "in-b/1", "in-c/1", "out/1", "out/_SUCCESS"):
        fsspec.open(f"{base}/{name}", "w", auto_mkdir=True).open().close()
    source = Source("raw", "json", f"{base}/{pattern}", "n INT", {}, Location("p.py", 1))
    assert sorted(list_files(source)) == [f"{base}/{name}".replace("://", ":///") for name in found]


# --- Delta


def test_versions_that_were_not_read_are_counted_by_the_table_s_log(world: World, table: Table) -> None:
    begun(world, DELTA, at(1))
    assert lag(world) == Lag(10, 3, 30, 2, since(START_MS + 60_000))
    begun_at(world, at(2, 0))
    assert lag(world) == Lag(4, 1, 10, 1, since(START_MS + 120_000)), "the first file of version 2 was read"
    begun_at(world, at(3))
    assert lag(world) == Lag(0, 0, 0, 0, 0.0)
    table.commit({"add": {"path": "optimized", "size": 9, "dataChange": False}})
    assert lag(world).versions == 0, "compaction brings nothing to read"
    table.commit(add("d0", None))
    assert lag(world) == Lag(None, 1, 10, 1, since(START_MS + 240_000)), "its rows are not told"


def begun_at(world: World, offset: Any) -> None:
    name = f"{world.home.checkpoint(1, 1)}/offsets/0"
    content = (world.home.storage.read(name) or b"").splitlines()[:2]
    line = b"events_raw:" + json.dumps(offset, separators=(",", ":")).encode()
    world.home.storage.overwrite(name, b"\n".join([*content, line]))


def test_of_a_long_backlog_only_the_number_of_versions_and_the_oldest_are_told(
    world: World, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(world, DELTA, at(0))
    monkeypatch.setattr(delta_format, "MOST", 2)
    found = lag(world)
    assert (found.versions, found.records, found.files) == (3, None, None)
    assert found.seconds == since(START_MS) and found.reason == "only 2 commits are read for this"


def test_a_table_of_which_nothing_was_read_waits_whole(world: World, table: Table) -> None:
    world.declare(DELTA)
    summary = {"numFiles": 5, "tableSizeBytes": 50, "protocol": {}, "metadata": {}}
    (table.log / f"{2:020d}.crc").write_text(json.dumps(summary))
    assert lag(world) == Lag(None, 5, 50, 3, since(START_MS))
    world.declare(DELTA.replace('path="{data}/source"', 'path="{data}/source", start="latest"'))
    assert lag(world).unknown and "declared to start at latest" in lag(world).reason


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        pytest.param(at(7), "version 7 is to be read next", id="restored from a copy"),
        pytest.param({**at(1), "reservoirId": "other"}, "the table was recreated", id="another table"),
        pytest.param({"logOffset": 3}, "another kind of source", id="another kind"),
    ],
)
def test_a_position_that_the_table_does_not_have_is_unknown(
    offset: dict[str, Any], why: str, world: World, table: Table
) -> None:
    begun(world, DELTA, offset)
    assert lag(world).unknown and why in lag(world).reason


def test_a_table_that_is_being_read_whole_tells_its_versions_alone(world: World, table: Table) -> None:
    begun(world, DELTA, at(1, 0, isStartingVersion=True))
    found = lag(world)
    assert (found.versions, found.files, found.seconds) == (2, None, since(START_MS + 60_000))


# --- Kafka

Written = Callable[[Offsets | str], list[Offsets]]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Let the brokers say when the first records after offsets were written, or fail; gives the questions."""

    def answers(found: Offsets | str) -> list[Offsets]:
        asked: list[Offsets] = []

        def written_at(source: Any, offsets: Offsets, seconds: float = 5.0) -> Offsets:
            asked.append(offsets)
            if isinstance(found, str):
                raise SourceError(found)
            return found

        monkeypatch.setattr(kafka_client, "written_at", written_at)
        return asked

    return answers


TWO = Topics({"orders": {"0": OffsetRange(0, 10), "1": OffsetRange(2, 5)}})


def test_records_between_position_and_end_wait_and_the_oldest_has_its_age(
    world: World, broker: Ask, records: Written
) -> None:
    begun(world, KAFKA, STOOD)
    broker(TWO)
    asked = records({"orders": {"0": START_MS + 9000, "1": START_MS, "2": START_MS + 1}})
    assert lag(world) == Lag(6, None, None, None, since(START_MS))
    assert asked == [{"orders": {"0": 6, "1": 3}}]
    broker(Topics({"orders": {"0": OffsetRange(8, 10), "1": OffsetRange(0, 3), "2": OffsetRange(0, 1)}}))
    assert lag(world).records == 3, "what expired does not wait; a new partition does"
    assert asked[1:] == [{"orders": {"0": 8, "2": 0}}]
    broker(Topics({"orders": {"0": OffsetRange(0, 6), "1": OffsetRange(0, 3)}}))
    assert lag(world) == Lag(records=0, seconds=0.0) and len(asked) == 2
    broker(Topics({"orders": {"0": OffsetRange(0, 5), "1": OffsetRange(0, 9)}}))
    assert lag(world).unknown and "ends before the flow's position" in lag(world).reason


def test_the_marks_of_transactions_are_no_records(world: World, broker: Ask, records: Written) -> None:
    begun(world, KAFKA, STOOD)
    broker(TWO)
    records({"orders": {"0": START_MS}})
    assert lag(world) == Lag(records=4, seconds=since(START_MS))
    records({})
    assert lag(world) == Lag(records=0, seconds=0.0)


def test_what_brokers_do_not_tell_is_unknown_with_the_reason(
    world: World, broker: Ask, records: Written
) -> None:
    begun(world, KAFKA, STOOD)
    broker(TWO)
    records("b:1 does not answer within 5 s")
    assert (lag(world).records, lag(world).seconds) == (6, None)
    assert "b:1 does not answer within 5 s" in lag(world).reason
    broker("b:1 does not answer within 5 s")
    assert lag(world) == Lag(reason="b:1 does not answer within 5 s")


def test_of_many_partitions_those_with_most_records_are_asked(
    world: World, broker: Ask, records: Written
) -> None:
    begun(world, KAFKA, {"orders": {}})
    broker(Topics({"orders": {str(part): OffsetRange(0, part) for part in range(200)}}))
    asked = records({"orders": {str(part): START_MS for part in range(200)}})
    assert lag(world).records == sum(range(200))
    assert sorted(map(int, asked[0]["orders"])) == list(range(136, 200))


# --- rate


def test_rows_of_a_rate_are_counted_by_the_seconds_since_the_last_one(world: World) -> None:
    text = EVENTS.replace(FILES, 'format="rate", options={"rowsPerSecond": "7"}')
    world.committed(text, 0, 20, round(1000 * (time.time() - 120.5)))
    found = lag(world)
    assert found.seconds in (100, 101, 102) and found.records == 7 * found.seconds
    begun_at(world, 100_000)
    assert lag(world) == Lag(records=0, seconds=0.0)
