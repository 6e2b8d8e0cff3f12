"""What `make` says on a machine that lacks something: all of it at once, with the command that brings it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT

HAS_ALL = 'exec {python} "$@"'
IS_OLD = 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'
HAS_NO_VENV = 'case "$*" in *ensurepip*) exit 1;; *) exec {python} "$@";; esac'
JAVA = "echo 'openjdk version \"{version}\"' >&2"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A clone without .venv, and in ``bin`` the only programs of the machine."""
    shutil.copytree(PROJECT / "tools", tmp_path / "tools")
    shutil.copytree(PROJECT / "streamkeeper", tmp_path / "streamkeeper")
    (tmp_path / "bin").mkdir()
    for name in ("sh", "basename"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def install(machine: Path, name: str, script: str) -> None:
    file = machine / "bin" / name
    file.write_text(f"#!/bin/sh\n{script.format(python=sys.executable, version='17.0.1')}\n")
    file.chmod(0o755)


def look(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine / "bin")}
    return subprocess.run(
        [machine / "bin" / "sh", "tools/needs.sh", *arguments],
        cwd=machine,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


CASES = {
    "nothing is there": (
        {},
        ["there is no python3 on PATH", "there is no java"],
        "python3 python3-venv openjdk-17-jdk-headless",
    ),
    "an old Python": (
        {"python3": IS_OLD},
        ["python3 is Python 3.9.2", "no java"],
        "python3 python3-venv openjdk-17-jdk-headless",
    ),
    "no venv, no Java": (
        {"python3": HAS_NO_VENV},
        ["the venv module of python3", "No Java was found"],
        "python3-venv openjdk-17-jdk-headless",
    ),
    "no venv of a named Python": (
        {"python3.11": HAS_NO_VENV, "java": JAVA, "javac": JAVA},
        ["the venv module of python3.11"],
        "python3.11-venv",
    ),
    "a JRE": (
        {"python3": HAS_ALL, "java": JAVA},
        ["has no compiler beside it", "a JRE does not do"],
        "openjdk-17-jdk-headless",
    ),
    "an old Java": (
        {"python3": HAS_ALL, "java": JAVA.replace("{version}", "11.0.2")},
        ["Java 11 was found"],
        "openjdk-17-jdk-headless",
    ),
}


@pytest.mark.parametrize(("there", "lacks", "packages"), CASES.values(), ids=CASES)
def test_all_that_lacks_is_said_at_once(
    machine: Path, there: dict[str, str], lacks: list[str], packages: str
) -> None:
    for name, script in there.items():
        install(machine, name, script)
    done = look(machine, "java")
    assert (done.returncode, done.stdout) == (1, "")
    for words in lacks:
        assert words in done.stderr
    assert f"(Debian and Ubuntu: apt-get install {packages})" in done.stderr


def test_a_python_that_does_is_named_and_java_is_asked_for_only_where_it_is_needed(machine: Path) -> None:
    install(machine, "python3", HAS_ALL)
    assert look(machine).stdout == "python3\n"
    assert look(machine, "java").returncode == 1
    install(machine, "java", JAVA)
    install(machine, "javac", JAVA)
    assert look(machine, "java").stdout == "python3\n"
