"""Following a log file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.health.driver_log import LogFile, LogTail, last_lines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "drivers" / "p.f"
    folder.mkdir(parents=True)
    return folder / "driver.log"


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


KEY = [
    "-----BEGIN RSA PRIVATE KEY-----",
    *["MIIEpAIBAAKCAQEA" + "abcdWXYZ" * 6] * 12,
    "-----END RSA PRIVATE KEY-----",
]


def test_a_private_key_over_several_lines_is_shown_in_no_part(log: Path) -> None:
    append(log, "\n".join(["before", *KEY, "after", ""]))
    said: list[str] = []
    LogTail(LogFile(log), said.append).pump()
    assert (said[0], said[-1], len(said)) == ("before", "after", len(KEY) + 2)
    for shown in (said, last_lines(LogFile(log), 5)):
        assert "MIIE" not in "".join(shown)
    cut_off: list[str] = []
    LogTail(LogFile(log), cut_off.append, backlog=300).pump()
    assert "MIIE" not in "".join(cut_off) and cut_off[-1] == "after"


def test_a_line_that_only_names_a_private_key_hides_no_more_than_a_key_has(log: Path) -> None:
    append(log, "expected -----BEGIN PRIVATE KEY-----\n" + "line\n" * 200)
    said: list[str] = []
    LogTail(LogFile(log), said.append).pump()
    assert said.count("line") == 50


def secret_file(log: Path) -> Path:
    secret = log.parents[2] / "passwords.json"
    secret.write_text("hunter2")
    return secret


def linked(log: Path) -> Path:
    log.symlink_to(secret_file(log))
    return log


def in_a_linked_folder(log: Path) -> Path:
    (log.parent.parent / "other").symlink_to(log.parents[2])
    (log.parents[2] / "passwords.log").write_text("hunter2")
    return log.parent.parent / "other" / "passwords.log"


def above(log: Path) -> Path:
    (log.parents[2] / "passwords.log").write_text("hunter2")
    return log.parent / ".." / ".." / "passwords.log"


def a_pipe(log: Path) -> Path:
    os.mkfifo(log)
    return log


@pytest.mark.parametrize("named", [secret_file, linked, in_a_linked_folder, above, a_pipe])
def test_a_lease_that_names_what_is_no_driver_s_log_shows_nothing(
    named: Callable[[Path], Path], log: Path
) -> None:
    output = LogFile(named(log))
    assert (output.is_readable(), output.near_end(10), output.read(0)) == (False, 0, (b"", 0))
