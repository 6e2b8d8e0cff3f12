"""How every job is submitted, a flow's driver and a step of a recovery: Spark's settings, the command, the
environment.

Nothing here starts anything or imports Spark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath

from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.clusters import cluster_drivers, kubernetes, standalone, yarn
from streamkeeper.clusters.host import JOBS, check_host
from streamkeeper.clusters.packed_code import packed_code
from streamkeeper.declare.driver import (
    CHECKPOINT_MANAGER,
    FAIR,
    LISTS,
    LOCAL_FILES,
    LOG_STORE,
    OURS,
    S3_CHECKPOINT_MANAGER,
    common_conf,
    executors_conf,
    job_conf,
)
from streamkeeper.declare.model import AnyFlow, Pipeline
from streamkeeper.errors import SettingsError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import DEFAULT_MASTER, FILL_JARS, Settings, is_s3
from streamkeeper.support import connections
from streamkeeper.support.user_environment import environment

JOB = JOBS / "run_flow.py"
"""Application of a flow's driver, for spark-submit."""

RECOVERY_JOB = JOBS / "run_recovery.py"
"""Application of one step of a recovery."""

PREFLIGHT_JOB = JOBS / "run_preflight.py"
"""Application that tries declarations on copies of their flows' states."""

TAKE_OVER = "--take-over"
"""Argument of a driver that tries a changed declaration, and takes over from the driver that runs."""

LOG_VARIABLE = "STREAMKEEPER_DRIVER_LOG"
"""Variable with the file of a driver's output, which its lease passes on to processes that attach to it."""

SUPERVISED_VARIABLE = "STREAMKEEPER_SUPERVISED"
"""Variable that is ``1`` for a supervised driver: it stops without its supervisor's heartbeat."""

YARN = "yarn"
"""Master of a YARN cluster, whose address is in Hadoop's configuration (``HADOOP_CONF_DIR``)."""
_OF_DRIVERS = (
    LOG_VARIABLE, SUPERVISED_VARIABLE, cluster_drivers.PAGE_VARIABLE,
    "PYSPARK_PYTHON", "PYSPARK_PIN_THREAD", "PYTHONUNBUFFERED",
)  # fmt: skip
"""Variables beside the settings that a driver needs on whatever host."""

S3_READS = "classic"
"""Kind of s3a's input streams.

Hadoop 3.5's default, ``analytics``, keeps some 30 KB of each Parquet file that a process has read until it
ends (HADOOP-20058): a heap of 1 GB is full after some 30,000 files.
"""

GENERATED = "1000"
"""Pieces of generated code that a driver keeps compiled. A batch of AUTO CDC has some 70, and a shared driver
as many for each such flow. Of Spark's default, 100, the oldest are dropped, and compiled again in the next
batch.
"""

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:,[0-9]+)?\])?")


def spark_settings(settings: Settings, flow: AnyFlow, master: str = DEFAULT_MASTER) -> dict[str, str]:
    """Return the ``--conf`` values, by name, of the application of a flow with a driver of its own.

    On ``local`` masters the jars are put on the class path as they are, and shuffles, snapshots of Delta
    tables and addresses suit one machine. Elsewhere the jars are shipped to the executors. The flow's
    ``spark_conf`` overrides the defaults.
    """
    return _application(settings, flow.spark_conf, master)


def shared_settings(settings: Settings, pipeline: Pipeline, master: str = DEFAULT_MASTER) -> dict[str, str]:
    """Return the ``--conf`` values of a shared application: settings that all flows share, and FAIR."""
    return {**_application(settings, common_conf(pipeline.flows), master), **FAIR}


def application_settings(settings: Settings, flow: Flow, master: str = DEFAULT_MASTER) -> dict[str, str]:
    """Return the ``--conf`` values of a flow's application, its own or its pipeline's."""
    if flow.pipeline.shared_driver:
        return shared_settings(settings, flow.pipeline, master)
    return spark_settings(settings, flow.declaration, master)


def job_settings(
    settings: Settings, flows: Sequence[AnyFlow], master: str = DEFAULT_MASTER
) -> dict[str, str]:
    """Return the ``--conf`` values of an application that works on tables or checkpoints and runs no flow."""
    return _application(settings, job_conf(flows), master)


def application_name(flows: Sequence[Flow]) -> str:
    """Return an application's name in Spark: the flow's, or the pipeline's if it is shared."""
    return flows[0].pipeline.name if flows[0].pipeline.shared_driver else flows[0].full_name


@dataclass(frozen=True)
class Submission:
    """Parts of a job's submission, of any kind, for the command line or Airflow's connection.

    ``conf`` suits ``master``; ``environment`` is the whole environment. ``java_class`` runs the application
    where that is a jar. ``connections`` are the values of Airflow's connections that the job's options name.
    """

    name: str
    application: PurePath
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    master: str
    environment: Mapping[str, str]
    java_class: str | None = None
    connections: tuple[str, ...] = ()

    def by_cluster(self, page: str, settings: Settings, wait: bool = False) -> Submission:
        """Return it as a cluster runs it on one of its hosts.

        :param page: address of the cluster's pages, which the driver hands on by its lease.
        :param wait: whether spark-submit stays until the job's end.
        :raises SettingsError: what the cluster needs cannot be made.
        """
        named = replace(self, environment={**self.environment, cluster_drivers.PAGE_VARIABLE: page})
        if self.master == YARN:
            return named._by_yarn(settings, wait)
        if self.master.startswith(kubernetes.MASTER):
            return named._by_kubernetes(settings, wait)
        return named._by_master(settings, wait)

    def _by_master(self, settings: Settings, wait: bool) -> Submission:
        """Return it as a standalone master takes it: by a class, from a jar that is there.

        Job, Python and jars must be at the same place on every worker.
        """
        jars = sorted(settings.jars.glob("*.jar"))
        if not jars:
            raise SettingsError(f"There are no jars in {settings.jars}. Run `{FILL_JARS}`.")
        modules = self.conf.get(LISTS["py_files"], "")
        return replace(
            self,
            application=jars[0],
            arguments=(str(self.application), modules, *self.arguments),
            conf={
                **self.conf,
                "spark.driver.supervise": "false",
                # spark-submit ships them only with an application that is Python to it.
                **({"spark.files": _joined(self.conf.get("spark.files"), modules)} if modules else {}),
                **({standalone.AWAITED: "true"} if wait else {}),
            },
            java_class=standalone.RUNNER,
        )

    def _by_yarn(self, settings: Settings, wait: bool) -> Submission:
        """Return it as YARN takes it: with Streamkeeper's code, its settings, and one attempt.

        Python, and the folders that the settings name, must be at the same place on every node. Only settings
        go along: other variables would be arguments of a command, which all can read.
        """
        return replace(
            self,
            conf={
                **self._handed(settings, yarn.ENVIRONMENT),
                **self.conf,
                yarn.CODE: str(packed_code()),
                yarn.ATTEMPTS: "1",
                yarn.AWAITED: str(wait).lower(),
            },
        )

    def _by_kubernetes(self, settings: Settings, wait: bool) -> Submission:
        """Return it as Kubernetes takes it: in a pod with a name of its own, from an image that has
        Streamkeeper, Python and the jars at the same place as this host.

        Only settings go along, which all can read who may read pods.
        """
        pod = kubernetes.pod_name(self.name)
        jars = self.conf[LISTS["jars"]].replace(f"{settings.jars}/", f"local://{settings.jars}/")
        return replace(
            self,
            application=PurePosixPath(f"local:{self.application}"),
            conf={
                **self._handed(settings, kubernetes.ENVIRONMENT),
                **self.conf,
                LISTS["jars"]: jars,
                f"{kubernetes.ENVIRONMENT}{kubernetes.POD_VARIABLE}": pod,
                kubernetes.POD_NAME: pod,
                kubernetes.AWAITED: str(wait).lower(),
            },
        )

    def _handed(self, settings: Settings, prefix: str) -> dict[str, str]:
        """Return Spark's settings that give a driver, on whatever host, what it needs of the environment."""
        names = {*settings.as_environment(), *_OF_DRIVERS}
        return {f"{prefix}{name}": value for name, value in self.environment.items() if name in names}

    def check_host(self) -> None:
        """Check that the job can begin on this host (:func:`streamkeeper.clusters.host.check_host`).

        :raises SettingsError: something that it needs is missing or of another version.
        """
        check_host(Settings.from_environment(self.environment), self.environment)

    def command(self) -> list[str]:
        """Return the whole command, ``spark-submit`` first."""
        confs = [part for name, value in self.conf.items() for part in ("--conf", f"{name}={value}")]
        return [
            spark_submit(), "--master", self.master, "--name", self.name, *confs,
            str(self.application), *self.arguments,
        ]  # fmt: skip


def driver(
    settings: Settings, flows: Sequence[Flow], master: str = DEFAULT_MASTER, available_now: bool = False
) -> Submission:
    """Return the submission of a flow's driver, or of a pipeline's shared one."""
    arguments = [part for flow in flows for part in ("--flow", flow.full_name)] + (
        ["--available-now"] if available_now else []
    )
    conf = application_settings(settings, flows[0], master)
    named, env = connections_of(flows), environment_of(settings, master)
    return Submission(application_name(flows), JOB, tuple(arguments), conf, master, env, connections=named)


def connections_of(flows: Iterable[Flow]) -> tuple[str, ...]:
    """Return the values of Airflow's connections that options of the flows' sources and sinks name."""
    texts: list[str] = []
    for flow in flows:
        sink = flow.pipeline.sink_of(flow.declaration)
        options = [source.options for source in flow.pipeline.sources_of(flow.declaration)]
        for values in [*options, *([] if sink is None else [sink.properties])]:
            texts += values.values()
    return connections.names_in(texts)


def environment_of(settings: Settings, master: str) -> dict[str, str]:
    """Return the whole environment of a job. On a local master, Spark's UI listens on the loopback alone."""
    alone = {"SPARK_LOCAL_IP": "127.0.0.1"} if partitions(master) is not None else {}
    return {**alone, **environment(settings)}


def written_by(settings: Settings) -> dict[str, str]:
    """Return the classes of jvm/ that write checkpoints and tables, where these are on S3."""
    return {
        **({"checkpoint": S3_CHECKPOINT_MANAGER} if is_s3(settings.state) else {}),
        **({"table": LOG_STORE} if is_s3(settings.warehouse) else {}),
    }


def spark_submit() -> str:
    """Return the ``spark-submit`` of this Python's own environment, or the one on the path."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def _application(settings: Settings, declared: Mapping[str, str], master: str) -> dict[str, str]:
    cores = partitions(master)
    defaults = {
        "spark.ui.enabled": str(settings.spark_ui).lower(),
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.codegen.cache.maxEntries": GENERATED,
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.input.stream.type": S3_READS,
        **(_on_one_machine(cores) if cores is not None else {}),
        **_event_log(settings.event_log),
    }
    extensions = [
        name for name in declared.get("spark.sql.extensions", "").split(",") if name and name != _DELTA
    ]
    return {
        **defaults,
        **executors_conf(declared, master),
        **declared,
        **OURS,
        **_checkpoints(settings.state),
        **_jars(settings.jars, declared, cores is not None),
        "spark.sql.extensions": ",".join([_DELTA, *extensions]),
    }


def partitions(master: str) -> int | None:
    """Return the default number of partitions of a flow's shuffles and state: the cores of a local master.

    None on a cluster: there Spark's default holds, or that of its ``spark-defaults.conf``.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return None
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)


def why_partitions(flow: AnyFlow, master: str, number: str, stateful: bool) -> str:
    """Return a sentence with a new generation's shuffle partitions, their origin, and if they are fixed."""
    if flow.spark_conf.get(PARTITIONS) == number:
        origin = "as declared"
    elif str(partitions(master)) == number:
        origin = f"as many as the master {master} has cores"
    else:
        origin = f"as Spark is set up for the master {master}"
    if not stateful:
        return (
            f"Shuffles have {number} partitions ({PARTITIONS}), {origin}. Each start may have another number:"
            " declare it in spark_conf."
        )
    return (
        f"Shuffles and state have {number} partitions ({PARTITIONS}), {origin}. The checkpoint keeps that"
        " number on any other master too: another takes the number declared in spark_conf, and a reset that"
        " rebuilds the state."
    )


def _on_one_machine(cores: int) -> dict[str, str]:
    """Return settings that suit one machine."""
    return {
        # Spark's 200 shuffle partitions and Delta's 50 snapshot partitions are for clusters; here they cost
        # seconds. So do the 10,000 tasks with which VACUUM lists a table's folders, however few there are.
        PARTITIONS: str(cores),
        "spark.databricks.delta.snapshotPartitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        "spark.hadoop.fs.file.impl": LOCAL_FILES,
        "spark.hadoop.fs.AbstractFileSystem.file.impl": f"{LOCAL_FILES}$InContext",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _event_log(folder: str) -> dict[str, str]:
    """Return settings of Spark's event log, in files of a bounded size: a driver may run for months."""
    if not folder:
        return {}
    place = f"s3a://{folder.removeprefix('s3://')}" if folder.startswith("s3://") else folder
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": place,
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": "32m",
    }


def _checkpoints(state: str) -> dict[str, str]:
    """Return the setting for checkpoints on S3, for which Spark has no manager (docs/decisions/0037)."""
    return {CHECKPOINT_MANAGER: S3_CHECKPOINT_MANAGER} if is_s3(state) else {}


def _joined(*lists: str | None) -> str:
    return ",".join(item for item in lists if item)


def _jars(folder: Path, declared: Mapping[str, str], local: bool) -> dict[str, str]:
    if local:
        before = declared.get("spark.driver.extraClassPath")
        return {"spark.driver.extraClassPath": f"{before}:{folder}/*" if before else f"{folder}/*"}
    ours = (str(jar) for jar in sorted(folder.glob("*.jar")))
    return {LISTS["jars"]: _joined(declared.get(LISTS["jars"]), *ours)}
