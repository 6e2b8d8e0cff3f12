"""What must be on a host before a job is submitted there: Spark, Java, the jars, and the job's own file.

Without one of them each try would fail alike, so a job is refused before it is started. Only files are looked
at; what they cannot tell is let pass.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from streamkeeper.distribution.versions import JAVA, SPARK, VERSIONS
from streamkeeper.errors import SettingsError
from streamkeeper.settings import CHECKOUT, FILL_JARS, PROJECT, Settings

JOBS = PROJECT / "spark_jobs" if CHECKOUT else PROJECT / "streamkeeper_jobs" / "run"
"""Folder of the applications for spark-submit."""
_JARS = {"Delta": "delta-spark_*.jar", "Streamkeeper's own classes": "streamkeeper-jvm-*.jar"}
IN_ONE_FOLDER = ("pyspark", "pyspark-client")
"""Packages of Python that write into one folder."""
_CORE = re.compile(r"spark-core_[0-9.]+-([0-9].*)\.jar")


def check_host(settings: Settings, environment: Mapping[str, str]) -> None:
    """Check that a job of Spark can begin on this host.

    :param environment: the job's.
    :raises SettingsError: something that every job needs is missing or of another version.
    """
    check_spark(environment)
    check_packages(environment)
    check_java(environment)
    if not (JOBS / "run_flow.py").is_file():
        raise SettingsError(
            f"The jobs for Spark are not in {JOBS}. Install Streamkeeper again: its wheel has them."
        )
    check_jars(settings, environment)
    check_delta(settings, environment)


def check_jars(settings: Settings, environment: Mapping[str, str]) -> None:
    """Check that the jars that every job loads are in their folder, or in Spark's.

    :raises SettingsError: one is missing.
    """
    folders = _folders_of_jars(settings, environment)
    missing = [
        library
        for library, pattern in _JARS.items()
        if not any(any(folder.glob(pattern)) for folder in folders)
    ]
    if missing:
        problem = "is not there" if not settings.jars.is_dir() else f"has no jar of {' or '.join(missing)}"
        raise SettingsError(
            f"The folder of jars {settings.jars} {problem}. Run `{FILL_JARS}`, or set STREAMKEEPER_JARS to"
            " the folder that has them."
        )


def check_delta(settings: Settings, environment: Mapping[str, str]) -> str:
    """Check that the jar of Delta is made for this Spark, and return its version; empty if there is none.

    :raises SettingsError: it is made for another Spark, or there are two versions.
    """
    folders = _folders_of_jars(settings, environment)
    paths = {path.name: path for folder in folders for path in sorted(folder.glob(_JARS["Delta"]))}
    misfits = [path for name, path in paths.items() if not name.startswith(f"delta-spark_{SPARK}_")]
    if misfits or len(paths) > 1:
        problem = (
            f"{misfits[0]} is not made for Spark {SPARK}"
            if misfits
            else f"There are several versions of Delta: {', '.join(map(str, paths.values()))}"
        )
        tested = VERSIONS["delta"]["tested"][0]
        raise SettingsError(
            f"{problem}. Streamkeeper needs Delta {tested} for Spark {SPARK}, and no other beside it: run"
            f" `{FILL_JARS}`, which leaves that one in {settings.jars}, and remove any from Spark's own jars."
        )
    return next((name.removesuffix(".jar").rpartition("-")[2] for name in paths), "")


def _folders_of_jars(settings: Settings, environment: Mapping[str, str]) -> list[Path]:
    home = spark_home(environment)
    return [settings.jars, *([] if home is None else [home / "jars"])]


def check_spark(environment: Mapping[str, str] | None = None) -> str:
    """Check the release of the Spark that spark-submit would start, and return it; empty if nothing tells it.

    :param environment: ``os.environ`` by default.
    :raises SettingsError: it is another one than :data:`streamkeeper.distribution.versions.SPARK`.
    """
    home = spark_home(os.environ if environment is None else environment)
    cores = sorted((home / "jars").glob("spark-core_*.jar")) if home is not None else []
    match = _CORE.fullmatch(cores[0].name) if cores else None
    if match is not None and not match[1].startswith(f"{SPARK}."):
        raise SettingsError(
            f"Spark {match[1]} is installed in {home}; Streamkeeper needs Spark {SPARK}. Install"
            f" pyspark=={VERSIONS['spark']['tested'][0]} for {sys.executable}, or set SPARK_HOME to a"
            f" Spark {SPARK}."
        )
    return "" if match is None else match[1]


def check_packages(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Check that the packages that write into one folder of this Python are of one version; return the
    versions of those that are installed.

    Airflow's provider of Spark needs ``pyspark-client``, which has the same Python files as ``pyspark``: what
    was installed last is there.

    :param environment: ``os.environ`` by default; with a SPARK_HOME in it, those files come from there.
    :raises SettingsError: they are of two versions.
    """
    versions = {name: number for name in IN_ONE_FOLDER if (number := _version(name)) is not None}
    elsewhere = (os.environ if environment is None else environment).get("SPARK_HOME")
    if len(set(versions.values())) > 1 and not elsewhere:
        spark, client = versions.values()
        raise SettingsError(
            f"pyspark is {spark} and pyspark-client {client}, and they overwrite each other's files in the"
            f" folder of {sys.executable}. Install both in one version: pip install --force-reinstall"
            f" pyspark=={spark} pyspark-client=={spark}; if there is no such pyspark-client, take the newest"
            " version that both have."
        )
    return versions


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """Return Spark's folder as spark-submit finds it, or None."""
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"])
    package = find_spec("pyspark")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent
    program = shutil.which("spark-submit", path=environment.get("PATH"))
    return None if program is None else Path(program).resolve().parents[1]


def check_java(environment: Mapping[str, str]) -> str:
    """Check the Java that Spark would start, and return its program and release, as far as they are known.

    :raises SettingsError: there is none, or it is older than :data:`JAVA`.
    """
    home = environment.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java" if home else "java", path=environment.get("PATH"))
    spark = spark_home(environment)
    of_spark = Path(environment.get("SPARK_CONF_DIR") or (spark or Path()) / "conf") / "spark-env.sh"
    if of_spark.is_file():
        return f"as {of_spark} sets it"
    todo = f"Install Java {JAVA} or 21, and set JAVA_HOME to its folder."
    if program is None:
        problem = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise SettingsError(f"Spark needs Java, and {problem}. {todo}")
    release = Path(program).resolve().parents[1] / "release"
    text = release.read_text("utf-8", "replace") if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', text, re.MULTILINE)
    if match is not None and int(match[1]) < JAVA:
        raise SettingsError(f"{program} is Java {match[1]}; Spark {SPARK} needs Java {JAVA} or later. {todo}")
    return program if match is None else f"{program}, Java {match[1]}"
