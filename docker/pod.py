"""Run what a container was started for; in a pod that Spark made, its driver or an executor.

Spark gives a pod of Kubernetes no command, but the word ``driver`` or ``executor`` as its first argument, and
the rest by variables (its BasicDriverFeatureStep and BasicExecutorFeatureStep).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")
_NAMED = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)


def command(arguments: Sequence[str], environment: Mapping[str, str], spark: Path) -> list[str]:
    """Return the command line of a container with some arguments; of others than Spark's, the arguments.

    :param spark: Spark's home.
    """
    role, *rest = arguments
    if role == "driver":
        address = environment["SPARK_DRIVER_BIND_ADDRESS"]
        named = (f"spark.driver.bindAddress={address}", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}")
        confs = [part for name in named for part in ("--conf", name)]
        return ["spark-submit", *confs, "--deploy-mode", "client", *rest]
    if role == "executor":
        found = [
            (int(at[1]), value) for name, value in environment.items() if (at := _OPTION.fullmatch(name))
        ]
        memory = environment["SPARK_EXECUTOR_MEMORY"]
        path = (environment.get("SPARK_CLASSPATH"), environment.get("SPARK_CONF_DIR"), f"{spark}/jars/*")
        return [
            str(Path(environment["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in environment else "java",
            *(value for _, value in sorted(found)),
            f"-Xms{memory}",
            f"-Xmx{memory}",
            "-cp",
            os.pathsep.join(part for part in path if part),
            EXECUTOR,
            *(part for option, name in _NAMED for part in (option, environment[name])),
        ]
    return [*arguments]


def main() -> None:
    """Become the process that the container is for."""
    spark = find_spec("pyspark")
    if len(sys.argv) < 2 or spark is None or spark.origin is None:
        sys.exit("pod.py: name a command, or what Spark gives its pods, in an image that has pyspark.")
    line = command(sys.argv[1:], os.environ, Path(spark.origin).parent)
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
