"""Reading a Delta log without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.delta.log import FENCE, Transactions, exists, last_transaction, latest_version
from streamkeeper.errors import CheckpointError


def write_log(folder: Path, *commits: list[dict[str, Any]] | None) -> str:
    """Write a log; None stands for a commit whose JSON was cleaned up."""
    log = folder / "_delta_log"
    log.mkdir()
    for version, actions in enumerate(commits):
        if actions is not None:
            (log / f"{version:020d}.json").write_text(
                "".join(json.dumps(action) + "\n" for action in actions)
            )
    return str(folder)


def txn(app_id: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": 1}}


INFO = {"commitInfo": {"operation": "WRITE", "userMetadata": "speaks of query-1 and of txn"}}


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        pytest.param([[INFO]], Transactions(None, None, True), id="wrote nothing"),
        pytest.param(
            [[INFO], [txn("query-1", 0)], [txn("query-1", 1)]],
            Transactions(1, None, True),
            id="newest counts",
        ),
        pytest.param(
            [[txn("query-1", 3)], [txn("query-2", 9)], [INFO]],
            Transactions(3, None, True),
            id="others do not count",
        ),
        pytest.param([[txn("query-1", 3)], [txn("query-1", FENCE)]], Transactions(3, 1, True), id="fenced"),
        pytest.param([[txn("query-1", FENCE)]], Transactions(None, 0, True), id="fenced before it wrote"),
        pytest.param(
            [None, [INFO], [txn("query-2", 1)]], Transactions(None, None, False), id="older commits are gone"
        ),
        pytest.param(
            [None, [txn("query-1", 4)]],
            Transactions(4, None, True),
            id="older commits are gone and not needed",
        ),
        pytest.param(
            [None, [txn("query-1", FENCE)]], Transactions(None, 1, False), id="only the fence is left"
        ),
    ],
)
def test_the_last_real_transaction_is_the_newest_below_the_fence(
    tmp_path: Path, commits: list[list[dict[str, Any]] | None], expected: Transactions
) -> None:
    assert last_transaction(write_log(tmp_path, *commits), "query-1") == expected


def test_a_path_without_a_table_has_no_transactions_for_sure(tmp_path: Path) -> None:
    assert last_transaction(str(tmp_path / "nowhere"), "query-1") == Transactions(None, None, True)
    assert not exists(str(tmp_path / "nowhere"))
    assert latest_version(str(tmp_path / "nowhere")) is None


def test_a_table_of_which_only_a_checkpoint_is_left_is_a_table_and_tells_nothing_for_sure(
    tmp_path: Path,
) -> None:
    path = write_log(tmp_path)
    (tmp_path / "_delta_log" / "00000000000000000010.checkpoint.parquet").write_bytes(b"PAR1")
    assert exists(path)
    assert last_transaction(path, "query-1") == Transactions(None, None, False)


def test_a_damaged_commit_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_log(tmp_path, [INFO])
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"txn": {"appId": "query-1", "ver')
    with pytest.raises(CheckpointError, match=r"00000000000000000001\.json holds .* which is not JSON"):
        last_transaction(path, "query-1")
