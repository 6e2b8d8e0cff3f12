"""What a table's log says that it remembers: which runs may meet a batch, how many there come to be, and what
becomes of it in a copy.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.copy_files import CopiedFile, files_of
from streamkeeper.delta.remembered import (
    DOMAIN,
    Remembered,
    Run,
    Truncate,
    emptied,
    moved,
    of_actions,
    restored_since,
)
from streamkeeper.storage import open_storage
from streamkeeper.tables.past_versions import lacking_files

LEARNED = "2026-11-01T00:00:00+00:00"


def run(rows: int = 1, name: str = "a", **more: Any) -> Run:
    return Run(((f"_streamkeeper/remembered/{name}/part.parquet", 7),), rows, **{
        "first_key": (1, 9), "at": (10, 20), "learned": LEARNED, **more,
    })  # fmt: skip


def action(found: Remembered, *, removed: bool = False) -> dict[str, Any]:
    return {"domainMetadata": {"domain": DOMAIN, "configuration": found.to_json(), "removed": removed}}


KEPT = Remembered("table", 3, Truncate({"at": 5, "n": None}, LEARNED), (run(), run(2, "b", at=None)))


def test_what_is_written_is_read_again() -> None:
    assert of_actions([{"txn": {}}, action(replace(KEPT, since=1)), action(KEPT)]) == KEPT
    assert of_actions([action(KEPT), action(KEPT, removed=True)]) is None
    assert of_actions([{"domainMetadata": {"domain": "delta.clustering"}}]) is None


@pytest.mark.parametrize(
    ("first_key", "since", "meets"),
    [
        ((9, 12), None, True),
        ((10, 12), None, False),
        ((0, 0), None, False),
        (None, 20, True),
        (None, 21, False),
        ((1, 1), 21, False),
    ],
)
def test_a_run_is_left_out_whose_bounds_cannot_meet_the_batch(
    first_key: tuple[int, int] | None, since: int | None, meets: bool
) -> None:
    assert run().may_meet(first_key, since) == meets
    assert run(first_key=None, at=None).may_meet(first_key, since), "nothing is known of it"


@pytest.mark.parametrize("rows", [1, 50, 5000])
def test_runs_stay_few_and_a_change_is_seldom_written_again(rows: int) -> None:
    found, written, most = Remembered("table", 0), 0, 0
    for number in range(3000):
        others = found.merged_with(rows)
        together = rows + sum(other.rows for other in others)
        found, written = found.with_run(run(together, str(number)), others), written + together
        most = max(most, len(found.runs))
    assert sum(one.rows for one in found.runs) == 3000 * rows
    assert most <= 7 * 6
    assert written <= 3000 * rows * 6 + 8 * 1000 * 3000


def test_a_copy_holds_its_files_and_says_that_they_are_its_own() -> None:
    there = moved(action(KEPT), "copy", -1)
    assert of_actions([there]) == replace(KEPT, table="copy", since=-1)
    assert moved({"txn": {"appId": "a"}}, "copy", -1) == {"txn": {"appId": "a"}}
    assert list(files_of([json.dumps(there)])) == [CopiedFile(name, 7) for name, _ in KEPT.files]
    nothing = emptied(action(KEPT))
    assert nothing is not None
    assert of_actions([nothing]) == Remembered("table", 3)
    assert emptied({"txn": {}}) is None


def commit(root: Path, version: int, *actions: dict[str, Any], operation: str = "MERGE") -> None:
    log = root / "_delta_log"
    log.mkdir(exist_ok=True)
    lines = [{"commitInfo": {"timestamp": 1, "operation": operation}}, *actions]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (log / f"{version:020d}.json").write_text(text)


def test_a_restore_is_found_that_is_newer_than_what_is_remembered(tmp_path: Path) -> None:
    commit(tmp_path, 4, operation="RESTORE")
    commit(tmp_path, 5, operation="OPTIMIZE")
    log = open_storage(str(tmp_path))
    assert restored_since(log, 3, 5) == 4
    assert restored_since(log, 4, 5) is None
    assert restored_since(log, 0, 3) is None, "commits that are gone say nothing"


def test_a_version_lacks_what_it_remembered_where_its_files_are_gone(tmp_path: Path) -> None:
    commit(tmp_path, 0, action(KEPT))
    commit(tmp_path, 1, operation="OPTIMIZE")
    commit(tmp_path, 2, action(Remembered("table", 1)))
    for name, _ in KEPT.files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"1234567")
    assert lacking_files(str(tmp_path), 1) == []
    (tmp_path / KEPT.runs[0].files[0][0]).unlink()
    assert lacking_files(str(tmp_path), 1) == [KEPT.runs[0].files[0][0]]
    assert lacking_files(str(tmp_path), 2) == []
