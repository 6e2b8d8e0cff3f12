"""A Delta table as a source, by its log alone: what is still held, which commit was when, what lies between
two positions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.history import (
    between,
    is_gone,
    missing_files,
    offset_before,
    read_history,
    require_history,
    skipped,
    version_at,
)
from streamkeeper.delta.log import commits
from streamkeeper.delta.remembered import DOMAIN
from streamkeeper.delta.summary import newest_summary
from streamkeeper.errors import CheckpointError, SourceError
from tests.worlds.tables.delta_logs import ID, START_MS, Table, add

INLINE = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
"""A deletion vector that is in the log itself."""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path / "t")
    table.commit(add("b0", 5))
    table.commit(
        add("c0", 1),
        add("c1", 4),
        {"add": {"path": "optimized", "dataChange": False, "stats": '{"numRecords": 99}'}},
    )
    return table


def offset(version: int, index: int = -1, starting: bool = False, table_id: str = ID) -> dict[str, Any]:
    return {**offset_before(table_id, version), "index": index, "isStartingVersion": starting}


def test_a_table_is_known_by_its_log(table: Table, tmp_path: Path) -> None:
    found = require_history(str(table.root), "raw")
    assert (found.table_id, found.oldest, found.newest, found.checkpoints) == (ID, 0, 2, ())
    assert read_history(str(tmp_path / "nothing")) is None
    with pytest.raises(
        SourceError, match=r"The source raw reads the Delta table at .*nothing, and there is none"
    ):
        require_history(str(tmp_path / "nothing"), "raw")


def test_the_id_comes_from_the_summary_of_the_newest_commit_where_the_commits_do_not_name_it(
    table: Table,
) -> None:
    table.clean_up(2)
    assert require_history(str(table.root), "raw").table_id is None
    (table.log / f"{2:020d}.crc").write_text(json.dumps({"metadata": {"id": ID}}))
    assert require_history(str(table.root), "raw").table_id == ID


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (offset(3), None),
        (offset(2, 0), None),
        (offset(1), "version 1 is to be read next, and the log starts at 2 now"),
        (offset(1, 0), "the commits before were cleaned up"),
        (offset(2, 0, starting=True), None),
        (
            offset(1, 0, starting=True),
            "the table as it was at version 1 was being read, and the log starts at 2",
        ),
        (
            offset(4),
            "version 4 is to be read next, and the table ends at 2: it was restored from an older copy",
        ),
        (offset(3, table_id="another"), "the table was recreated: its id was another and is 7c0ffee0"),
    ],
    ids=[
        "at the end",
        "in a commit",
        "cleaned up",
        "within one cleaned up",
        "a snapshot",
        "a lost snapshot",
        "an older copy",
        "again",
    ],
)
def test_what_is_gone_is_found_before_anything_is_read(
    at: dict[str, Any], why: str | None, table: Table
) -> None:
    table.clean_up(2)
    (table.log / f"{2:020d}.crc").write_text(json.dumps({"metadata": {"id": ID}}))
    found = is_gone(at, require_history(str(table.root), "raw"))
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("minutes", "version"),
    [(-5, 0), (0, 0), (0.5, 1), (1, 1), (2, 2), (2.5, 3)],
    ids=["before", "at", "after", "second", "last", "later"],
)
def test_a_moment_is_the_first_version_committed_at_it_or_later(
    minutes: float, version: int, table: Table
) -> None:
    assert version_at(require_history(str(table.root), "raw"), int(START_MS + minutes * 60_000)) == version


def test_a_commit_that_writes_its_own_time_goes_by_that(table: Table) -> None:
    for version, seconds in ((1, 90), (2, 120)):
        file = table.log / f"{version:020d}.json"
        file.write_text(json.dumps({"commitInfo": {"inCommitTimestamp": START_MS + 1000 * seconds}}) + "\n")
    assert version_at(require_history(str(table.root), "raw"), START_MS + 80_000) == 1


def test_a_moment_whose_commits_were_cleaned_up_is_refused(table: Table) -> None:
    table.clean_up(2)
    with pytest.raises(SourceError, match="starts with version 2, which is newer than that time"):
        version_at(require_history(str(table.root), "raw"), START_MS)


@pytest.mark.parametrize(
    ("start", "end", "rows", "files"),
    [
        (offset(0), offset(3), 15, 5),
        (offset(1), offset(2), 5, 1),
        (offset(0, 0), offset(2, 0), 9, 3),
        (offset(2, 0), offset(2, 1), 4, 1),
        (offset(3), offset(3), 0, 0),
        (offset(2), offset(1), 0, 0),
    ],
    ids=["all", "one version", "from within to within", "within one", "nothing", "backwards"],
)
def test_rows_between_two_positions_are_counted_from_the_log(
    start: dict[str, Any], end: dict[str, Any], rows: int, files: int, table: Table
) -> None:
    found = between(require_history(str(table.root), "raw"), start, end)
    assert (found.rows, found.files, found.changing, found.reason) == (rows, files, (), None)


def test_rows_that_nobody_counted_are_unknown_with_the_reason(table: Table) -> None:
    table.commit(add("d0", None))
    history = require_history(str(table.root), "raw")
    assert between(history, offset(1), offset(4)).rows is None
    assert "version 3 does not say how many rows" in (between(history, offset(1), offset(4)).reason or "")
    assert "not counted file by file" in (
        between(history, offset(0, 1, starting=True), offset(4)).reason or ""
    )
    table.clean_up(2)
    assert "the log starts at version 2" in (
        between(require_history(str(table.root), "raw"), offset(1), offset(4)).reason or ""
    )


def test_deleted_rows_do_not_count_and_versions_that_change_rows_are_named(table: Table) -> None:
    table.commit(
        add("d0", 10, deletionVector={**INLINE, "cardinality": 4}),
        {"remove": {"path": "a0", "dataChange": True}},
    )
    found = between(require_history(str(table.root), "raw"), offset(3), offset(4))
    assert (found.rows, found.changing) == (6, (3,))
    assert (
        between(require_history(str(table.root), "raw"), offset(2), offset(4), skips_changes=True).rows == 5
    )


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (offset(2), offset(6), ((3, 4), 7)),
        (offset(3), offset(4), ((3,), 7)),
        (offset(3), offset(3), None),
        (offset(4), offset(5), ((4,), 0)),
        (offset(3, 0), offset(4), None),
        (offset(3, starting=True), offset(6), ((4,), 0)),
        (None, offset(6), None),
    ],
    ids=[
        "all",
        "one",
        "none",
        "one that only deletes",
        "behind its files",
        "in the first table",
        "a beginning",
    ],
)
def test_commits_that_a_source_skips_are_counted_with_the_rows_of_their_new_files(
    start: dict[str, Any] | None, end: dict[str, Any], found: tuple[Any, ...] | None, table: Table
) -> None:
    gone = {"remove": {"path": "a0", "dataChange": True}}
    table.commit(add("d0", 7), gone)
    table.commit(
        add("a1", 3, deletionVector={**INLINE, "cardinality": 1}),
        {"remove": {"path": "a1", "dataChange": True}},
    )
    table.commit(add("e0", 1))
    passed = skipped(require_history(str(table.root), "raw"), start, end)
    assert (passed and (passed.versions, passed.rows)) == found
    assert passed is None or "changed or deleted rows, with at most" in str(passed)


def test_files_that_vacuum_took_are_found(table: Table) -> None:
    (table.root / "c1").unlink()
    history = require_history(str(table.root), "raw")
    assert missing_files(history, 1, 100) == ["c1"]
    assert missing_files(history, 1, 2) == [], "it looks at no more files than it was told"


def test_of_a_change_feed_its_own_files_are_looked_for_or_else_what_was_added_and_removed(
    table: Table,
) -> None:
    removed = {"remove": {"path": "b0", "dataChange": True}}
    table.commit(add("d0"), removed, {"cdc": {"path": "_change_data/cdc-1.parquet", "dataChange": False}})
    table.commit(removed)
    history = require_history(str(table.root), "raw")
    assert missing_files(history, 1, 100, change_feed=True) == ["_change_data/cdc-1.parquet"]
    (table.root / "b0").unlink()
    (table.root / "d0").unlink()
    assert missing_files(history, 3, 100, change_feed=True) == ["_change_data/cdc-1.parquet", "b0"]
    assert missing_files(history, 3, 100) == [], "without the feed, the flow stops at such commits itself"


def test_a_commit_that_is_damaged_is_named(table: Table) -> None:
    (table.log / f"{1:020d}.json").write_text("{")
    with pytest.raises(SourceError, match=r"00001.json is not a commit of a Delta table"):
        between(require_history(str(table.root), "raw"), offset(0), offset(3))


NO_ACTIONS = (
    '{"add":[]}',
    '{"add":{"size":1}}',
    '{"add":{"path":5}}',
    '{"remove":{"path":"a0","deletionVector":{"storageType":"u","pathOrInlineDv":"short"}}}',
    '{"txn":{"appId":"q"}}',
    '{"txn":{"appId":"q","version":"last"}}',
    '{"txn":{"appId":"q","version":true}}',
    '{"txn":{"appId":"q","version":%s}}' % ("9" * 5000),
    '{"commitInfo":{"operation":"RESTORE","operationParameters":[]}}',
    '{"commitInfo":{"inCommitTimestamp":"now"}}',
    '{"commitInfo":{"userMetadata":-1}}',
    '{"metaData":{"id":7}}',
    '{"protocol":{"readerFeatures":[{}]}}',
    '{"domainMetadata":{"domain":"' + DOMAIN + '","configuration":"{}"}}',
    '{"add":{"path":"\\ud800"}}',
    "[" * 100_000,
)


@pytest.mark.parametrize("line", NO_ACTIONS, ids=lambda line: line[:60])
def test_what_is_no_action_of_deltas_is_named_by_whoever_reads_it(line: str, table: Table) -> None:
    (table.log / f"{1:020d}.json").write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match=r"(?s)00001\.json holds .*Restore the table from a backup"):
        list(commits(str(table.root)))
    with pytest.raises(SourceError, match=r"00001.json is not a commit of a Delta table"):
        between(require_history(str(table.root), "raw"), offset(0), offset(3))


@pytest.mark.parametrize(
    "damage",
    [
        {"metadata": []},
        {"protocol": 1},
        *({"metadata": {"schemaString": text}} for text in ("[]", "{", '{"fields":[5]}')),
    ],
    ids=str,
)
def test_a_summary_that_is_none_counts_as_absent(damage: dict[str, Any], table: Table) -> None:
    sound = {"numFiles": 1, "tableSizeBytes": 1, "protocol": {}, "metadata": {"schemaString": "{}"}}
    summary = (table.log / f"{table.version:020d}").with_suffix(".crc")
    summary.write_text(json.dumps(sound))
    assert newest_summary(str(table.root)) is not None
    summary.write_text(json.dumps({**sound, **damage}))
    assert newest_summary(str(table.root)) is None


@pytest.mark.parametrize(
    ("version", "held"), [(-1, False), (0, False), (1, False), (2, True), (3, True), (4, False)]
)
def test_a_snapshot_needs_a_checkpoint_or_every_commit(version: int, held: bool, table: Table) -> None:
    table.commit(add("d0"))
    table.clean_up(2)
    assert require_history(str(table.root), "raw").holds_snapshot(version) is held
