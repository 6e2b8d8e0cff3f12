"""How a flow's driver is submitted: Spark's settings, the command, the environment. Nothing here starts
anything or imports Spark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streamkeeper.declare.model import AnyFlow, Pipeline
from streamkeeper.declare.shared_driver import FAIR, common_conf
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT, Settings

JOB = PROJECT / "spark_jobs" / "run_flow.py"
"""The application that spark-submit runs."""

RECOVERY_JOB = PROJECT / "spark_jobs" / "run_recovery.py"
"""The application that carries out one step of a recovery."""

LOG_VARIABLE = "STREAMKEEPER_DRIVER_LOG"
"""Tells a driver which file its output goes to, so that its lease can say so to whoever attaches to it."""

SUPERVISED_VARIABLE = "STREAMKEEPER_SUPERVISED"
"""Where this is ``1`` a driver stops by itself when its supervisor's heartbeat
(streamkeeper.drivers.supervision) stays away.
"""

OURS: Mapping[str, str] = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings that positions by source name, and Delta, depend on. A flow that sets one of them is refused."""

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_REFUSED = (
    *OURS,
    "spark.sql.streaming.checkpointLocation",
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
)
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:,[0-9]+)?\])?")


def spark_settings(settings: Settings, flow: AnyFlow, master: str = "local[2]") -> dict[str, str]:
    """Give the ``--conf`` values of the application of a flow that has one for itself, by name.

    On ``local`` masters the jars go on the class path as they are, and shuffles, snapshots of Delta tables
    and addresses suit one machine; elsewhere the jars are shipped to the executors. What the flow declares as
    ``spark_conf`` comes after the defaults.

    :raises DeclarationError: the flow sets what Streamkeeper must set itself.
    """
    check_allowed(flow)
    return _application(settings, flow.spark_conf, master)


def shared_settings(settings: Settings, pipeline: Pipeline, master: str = "local[2]") -> dict[str, str]:
    """Give the ``--conf`` values of the application that all flows of a pipeline share: what they declare
    alike, and FAIR scheduling.
    """
    common = {name: value for name, value in common_conf(pipeline.flows).items() if name not in _REFUSED}
    return {**_application(settings, common, master), **FAIR}


def application_settings(settings: Settings, flow: Flow, master: str = "local[2]") -> dict[str, str]:
    """Give the ``--conf`` values of the application that a flow runs in, its own or its pipeline's.

    :raises DeclarationError: the flow has an application for itself, and sets what Streamkeeper must set
        itself.
    """
    if flow.pipeline.shared_driver:
        return shared_settings(settings, flow.pipeline, master)
    return spark_settings(settings, flow.declaration, master)


def job_settings(settings: Settings, master: str = "local[2]") -> dict[str, str]:
    """Give the ``--conf`` values of an application that runs no flow: a job on tables."""
    return _application(settings, {}, master)


def check_allowed(flow: AnyFlow) -> None:
    """Make sure that a flow leaves Streamkeeper's own settings alone.

    :raises DeclarationError: it does not.
    """
    refused = sorted(set(flow.spark_conf) & set(_REFUSED))
    if refused:
        raise DeclarationError(
            f"{flow.where}: the flow {flow.name} sets {', '.join(refused)}. Positions by source name and"
            " exact commits depend on what Streamkeeper sets there. Leave them out of spark_conf."
        )


def application_name(flows: Sequence[Flow]) -> str:
    """Give the name that the application of some flows of one pipeline has in Spark: the flow's, or the
    pipeline's where it is shared.
    """
    return flows[0].pipeline.name if flows[0].pipeline.shared_driver else flows[0].full_name


def arguments(flows: Sequence[Flow]) -> list[str]:
    """Give what :data:`JOB` is called with to run some flows of one pipeline."""
    return [part for flow in flows for part in ("--flow", flow.full_name)]


def command(
    settings: Settings, flows: Flow | Sequence[Flow], available_now: bool = False, master: str = "local[2]"
) -> list[str]:
    """Give the command that runs a flow's driver, or the one that flows of a pipeline share, ``spark-submit``
    first.

    Run it with :func:`environment`.

    :raises DeclarationError: the flow sets what Streamkeeper must set itself.
    """
    together = [flows] if isinstance(flows, Flow) else list(flows)
    given = application_settings(settings, together[0], master)
    confs = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    asked = ["--available-now"] if available_now else []
    return [
        spark_submit(), "--master", master, "--name", application_name(together), *confs, str(JOB), *arguments(together), *asked,
    ]  # fmt: skip


def recovery_arguments(pipeline: str, recovery: str, step: str) -> list[str]:
    """Give what :data:`RECOVERY_JOB` is called with."""
    return ["--pipeline", pipeline, "--recovery", recovery, "--step", step]


def recovery_command(
    settings: Settings, pipeline: str, recovery: str, step: str, master: str = "local[2]"
) -> list[str]:
    """Give the command that carries out one step of a recovery in Spark; run it with :func:`environment`."""
    confs = [
        part
        for name, value in job_settings(settings, master).items()
        for part in ("--conf", f"{name}={value}")
    ]
    return [
        spark_submit(), "--master", master, "--name", f"{recovery} {step}", *confs, str(RECOVERY_JOB),
        *recovery_arguments(pipeline, recovery, step),
    ]  # fmt: skip


def environment(settings: Settings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give what the driver's environment needs on top of ``inherited`` (``os.environ`` by default): the
    settings, and this very Python.
    """
    env = os.environ if inherited is None else inherited
    before = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(PROJECT)]
    path = [
        part
        for part in env.get("PATH", os.defpath).split(os.pathsep)
        if part != str(Path(sys.executable).parent)
    ]
    return {
        **settings.as_environment(),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *before]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), *path]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PIN_THREAD": "true",
        "PYTHONUNBUFFERED": "1",
    }


def spark_submit() -> str:
    """Give the ``spark-submit`` of this Python's own environment, or the one that the path has."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def _application(settings: Settings, declared: Mapping[str, str], master: str) -> dict[str, str]:
    local = _LOCAL.fullmatch(master)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        **(_on_one_machine(local[1]) if local else {}),
    }
    extensions = [
        name for name in declared.get("spark.sql.extensions", "").split(",") if name and name != _DELTA
    ]
    return {
        **defaults,
        **declared,
        **OURS,
        **_jars(settings.jars, declared, bool(local)),
        "spark.sql.extensions": ",".join([_DELTA, *extensions]),
    }


def _on_one_machine(cores: str | None) -> dict[str, str]:
    """Suit one machine: Spark's 200 shuffle partitions and Delta's 50 snapshot partitions are for clusters;
    here they cost seconds.

    So do the 10,000 tasks in which VACUUM looks through a table's folders, however few there are.
    """
    partitions = str(os.cpu_count() or 1) if cores == "*" else cores or "1"
    return {
        "spark.sql.shuffle.partitions": partitions,
        "spark.databricks.delta.snapshotPartitions": partitions,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": partitions,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _jars(folder: Path, declared: Mapping[str, str], local: bool) -> dict[str, str]:
    if local:
        before = declared.get("spark.driver.extraClassPath")
        return {"spark.driver.extraClassPath": f"{before}:{folder}/*" if before else f"{folder}/*"}
    before = declared.get("spark.jars")
    return {
        "spark.jars": ",".join(
            [*([before] if before else []), *(str(jar) for jar in sorted(folder.glob("*.jar")))]
        )
    }
