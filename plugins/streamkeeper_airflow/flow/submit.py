"""The spark-submit command and environment of a flow's driver, made by the Spark provider's hook from an
Airflow connection.

The hook knows masters, deploy modes, queues, keytabs and their connection fields; what it cannot do is start
the command the way a driver that outlives its supervisor must be started. So only its command is taken, which
is private to it: tests/airflow pins what is leaned on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowRuntimeError

from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings

CONNECTION = "streamkeeper_spark"


def prepare(
    settings: Settings, flows: Flow | Sequence[Flow], connection: str, log: Path
) -> tuple[list[str], dict[str, str]]:
    """Give the command and the whole environment of a flow's driver, or of the one that flows of a pipeline
    share.

    Nothing of Airflow's own environment goes along: it holds passwords, and a driver runs the user's code.

    :raises AirflowFailException: the connection is not there, or names a deploy mode that cannot be
        supervised yet.
    """
    _check_there(connection)
    probe = SparkSubmitHook(conn_id=connection)._connection
    if probe["deploy_mode"] == "cluster":
        raise AirflowFailException(
            f"The connection {connection!r} asks for deploy mode cluster, in which a driver's exit code and"
            " log do not reach Airflow yet. Set it to client, or leave it out."
        )
    master = str(probe["master"])
    environment = submit.environment(settings)
    ours = {submit.LOG_VARIABLE: str(log), submit.SUPERVISED_VARIABLE: "1"}
    together = [flows] if isinstance(flows, Flow) else list(flows)
    hook = SparkSubmitHook(
        conn_id=connection,
        conf=submit.application_settings(settings, together[0], master),
        application_args=submit.arguments(together),
        name=submit.application_name(together),
        env_vars={**environment, **ours},
    )
    binary, *arguments = hook._build_spark_submit_command(str(submit.JOB))
    command = [submit.spark_submit() if binary == "spark-submit" else binary, *arguments]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))
    }
    return command, {**inherited, **(hook._env or environment), **ours}


def _check_there(connection: str) -> None:
    """The hook would fall back to YARN, with a line in the log, if the connection is not there."""
    try:
        BaseHook.get_connection(connection)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        raise AirflowFailException(
            f"There is no connection {connection!r}, so nobody says which Spark to use. Add one of type spark"
            " with the master as its host: "
            f"""AIRFLOW_CONN_{connection.upper()}='{{"conn_type": "spark", "host": "local[2]"}}'."""
        ) from error
