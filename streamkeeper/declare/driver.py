"""What a driver needs of Spark: declared by the names of spark-submit, kept as Spark's settings of flows.

Flows with a shared driver have one application. A job on the tables of several flows has one for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import unquote

from streamkeeper.declare.model import RESTART, AnyFlow, Location
from streamkeeper.distribution.versions import delta_release
from streamkeeper.errors import DeclarationError
from streamkeeper.redaction import redact

LOG_STORE = "streamkeeper.storage.S3LogStore"
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Setting of the class that writes checkpoints, and the logs of sinks of files."""
S3_CHECKPOINT_MANAGER = "streamkeeper.storage.S3CheckpointFileManager"
"""That class where any of them are on S3; it writes others as Spark does."""

LOCAL_FILES = "streamkeeper.storage.LocalFiles"
"""Hadoop's local file system, as the class path of a local master has it."""

OURS: Mapping[str, str] = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta chooses by the scheme, and s3 and s3a are one place.
    "spark.delta.logStore.s3.impl": LOG_STORE,
    "spark.delta.logStore.s3a.impl": LOG_STORE,
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Settings on which positions by source name, Delta, and reading each file whole depend."""

_EXACT = (
    "Positions by source name and exact commits depend on what Streamkeeper sets there. Leave it out of"
    " spark_conf."
)
_PASSED_OVER = (
    "Files that cannot be read, or are gone, would count as read, and nothing would tell that their rows are"
    " not in the table. Leave it out of spark_conf."
)
_FORGETFUL = (
    "Delta would forget which batches a table has, and a flow that was stopped for longer would write its"
    " last batch twice. Leave it out of spark_conf."
)
_PLACED = (
    "Where drivers run is said by the connection streamkeeper_spark in Airflow, and by --master on the"
    " command line. Leave it out of spark_conf."
)
_RESTARTED = (
    "Airflow starts the next driver, unless the flow is parked or held; a cluster that does so, too, would"
    " start it in vain again and again. Leave it out of spark_conf."
)
_FAST_LIST = "spark.hadoop.delta.enableFastS3AListFrom"
_FAST_LIST_MENDED = (4, 4, 1)
_FAST_LISTED = (
    "Delta 4.4.0 also lists the files of nested folders with it, and fails on a sound table or reads another"
    " one (delta-io/delta#7451), and Streamkeeper's own log store on S3 does not use it. Leave it out of"
    " spark_conf, or install Delta 4.4.1."
)
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *OURS,
            CHECKPOINT_MANAGER,
            "spark.delta.logStore.class",
            "spark.sql.streaming.checkpointLocation",
            "spark.databricks.delta.write.txnAppId",
            "spark.databricks.delta.write.txnVersion",
        ),
        _EXACT,
    ),
    **dict.fromkeys(
        ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"), _PASSED_OVER
    ),
    "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration": _FORGETFUL,
    _FAST_LIST: _FAST_LISTED,
    "spark.master": _PLACED,
    "spark.submit.deployMode": _PLACED,
    "spark.driver.supervise": _RESTARTED,
}
"""Settings that no pipeline may set, each with the reason and what to do; Delta's fast listing only with a
Delta before the one that mends it.
"""

LISTS = {
    "jars": "spark.jars",
    "packages": "spark.jars.packages",
    "py_files": "spark.submit.pyFiles",
    "archives": "spark.archives",
}
"""What spark-submit ships with a driver: the setting of each, a list with commas between."""
NEEDS: Mapping[str, str] = {
    "driver_memory": "spark.driver.memory",
    "driver_cores": "spark.driver.cores",
    "num_executors": "spark.executor.instances",
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
    **LISTS,
}
"""What a driver may need, by the names of spark-submit's options, and the setting of each."""

AT_SUBMISSION = (NEEDS["driver_memory"], NEEDS["driver_cores"], *LISTS.values())
"""Settings that take effect at spark-submit, which also completes them: jars of packages join the jars."""

_MEMORY = re.compile(r"([1-9][0-9]*)([kmgt])", re.IGNORECASE)
_KIB = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
_MEMORIES = (NEEDS["driver_memory"], NEEDS["executor_memory"])
_COLUMNS_IN_1_GB, _COLUMNS_A_GB = 200, 125
_NEARLY = 0.9
"""Share of its size that a heap has at least: a JVM keeps some for itself."""
_NUMBERS = tuple(NEEDS[name] for name in ("driver_cores", "num_executors", "executor_cores"))
_PACKAGE = re.compile(r"[\w.-]+:[\w.-]+:(?!latest\.)[\w.-]+(?<!-SNAPSHOT)", re.ASCII)
_ENDINGS = {
    "jars": (".jar",),
    "py_files": (".py", ".zip", ".egg"),
    "archives": (".zip", ".jar", ".tar", ".tar.gz", ".tgz"),
}


@dataclass(frozen=True)
class Driver:
    """What a driver needs, as Spark's settings, and where that is declared."""

    conf: Mapping[str, str]
    location: Location


def driver_of(
    needs: Mapping[str, object], spark_conf: Mapping[str, str], data: str, location: Location
) -> Driver:
    """Return what a driver needs.

    :param needs: values by the names in :data:`NEEDS`; None where nothing is needed.
    :param spark_conf: further settings, checked already.
    :param data: replaces ``{data}`` in paths.
    :raises DeclarationError: a value does not parse, a file is not there, a package has no fixed version, or
        a setting is given both ways.
    """
    conf = dict(spark_conf)
    for name, value in needs.items():
        setting = NEEDS[name]
        if value is None:
            continue
        if setting in conf:
            raise DeclarationError(
                f"{location}: the driver has {name} {value!r} and sets {setting} to {conf[setting]!r}, which"
                f" {name} sets. Leave one of them out."
            )
        if name in LISTS:
            conf[setting] = ",".join(_listed(name, value, data, location))
        else:
            conf[setting] = str(value) if isinstance(value, (str, int)) else repr(value)
            _check_size(f"the driver has {name}", setting, value, location)
    return Driver(conf, location)


def check_settings(subject: str, conf: Mapping[str, str], location: Location) -> None:
    """Check Spark settings that a pipeline gives by their own names.

    :param subject: whose they are, such as ``flow f``.
    :raises DeclarationError: one is Streamkeeper's to set, or a size does not parse.
    """
    for name, value in conf.items():
        if name in REFUSED and not (name == _FAST_LIST and delta_release() >= _FAST_LIST_MENDED):
            raise DeclarationError(f"{location}: the {subject} sets {name}. {REFUSED[name]}")
        _check_size(f"the {subject} has {name}", name, value, location)


def needs_of(conf: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Return what a flow's settings say of its driver: by spark-submit's options, then the other settings."""
    named: dict[str, str | list[str]] = {
        name: conf[setting].split(",") if name in LISTS else conf[setting]
        for name, setting in NEEDS.items()
        if setting in conf
    }
    return {**named, **{name: value for name, value in conf.items() if name not in NEEDS.values()}}


def packages_note(flow: AnyFlow) -> str | None:
    """Return a sentence on the flow's packages: when its start depends on a network; None if it has none."""
    packages = flow.spark_conf.get(LISTS["packages"])
    if packages is None:
        return None
    return (
        f"{flow.location}: the driver of the flow {flow.name} needs packages of Maven ({packages}). The first"
        " start on a host downloads them, and fails without a network; later ones take them from Ivy's cache"
        " (spark.jars.ivy). A driver with jars asks no network."
    )


def heap_note(flow: AnyFlow, columns: int, heap: int | None = None) -> str | None:
    """Return a sentence with what to declare where a flow that keeps its table by key has too many columns
    for its driver's heap; None if they fit. In 1 GB 200 columns do, in 4 GB 500.

    :param heap: bytes, of a driver that runs; by default what is declared, or Spark's own 1 GB.
    """
    needed = 1 if columns <= _COLUMNS_IN_1_GB else -(-columns // _COLUMNS_A_GB)
    kib = heap // 1024 if heap else _kib(flow.spark_conf.get(NEEDS["driver_memory"], "1g"))
    has = kib / _KIB["g"]
    if flow.spec is None or not has or has > needed * _NEARLY:
        return None
    return (
        f"{flow.location}: the flow {flow.name} keeps a table of {columns} columns by key, whose plans and"
        f" generated code need a heap of {needed} GB; the driver's has {has:.1f} GB. Declare"
        f' driver=dp.driver(driver_memory="{needed}g"), or leave columns out by except_column_list.'
    )


def executors_conf(conf: Mapping[str, str], master: str) -> dict[str, str]:
    """Return the settings by which Spark's own masters start ``num_executors``: they count cores, and an
    executor without a number of cores takes all of its worker.
    """
    number = conf.get(NEEDS["num_executors"])
    if number is None or not master.startswith("spark://"):
        return {}
    cores = conf.get(NEEDS["executor_cores"], "1")
    return {NEEDS["executor_cores"]: cores, "spark.cores.max": str(int(number) * int(cores))}


def _check_size(subject: str, setting: str, value: object, location: Location) -> None:
    """Check a number or a memory; other settings may have any value."""
    text = "" if isinstance(value, bool) else str(value)
    if setting in _MEMORIES and not _MEMORY.fullmatch(text):
        # The JVM takes it as it is, in its own spelling: 2gb is none, and 2 is two bytes.
        raise DeclarationError(
            f"{location}: {subject} {value!r}, which is no memory of a JVM. Give a whole number and k, m, g"
            " or t, such as '2g'."
        )
    if setting in _NUMBERS and not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise DeclarationError(f"{location}: {subject} {value!r}. Give a whole number from 1 on.")


def _listed(name: str, value: object, data: str, location: Location) -> list[str]:
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not items or not all(isinstance(item, (str, PurePath)) and str(item).strip() for item in items):
        example = "org.example:udfs:1.2.0" if name == "packages" else f"/opt/orders{_ENDINGS[name][0]}"
        raise DeclarationError(
            f"{location}: the driver has {name} {value!r}. Give a list of one or more texts, such as"
            f" {[example]}."
        )
    texts = [str(item) for item in items]
    for text in texts:
        if "{env:" in text or "{conn:" in text or "," in text or redact(text) != text:
            raise DeclarationError(
                f"{location}: the driver has {redact(text)!r} in its {name}. spark-submit gets it as an"
                " argument, with commas between, for all to read: {env:NAME}, a comma or a secret cannot be"
                " in it. Give the place itself, or put the setting into spark-defaults.conf (SPARK_CONF_DIR)."
            )
    if name == "packages":
        for text in texts:
            _check_package(text, location)
        return texts
    return [_place(name, text.replace("{data}", data), location) for text in texts]


def _check_package(text: str, location: Location) -> None:
    if not _PACKAGE.fullmatch(text):
        raise DeclarationError(
            f"{location}: the driver has {text!r} in its packages. Give group:artifact:version as Maven has"
            " them, such as 'org.example:udfs:1.2.0'. The version must be a fixed one: ranges, latest and"
            " SNAPSHOT would be asked for at each start."
        )


def _place(name: str, text: str, location: Location) -> str:
    """Return the path or URL of what is shipped, after a check that it is there, if this machine can tell."""
    path = text.partition("#")[0] if name == "archives" else text
    if not path.lower().endswith(_ENDINGS[name]):
        raise DeclarationError(
            f"{location}: the driver has {text!r} in its {name}. Spark takes files that end in"
            f" {', '.join(_ENDINGS[name])} there."
        )
    scheme = re.match("[a-z][a-z0-9+.-]*:", path)
    if scheme is None and not path.startswith("/"):
        raise DeclarationError(
            f"{location}: the driver has the relative path {text!r} in its {name}. Start it with /, with"
            " {data}/, or with a scheme, such as local: for a file that is on every machine."
        )
    here = path if scheme is None else unquote(re.sub("^file:(//)?", "", path))
    if (scheme is None or scheme[0] == "file:") and not Path(here).is_file():
        raise DeclarationError(
            f"{location}: the driver has {text!r} in its {name}, and there is no such file here. Put it"
            " there, or write local: before the path of a file that is only where drivers and executors run."
        )
    return text


FAIR = {"spark.scheduler.mode": "FAIR"}
"""Spark's mode in which queries take turns, each in a pool of its own (Spark's "Job Scheduling")."""

_OF_SESSIONS = ("spark.sql.", "spark.databricks.delta.")
CATALOG, HIVE = "spark.sql.catalogImplementation", "hive"
"""Setting of the session catalog, and its value for the one that other sessions see: a Hive metastore, or one
that the same client speaks to. Spark's default is gone with its session.
"""
_STATIC = (
    CATALOG,
    "spark.sql.extensions",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.warehouse.dir",
)
"""Static settings that users know. Spark refuses any other when the flow's session is created."""


def is_of_session(name: str) -> bool:
    """Return whether each session of an application may have its own value of a setting."""
    return name.startswith(_OF_SESSIONS) and name not in _STATIC


def common_conf(flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return the settings that all flows declare alike: those of their application."""
    first, *others = flows
    return {
        name: value
        for name, value in first.spark_conf.items()
        if all(flow.spark_conf.get(name) == value for flow in others)
    }


def job_conf(flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return the settings of a job on the tables of some flows.

    A setting of a session counts if all flows declare it alike. A setting of an application counts if any
    flow declares it; of different values the first flow's, of memories the largest, of lists all together.
    """
    of_application: dict[str, str] = {}
    for flow in flows:
        for name, value in flow.spark_conf.items():
            if not is_of_session(name):
                of_application[name] = _together(name, of_application.get(name, value), value)
    return {**of_application, **(common_conf(flows) if flows else {})}


def _together(name: str, first: str, other: str) -> str:
    if name in LISTS.values():
        return ",".join(dict.fromkeys([*first.split(","), *other.split(",")]))
    return max(first, other, key=_kib) if name in _MEMORIES else first


def _kib(memory: str) -> int:
    number, unit = memory[:-1], memory[-1:].lower()
    return int(number) * _KIB[unit] if unit in _KIB else 0


def own_conf(flow: AnyFlow, flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return a flow's settings beyond those of its application: those of its own session."""
    common = common_conf(flows)
    return {name: value for name, value in flow.spark_conf.items() if name not in common}


def check_shareable(flows: Sequence[AnyFlow]) -> None:
    """Check that some flows can run in one application.

    :raises DeclarationError: two of them differ in a setting that only a whole application can have, one sets
        the scheduler's mode, one runs once, or one has its changes tried.
    """
    first, *others = flows
    for flow in flows:
        if flow.once:
            raise DeclarationError(
                f"{flow.location}: the flow {flow.name} runs once, but its pipeline has a shared driver,"
                " whose flows end together: they would all end with it. Leave shared_driver out, or declare"
                " the flow in a pipeline file of its own, with another table."
            )
        if flow.on_change != RESTART:
            raise DeclarationError(
                f"{flow.location}: the flow {flow.name} has on_change {flow.on_change!r}, but its pipeline"
                " has a shared driver, whose flows begin and end together with one code. Leave on_change or"
                " shared_driver out."
            )
        taken = sorted(set(flow.spark_conf) & set(FAIR))
        if taken:
            raise DeclarationError(
                f"{flow.location}: the flow {flow.name} sets {taken[0]}, but its pipeline has a shared"
                " driver, whose queries take turns in FAIR pools. Leave it out; weights of pools go into"
                " spark.scheduler.allocation.file, with the flows' names."
            )
    for other in others:
        for name in sorted({*first.spark_conf, *other.spark_conf}):
            mine, theirs = first.spark_conf.get(name), other.spark_conf.get(name)
            if mine != theirs and not is_of_session(name):
                raise DeclarationError(
                    f"{other.location}: the flow {other.name} has {_setting_text(name, theirs)}, and the flow"
                    f" {first.name} ({first.location}) has {_setting_text(name, mine)}. They share one"
                    " driver, and only a whole application can have that setting. Give both the same value,"
                    " declare it once for all (dp.configure_pipeline(driver=dp.driver(…))), or leave"
                    " shared_driver out; settings that start with spark.sql. may differ."
                )


def _setting_text(name: str, value: str | None) -> str:
    return f"no {name}" if value is None else f"{name}={value!r}"
