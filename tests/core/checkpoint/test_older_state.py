"""A snapshot of RocksDB that was replaced by an older one, told by the times of its entries; and quiet
batches, changed clocks and snapshots that come late, which look alike and are none.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.older_state import fits_its_twin
from streamkeeper.checkpoint.state_versions import replaced_state
from streamkeeper.storage import LocalStorage

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = 3600


def snapshot(seconds: float, keys: int) -> bytes:
    """Return a version's file as an executor writes it so many seconds after noon, in a zone of its own."""
    content, at = io.BytesIO(), NOON + timedelta(hours=5, minutes=45, seconds=seconds)
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(zipfile.ZipInfo("metadata", at.timetuple()[:6]), f'v1\n{{"numKeys":{keys}}}')
    return content.getvalue()


A, B, C, C_QUIET = snapshot(0, 1), snapshot(60, 2), snapshot(120, 3), snapshot(60, 2)
CASES: dict[str, tuple[Mapping[int, bytes], float, str | None]] = {
    "as written": ({1: A, 2: B, 3: C}, 119, None),
    "the one before": ({1: A, 2: B, 3: B}, 119, "version 2 again: the batch of its own began later"),
    "one of before that": ({1: A, 2: B, 3: A}, 119, "version 1 again"),
    "one that is retained no more": ({2: B, 3: snapshot(-90 * 24 * HOUR, 1)}, 119, "older than version 2"),
    "a quiet batch in the same two seconds": ({1: A, 2: B, 3: C_QUIET}, 59.8, None),
    "the hour that is there twice": ({1: A, 2: B, 3: snapshot(120 - HOUR, 3)}, 119, None),
    "a clock that is a little slow": ({1: A, 2: B, 3: snapshot(58, 3)}, 61, None),
}


@pytest.mark.parametrize(("versions", "begun", "what"), CASES.values(), ids=CASES)
def test_a_snapshot_that_is_an_older_one_is_known_by_its_times(
    tmp_path: Path, versions: Mapping[int, bytes], begun: float, what: str | None
) -> None:
    checkpoint, newest = store(tmp_path, versions), max(versions)
    begun_ms = int((NOON.timestamp() + begun) * 1000)
    header = f'{{"batchWatermarkMs":0,"batchTimestampMs":{begun_ms},"conf":{{}}}}'
    (tmp_path / f"offsets/{newest - 1}").write_text(f"v1\n{header}\n-")
    told = replaced_state(checkpoint, newest)
    assert told is None if what is None else what in str(told)
    (tmp_path / f"state/0/0/{newest}.changelog").write_bytes(b"?")
    if what is None or "began later" in what:
        assert replaced_state(checkpoint, newest) is None, "a snapshot beside a changelog is written later"


def test_a_change_file_is_known_by_the_twin_that_was_left_and_by_nothing_else(
    recorded: Callable[[str], Path],
) -> None:
    folder = recorded("files_dedup")
    checkpoint, part = Checkpoint(LocalStorage(str(folder)), ""), folder / "state/0/0"
    assert replaced_state(checkpoint, 3) is None
    older = next(number for number in (1, 2) if not same(part, number))
    shutil.copyfile(part / f"{older}.delta", part / "3.delta")
    assert replaced_state(checkpoint, 3) == f"{part}/3.delta does not fit its checksum"
    shutil.copyfile(part / f".{older}.delta.crc", part / ".3.delta.crc")
    assert replaced_state(checkpoint, 3) is None, "as docs/concepts/state.md says"


def test_the_long_twin_of_a_state_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    checkpoint = store(tmp_path, {1: A})
    for name, size in (("1.zip", 3 << 30), (".1.zip.crc", 24 << 20)):
        with (tmp_path / "state/0/0" / name).open("ab") as file:
            file.truncate(size)
    assert fits_its_twin(checkpoint, "state/0/0/1.zip")
    (tmp_path / "state/0/0/1.zip").write_bytes(A)
    assert not fits_its_twin(checkpoint, "state/0/0/1.zip"), "no short file has such a twin"


def same(part: Path, number: int) -> bool:
    return (part / f"{number}.delta").read_bytes() == (part / "3.delta").read_bytes()


def store(folder: Path, versions: Mapping[int, bytes]) -> Checkpoint:
    """Return a checkpoint with one store of such versions."""
    for name in ("offsets", "state/0/0"):
        (folder / name).mkdir(parents=True)
    for version, content in versions.items():
        (folder / f"state/0/0/{version}.zip").write_bytes(content)
    return Checkpoint(LocalStorage(str(folder)), "")
