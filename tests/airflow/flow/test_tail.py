"""Following a log file."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.health.driver_log import LogFile, LogTail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "driver.log"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_whole_lines_are_handed_over_once_and_half_lines_when_they_are_whole(log: Path) -> None:
    said: list[str] = []
    tail = LogTail(LogFile(log), said.append)
    tail.pump()
    append(log, "one\ntw")
    tail.pump()
    assert said == ["one"]
    append(log, "o\n")
    tail.pump()
    assert said == ["one", "two"]


def test_a_secret_of_a_driver_s_output_is_not_shown(log: Path) -> None:
    append(log, "connecting to jdbc:postgresql://ada:s3cr3t@db/shop\n")
    said: list[str] = []
    LogTail(LogFile(log), said.append).pump()
    assert said == ["connecting to jdbc:postgresql://ada:***@db/shop"]


def test_only_the_end_of_an_older_log_is_shown(log: Path) -> None:
    append(log, "old\n" * 100 + "new\n")
    said: list[str] = []
    LogTail(LogFile(log), said.append, backlog=8).pump()
    assert said == ["old", "new"]


def test_a_flood_is_cut_off_with_a_word_on_where_the_rest_is(log: Path) -> None:
    append(log, "line\n" * 10)
    said: list[str] = []
    tail = LogTail(LogFile(log), said.append, limit=3)
    tail.pump()
    append(log, "line\n" * 10)
    tail.pump()
    assert said == ["line"] * 3 + [f"No more lines are shown here; the driver keeps writing to {log}."]


def test_a_line_without_end_is_shortened(log: Path) -> None:
    append(log, "x" * 5000 + "\n")
    said: list[str] = []
    LogTail(LogFile(log), said.append).pump()
    assert said == ["x" * 2000 + "… (5000 characters)"]


def test_bytes_that_are_no_text_do_not_stop_it(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\n")
    said: list[str] = []
    LogTail(LogFile(log), said.append).pump()
    assert len(said) == 1
