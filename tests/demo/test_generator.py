from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.data.customers import FIRST, TRUNCATED, Customers
from demo.data.generator import Generator
from streamkeeper.settings import PROJECT
from tools.waiting import wait_until

Change = dict[str, Any]
FILES = 30


def lines(file: Path) -> list[Change]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def written(folder: Path, files: int, seed: int = 7) -> list[list[Change]]:
    producer = Customers(folder, seed)
    return [lines(producer.write(number)) for number in range(1, files + 1)]


def test_the_same_seed_gives_the_same_changes(tmp_path: Path) -> None:
    assert written(tmp_path / "a", 5) == written(tmp_path / "b", 5)
    assert written(tmp_path / "a", 5) != written(tmp_path / "c", 5, seed=8)


def test_the_snapshot_is_written_once_before_the_first_changes(tmp_path: Path) -> None:
    written(tmp_path, 1)
    snapshot = tmp_path / "snapshot" / "customers.json"
    assert [row["customer_id"] for row in lines(snapshot)] == list(range(1, FIRST + 1))
    assert not {"operation", "sequenceNum"} & set(lines(snapshot)[0])
    before = snapshot.stat().st_mtime_ns
    written(tmp_path, 2)
    assert snapshot.stat().st_mtime_ns == before


def test_some_changes_come_twice_and_a_repeated_change_is_the_same_in_every_field(tmp_path: Path) -> None:
    versions: dict[int, list[str]] = {}
    for change in (change for file in written(tmp_path, FILES) for change in file):
        versions.setdefault(change["sequenceNum"], []).append(json.dumps(change, sort_keys=True))
    assert any(len(found) > 1 for found in versions.values())
    assert all(len(set(found)) == 1 for found in versions.values())


def test_some_changes_come_after_newer_ones_of_the_same_customer(tmp_path: Path) -> None:
    newest: dict[int, int] = {}
    late = 0
    for change in (change for file in written(tmp_path, FILES) for change in file):
        late += change["sequenceNum"] < newest.get(change["customer_id"], -1)
        newest[change["customer_id"]] = max(change["sequenceNum"], newest.get(change["customer_id"], -1))
    assert late > 0


def test_every_change_that_was_made_comes_within_a_few_files(tmp_path: Path) -> None:
    producer = Customers(tmp_path)
    came = {change["sequenceNum"] for file in written(tmp_path, FILES) for change in file}
    made = {change["sequenceNum"] for number in range(1, FILES - 4) for change in producer.made(number)}
    assert made <= came


def test_all_four_operations_come_and_a_truncate_now_and_then() -> None:
    producer = Customers(Path("/nowhere"))
    found = [change["operation"] for number in range(1, TRUNCATED + 1) for change in producer.made(number)]
    assert set(found) == {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
    assert found.count("TRUNCATE") == 1


def test_no_two_changes_share_a_sequence() -> None:
    producer = Customers(Path("/nowhere"))
    sequences = [
        change["sequenceNum"] for number in range(1, 3 * TRUNCATED) for change in producer.made(number)
    ]
    assert len(set(sequences)) == len(sequences)


def test_nothing_but_whole_files_can_be_seen(tmp_path: Path) -> None:
    written(tmp_path, 3)
    assert sorted(path.name for path in (tmp_path / "cdc").iterdir()) == [
        f"changes-0000000{number}.json" for number in (1, 2, 3)
    ]


def test_a_started_generator_goes_on_after_the_files_that_are_there(tmp_path: Path) -> None:
    written(tmp_path, 3)
    with Generator(Customers(tmp_path), every=60) as generator:
        assert generator.written == 1
    assert (tmp_path / "cdc" / "changes-00000004.json").exists()


def test_no_file_appears_after_it_stopped(tmp_path: Path) -> None:
    with Generator(Customers(tmp_path), every=0.01) as generator:
        wait_until(lambda: generator.written >= 5 or None, 10, "five files are there", interval=0.01)
    assert len(list((tmp_path / "cdc").iterdir())) == generator.written


def test_what_ended_it_is_raised_where_it_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "customers"
    generator = Generator(Customers(folder), every=0.01).start()
    folder.rename(tmp_path / "gone")
    folder.write_text("a file where the folder should be")
    wait_until(lambda: not generator._thread.is_alive() or None, 10, "its thread has ended", interval=0.01)
    with pytest.raises(OSError, match="customers"):
        generator.stop()


def test_in_a_process_of_its_own_it_ends_in_good_order_when_it_is_told_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.data.generator", str(tmp_path), "--every", "0.05"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        wait_until(
            lambda: len(list((tmp_path / "cdc").glob("changes-*.json"))) >= 3 or None,
            20,
            "three files are there",
        )
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said == f"{len(list((tmp_path / 'cdc').iterdir()))} files written into {tmp_path}\n"
