from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from demo.airflow_api import wait_until
from demo.generator import Generator, Producer
from streamkeeper.settings import PROJECT

MOMENT = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def written(folder: Path, files: int, seed: int = 7) -> list[list[dict[str, object]]]:
    producer = Producer(folder, seed)
    return [lines(producer.write(number, MOMENT)) for number in range(1, files + 1)]


def test_the_same_seed_gives_the_same_events(tmp_path: Path) -> None:
    assert written(tmp_path / "a", 5) == written(tmp_path / "b", 5)
    assert written(tmp_path / "a", 5) != written(tmp_path / "c", 5, seed=8)


def test_some_events_come_twice_in_one_file_and_some_again_in_a_later_file(tmp_path: Path) -> None:
    files = written(tmp_path, 30)
    assert any(len({event["event_id"] for event in file}) < len(file) for file in files)
    first = {event["event_id"] for event in files[0]}
    assert any(first & {event["event_id"] for event in file} for file in files[1:])


def test_a_repeated_event_is_the_same_in_every_field(tmp_path: Path) -> None:
    versions: dict[object, set[str]] = {}
    for event in (event for file in written(tmp_path, 30) for event in file):
        versions.setdefault(event["event_id"], set()).add(json.dumps(event, sort_keys=True))
    assert max(Counter(len(found) for found in versions.values())) == 1


def test_some_events_are_minutes_late(tmp_path: Path) -> None:
    times = [datetime.fromisoformat(str(event["event_time"]).replace("Z", "+00:00")) for file in written(tmp_path, 10) for event in file]
    late = [moment for moment in times if moment < MOMENT - timedelta(minutes=1)]
    assert 0 < len(late) < len(times) / 2


def test_nothing_but_whole_files_can_be_seen(tmp_path: Path) -> None:
    written(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"events-0000000{number}.json" for number in (1, 2, 3)]


def test_a_started_generator_goes_on_after_the_files_that_are_there(tmp_path: Path) -> None:
    written(tmp_path, 3)
    with Generator(Producer(tmp_path), every=60) as generator:
        assert generator.written == 1
    assert (tmp_path / "events-00000004.json").exists()


def test_no_file_appears_after_it_stopped(tmp_path: Path) -> None:
    with Generator(Producer(tmp_path), every=0.01) as generator:
        wait_until(lambda: generator.written >= 5 or None, 10, "five files are there", interval=0.01)
    assert len(list(tmp_path.iterdir())) == generator.written


def test_what_ended_it_is_raised_where_it_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    generator = Generator(Producer(folder), every=0.01).start()
    folder.rename(tmp_path / "gone")
    folder.write_text("a file where the folder should be")
    wait_until(lambda: not generator._thread.is_alive() or None, 10, "its thread has ended", interval=0.01)
    with pytest.raises(OSError, match="events"):
        generator.stop()


def test_in_a_process_of_its_own_it_ends_in_good_order_when_it_is_told_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.generator", str(tmp_path), "--every", "0.05"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(list(tmp_path.glob("events-*.json"))) >= 3 or None, 20, "three files are there")
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said == f"{len(list(tmp_path.iterdir()))} files written into {tmp_path}\n"
