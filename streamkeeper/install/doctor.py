"""``streamkeeper doctor``: this host, the folders, Spark with its jars, and Airflow."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streamkeeper.clusters import host
from streamkeeper.distribution.versions import SPARK, VERSIONS
from streamkeeper.errors import SettingsError
from streamkeeper.install import airflow_side
from streamkeeper.install.probes import FAIL, OK, WARN, Probe, Row, run_all
from streamkeeper.jars.folder import problems, read_lock
from streamkeeper.settings import FILL_JARS, Settings
from streamkeeper.storage import check_create, open_storage
from streamkeeper.support.amounts import size_in_words
from streamkeeper.support.user_environment import environment

DEADLINE = 180.0
"""Seconds that a probe may take: importing Airflow alone takes many on a busy host."""
SKEW = 5.0
"""Seconds between the clocks of this host and of the state's store that are no cause for alarm."""
_MEMORY = 1.5 * 2**30
"""Bytes that a driver with Spark's default heap of 1 GB takes."""
_DISK_LEAST, _DISK_LITTLE = 2**30, 5 * 2**30
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def examine(deadline: float = DEADLINE) -> list[Row]:
    """Return a row for each need of an installation; one short-lived file of the state is written."""
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        probes: dict[str, Probe] = {"packages": packages, "memory": memory, "airflow": airflow_side.look}
        return [Row("settings", FAIL, str(error)), *run_all(probes, deadline)]
    variables = environment(settings)
    probes = {
        "settings": lambda: places(settings),
        "packages": packages,
        "java": lambda: [Row("java", OK, host.check_java(variables))],
        "spark": lambda: spark(variables),
        "jars": lambda: jars(settings, variables),
        "delta": lambda: delta(settings, variables),
        "state": lambda: state(settings),
        "warehouse": lambda: warehouse(settings),
        "memory": memory,
        "disk": lambda: disk(settings),
        "airflow": airflow_side.look,
    }
    return run_all(probes, deadline)


def places(settings: Settings) -> Iterator[Row]:
    """Tell which folders the settings name, and whether the pipelines' is there."""
    files = len(list(settings.pipelines.glob("*.py"))) if settings.pipelines.is_dir() else None
    detail = f"state {settings.state}, warehouse {settings.warehouse}, pipelines {settings.pipelines}"
    if files is None:
        yield Row(
            "settings", FAIL, f"{detail}, which is not there", "Make it, or set STREAMKEEPER_PIPELINES."
        )
    elif not files:
        yield Row(
            "settings", WARN, f"{detail}, without a file", "Write one: `streamkeeper init FOLDER` does."
        )
    else:
        yield Row("settings", OK, f"{detail} ({files} files); `streamkeeper check` reads them")


def packages() -> Iterator[Row]:
    """Tell whether the packages in this Python go together."""
    pandas = _version("pandas")
    try:
        versions = {**host.check_packages(), **({"pandas": pandas} if pandas else {})}
    except SettingsError as error:
        yield Row("packages", FAIL, str(error))
    else:
        named = ", ".join(f"{name} {number}" for name, number in versions.items())
        yield Row("packages", OK, named or "neither pyspark nor pandas is installed in this Python")
    if pandas and int(pandas.partition(".")[0]) >= 3:
        detail = f"pandas is {pandas}, which Spark {SPARK} does not fully support"
        yield Row("packages", WARN, detail, "Install pandas<3 where pipelines use pandas.")


def spark(variables: Mapping[str, str]) -> Iterator[Row]:
    """Tell which Spark a driver would start."""
    release, home = host.check_spark(variables), host.spark_home(variables)
    if home is None:
        tested = VERSIONS["spark"]["tested"][-1]
        advice = f"Install pyspark=={tested} in this Python, or set SPARK_HOME, on each host of drivers."
        yield Row("spark", FAIL, "There is no Spark.", advice)
    else:
        yield Row("spark", OK, f"{release or 'of an unknown release'}, in {home}")


def jars(settings: Settings, variables: Mapping[str, str]) -> Iterator[Row]:
    """Tell whether the folder of jars has what the lock names, by content."""
    host.check_jars(settings, variables)
    # A folder may have more jars than the lock: those for S3, or a user's own.
    wrong = [problem for problem in problems(settings.jars) if not problem.endswith("is not in the lock")]
    if wrong:
        advice = f"Run `{FILL_JARS}`. A jar that changed may be damaged, or somebody else's."
        yield Row("jars", FAIL, f"{settings.jars}: {'; '.join(wrong)}", advice)
    else:
        yield Row("jars", OK, f"{len(read_lock()) + 1} jars of the lock in {settings.jars}, by their digests")


def delta(settings: Settings, variables: Mapping[str, str]) -> Iterator[Row]:
    """Tell whether Delta's jar is made for Spark's release; its name tells both."""
    if number := host.check_delta(settings, variables):
        yield Row("delta", OK, f"{number}, for Spark {SPARK}")


def state(settings: Settings) -> Iterator[Row]:
    """Tell whether the state's store works and keeps create-if-absent, and how far apart the clocks are."""
    storage, began = open_storage(settings.state), time.time()
    written = check_create(storage, storage.create)
    yield Row("state", OK, f"{settings.state} is written, read, and refuses a second create of one file")
    skew = 0.0 if written is None else max(began - written, written - time.time(), 0.0)
    # A store may keep whole seconds only.
    if skew > SKEW + 1:
        detail = f"The clock of this host and that of {settings.state} are {skew:.0f} s apart."
        yield Row(
            "clock", WARN, detail, "Let both follow a time server (NTP): ages and retentions are by it."
        )
    else:
        yield Row("clock", OK, "agrees with that of the state's store")


def warehouse(settings: Settings) -> Iterator[Row]:
    """Tell whether warehouse and tables elsewhere can be reached, and written if they are folders."""
    for place in (settings.warehouse, *(entry.partition("=")[2] for entry in settings.table_paths)):
        yield _writable(place)


def _writable(place: str) -> Row:
    if "://" in place:
        entries = len(open_storage(place).names())
        return Row(
            "warehouse", OK, f"{place} is listed, {entries} entries; whether Spark may write is not tried"
        )
    nearest = _nearest(place)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Row("warehouse", OK, f"{place} can be written")
    advice = "Give it to the user of the drivers, or set STREAMKEEPER_WAREHOUSE or STREAMKEEPER_TABLE_PATHS."
    return Row("warehouse", FAIL, f"{place} cannot be written: {nearest} is not this user's", advice)


def memory() -> Iterator[Row]:
    """Tell how much memory there is for one more driver, also by this container's bound."""
    free = _free_memory()
    if free is None:
        yield Row("memory", OK, "is not told by this system")
    elif free < _MEMORY:
        detail = f"{size_in_words(free)} are free; a driver takes {size_in_words(_MEMORY)} by default"
        yield Row("memory", WARN, detail, "Run fewer flows here, share drivers, or give the host more.")
    else:
        yield Row("memory", OK, f"{size_in_words(free)} are free")


def disk(settings: Settings) -> Iterator[Row]:
    """Tell how much space is free where drivers write: state, warehouse and Spark's own files."""
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or os.environ.get("TMPDIR") or "/tmp"
    devices: dict[int, str] = {}
    for place in (settings.state, settings.warehouse, scratch):
        if "://" in place:
            continue
        nearest = _nearest(place)
        if nearest.stat().st_dev in devices:
            continue
        devices[nearest.stat().st_dev] = place
        free = shutil.disk_usage(nearest).free
        level = FAIL if free < _DISK_LEAST else WARN if free < _DISK_LITTLE else OK
        advice = "" if level == OK else "Free some space, or give it a larger disk: a full one stops flows."
        yield Row("disk", level, f"{size_in_words(free)} are free at {place}", advice)


def _nearest(place: str) -> Path:
    """Return the folder of a path, or the nearest one above that is there."""
    path = Path(place)
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _free_memory() -> float | None:
    if not _MEMINFO.is_file():
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text("utf-8"), re.MULTILINE)
    free = [int(match[1]) * 1024.0] if match else []
    most, used = (_CGROUP / "memory.max", _CGROUP / "memory.current")
    if most.is_file() and used.is_file() and (bound := most.read_text("utf-8").strip()).isdigit():
        free.append(max(0.0, float(bound) - float(used.read_text("utf-8"))))
    return min(free, default=None)
