"""What a host must have before a job of Spark is started there: refused with what is there and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.clusters import host
from streamkeeper.clusters.host import check_host
from streamkeeper.errors import SettingsError
from streamkeeper.support.user_environment import environment
from tests.recorder import lay_jars
from tests.worlds.small_world import World

Variables = dict[str, str]


def spark(root: Path, version: str) -> Variables:
    (root / "spark" / "jars").mkdir(parents=True)
    (root / "spark" / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return {"SPARK_HOME": str(root / "spark")}


def java(root: Path, version: str) -> Variables:
    (root / "java" / "bin").mkdir(parents=True)
    (root / "java" / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    program = root / "java" / "bin" / "java"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(root / "java")}


def delta(root: Path, *names: str) -> Variables:
    lay_jars(root / "jars of drivers")
    for name in names:
        (root / "jars of drivers" / name).touch()
    return {"STREAMKEEPER_JARS": str(root / "jars of drivers")}


def other_jars(root: Path) -> Variables:
    (root / "other").mkdir()
    (root / "other" / "postgresql.jar").touch()
    return {"STREAMKEEPER_JARS": str(root / "other")}


LACKING: dict[str, tuple[Callable[[Path], Variables], str]] = {
    "Spark 4.0": (lambda root: spark(root, "4.0.1"), r"Spark 4\.0\.1 is installed in .*needs Spark 4\.2\."),
    "Spark 4.1": (lambda root: spark(root, "4.1.1"), r"Spark 4\.1\.1 is installed.*Install pyspark==4\.2\.0"),
    "Spark 4.20": (lambda root: spark(root, "4.20.0"), r"Spark 4\.20\.0 is installed"),
    "no folder of jars": (
        lambda root: {"STREAMKEEPER_JARS": str(root / "none")},
        r"/none is not there\. Run",
    ),
    "other jars": (other_jars, r"/other has no jar of Delta or Streamkeeper's own.*set STREAMKEEPER_JARS"),
    "Delta for Spark 4.1": (
        lambda root: delta(root, "delta-spark_4.1_2.13-4.2.0.jar"),
        r"/delta-spark_4\.1_2\.13-4\.2\.0\.jar is not made for Spark 4\.2\. Streamkeeper needs Delta",
    ),
    "Delta of Spark 4.0": (
        lambda root: delta(root, "delta-spark_2.13-4.0.1.jar"),
        r"/delta-spark_2\.13-4\.0\.1\.jar is not made for Spark 4\.2\..* run `make setup`",
    ),
    "two versions of Delta": (
        lambda root: delta(root, "delta-spark_4.2_2.13-4.3.9.jar"),
        r"several versions of Delta: .*4\.3\.9\.jar, .*4\.4\.0\.jar\. .* no other beside it",
    ),
    "no Java": (lambda root: {"JAVA_HOME": str(root)}, r"JAVA_HOME is .*no bin/java\. Install Java 17 or 21"),
    "no Java on the path": (lambda root: {"PATH": str(root)}, r"there is no java on the PATH\. Install Java"),
    "Java 8": (lambda root: java(root, "1.8.0_392"), r"/java is Java 8; Spark 4\.2 needs Java 17 or later"),
    "Java 11": (lambda root: java(root, "11.0.2"), r"/java is Java 11; .* Install Java 17 or 21, and set"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_every_job_needs_is_refused_before_a_job_is_started(case: str, world: World) -> None:
    check_host(world.settings, environment(world.settings))
    make, words = LACKING[case]
    variables = {**environment(world.settings), **make(world.root)}
    settings = type(world.settings).from_environment(variables)
    with pytest.raises(SettingsError, match=words):
        check_host(settings, variables)


def test_two_versions_in_the_folder_of_pyspark_are_refused_unless_spark_is_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_version", {"pyspark": "4.2.0", "pyspark-client": "4.2.1"}.get)
    variables = {**environment(world.settings), **spark(world.root, "4.2.0")}
    check_host(world.settings, variables)
    del variables["SPARK_HOME"]
    with pytest.raises(
        SettingsError, match=r"pyspark is 4\.2\.0 and pyspark-client 4\.2\.1, and they overwrite"
    ):
        check_host(world.settings, variables)


def test_the_jobs_for_spark_are_looked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "JOBS", world.root / "site-packages" / "spark_jobs")
    with pytest.raises(
        SettingsError, match=r"not in .*/site-packages/spark_jobs\. Install Streamkeeper again"
    ):
        check_host(world.settings, environment(world.settings))


def test_what_cannot_be_known_is_let_pass(world: World) -> None:
    variables = {**environment(world.settings), **spark(world.root, "4.2.1")}
    variables |= {"JAVA_HOME": str(world.root), "SPARK_CONF_DIR": ""}
    (world.root / "spark" / "conf").mkdir()
    (world.root / "spark" / "conf" / "spark-env.sh").write_text("JAVA_HOME=/elsewhere\n")
    lay_jars(world.root / "spark" / "jars")
    check_host(world.settings, variables)


@pytest.mark.parametrize("command", [["check"], ["run", "events.clean_events"], ["check", "--analyze"]])
def test_the_command_line_ends_with_2_and_starts_nothing(command: list[str], world: World) -> None:
    own = {**world.environment, **spark(world.root, "4.1.1"), "PATH": os.environ["PATH"]}
    line = [sys.executable, "-m", "streamkeeper", *command]
    done = subprocess.run(line, check=False, capture_output=True, text=True, env=own)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("streamkeeper: Spark 4.1.1 is installed in")
