"""What stands in the way of a demo is said before anything is started."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.__main__ import main
from demo.checks import NotReady, check_ready, port_is_free
from demo.leftovers import end_marked, marked
from demo.lock import MARK, DemoLock, SecondDemo, UnusableHome
from demo.seeing import StoryFailed
from demo.story import prepare
from streamkeeper.jars.folder import built_jar, read_lock
from streamkeeper.settings import PROJECT, Settings
from tools.waiting import wait_until

FREE = next(port for port in range(20000, 30000) if port_is_free(port))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in [*(module.file_name for module in read_lock()), built_jar()]:
        (jars / name).touch()
    folders = {name.upper(): str(tmp_path / name) for name in ("state", "warehouse", "data")}
    return Settings.from_environment(
        {f"STREAMKEEPER_{name}": folder for name, folder in (*folders.items(), ("JARS", str(jars)))}
    )


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that says of itself what the test wants: 17 at first."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    say_version(program, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return program


def say_version(java: Path, version: str) -> None:
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_a_taken_port_is_refused_and_a_free_one_is_named(settings: Settings, java: Path, taken: int) -> None:
    with pytest.raises(
        NotReady, match=f"Port {taken} is taken by another program.*make demo PORT=[0-9]+"
    ) as refused:
        check_ready(settings, taken)
    named = re.search(r"PORT=([0-9]+)", str(refused.value))
    assert named is not None
    assert port_is_free(int(named[1]))


def test_a_wrong_java_is_refused_with_the_right_ones_named(settings: Settings, java: Path) -> None:
    say_version(java, "11.0.2")
    with pytest.raises(NotReady, match=r"Java 11 was found at .*needs Java 17 or 21"):
        check_ready(settings, FREE)


def test_missing_jars_are_refused_with_the_command_that_fetches_them(settings: Settings, java: Path) -> None:
    next(settings.jars.iterdir()).unlink()
    with pytest.raises(NotReady, match=r"lacks 1 of .* Run `make setup`"):
        check_ready(settings, FREE)


@pytest.mark.parametrize("name", ["state", "warehouse", "data"])
def test_a_folder_that_cannot_be_written_is_refused_with_its_setting_named(
    settings: Settings, java: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    unusable = {name: str(tmp_path / "file" / "below")}
    with pytest.raises(NotReady, match=f"cannot be written: .*STREAMKEEPER_{name.upper()}"):
        check_ready(replace(settings, **unusable), FREE)  # type: ignore[arg-type]


def test_all_that_is_wrong_is_said_at_once(settings: Settings, java: Path, taken: int) -> None:
    say_version(java, "8.0.2")
    with pytest.raises(NotReady, match=rf"(?s)nothing was started.*Java 8.*Port {taken}"):
        check_ready(settings, taken)


def test_nothing_stands_in_the_way_where_all_is_there_and_the_look_leaves_nothing_in_the_folders(
    settings: Settings, java: Path
) -> None:
    check_ready(settings, FREE)
    assert list(Path(settings.state).iterdir()) == []


def test_a_second_demo_in_one_folder_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    with (
        DemoLock(tmp_path),
        pytest.raises(SecondDemo, match=rf"process {os.getpid()}, since .*kill {os.getpid()}"),
        DemoLock(tmp_path),
    ):
        pass


def test_a_demo_can_follow_one_that_ended_and_finds_no_predecessor(tmp_path: Path) -> None:
    with DemoLock(tmp_path):
        pass
    with DemoLock(tmp_path) as lock:
        assert lock.predecessor is None


def test_a_demo_that_was_killed_is_found_by_the_next_with_all_that_it_left_running(tmp_path: Path) -> None:
    code = f"""
import os, signal, subprocess, sys
from pathlib import Path
from demo.lock import MARK, DemoLock
with DemoLock(Path({str(tmp_path)!r})) as lock:
    child = subprocess.Popen(["sleep", "600"], env={{**os.environ, MARK: lock.owner.mark}}, \
stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )
    with DemoLock(tmp_path) as lock:
        assert lock.predecessor is not None
        [left] = wait_until(lambda: marked(lock.predecessor.mark) or None, 10, "the child is there")  # type: ignore[union-attr]
        assert left.pid == int(killed.stdout)
        assert end_marked(lock.predecessor.mark) == [left]
        assert marked(lock.predecessor.mark) == []


def test_processes_of_another_demo_are_not_touched(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "mine"}) as other:
        assert end_marked("yours") == []
        assert other.poll() is None
        other.kill()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UnusableHome, match=r"cannot be written: .*--home"),
        DemoLock(tmp_path / "file" / "home"),
    ):
        pass


def test_a_demo_that_cannot_start_ends_with_2_and_starts_nothing(
    tmp_path: Path, java: Path, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--home", str(tmp_path / "home"), "--port", str(taken)]) == 2
    assert f"Port {taken} is taken" in capsys.readouterr().err
    assert not (tmp_path / "home" / "airflow").exists()
    assert json.loads((tmp_path / "home" / "demo.lock").read_text() or "null") is None


def test_the_story_works_on_a_copy_and_starts_from_a_clean_folder(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "story" / "state").mkdir(parents=True)
    home, own = prepare(tmp_path, settings)
    assert home == tmp_path / "story"
    assert (own.pipelines / "customers.py").read_text() == (settings.pipelines / "customers.py").read_text()
    assert all(
        Path(place).is_relative_to(home) for place in (own.state, own.warehouse, own.data, own.pipelines)
    )
    assert not Path(own.state).exists()


def test_the_story_refuses_a_pipeline_file_that_is_broken_already(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "customers.py").write_text("# nothing to take away")
    with pytest.raises(
        StoryFailed, match=r"has 0 lines that start with .dropDuplicates\(.*Put the file back"
    ):
        prepare(tmp_path, replace(settings, pipelines=tmp_path))
