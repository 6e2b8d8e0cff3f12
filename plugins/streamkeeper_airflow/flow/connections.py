"""Values of Airflow's connections, which options of sources and sinks name as ``{conn:NAME.FIELD}``."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from streamkeeper.drivers.submit import Submission
from streamkeeper.errors import SettingsError
from streamkeeper.settings import pipeline_connections
from streamkeeper.support import connections


def value(name: str) -> str:
    """Return the value of ``NAME.FIELD``, from wherever Airflow has its connections.

    :raises SettingsError: pipelines may not use it, there is no such connection, or its field is empty.
    """
    if (refused := connections.why_refused([name], pipeline_connections())) is not None:
        raise SettingsError(f"{{conn:{name}}} in an option: {refused}.")
    connection_id, field = connections.parts(name)
    try:
        connection = BaseHook.get_connection(connection_id)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        raise SettingsError(
            f"There is no connection {connection_id!r}, which {{conn:{name}}} in an option asks for. Add it"
            " to Airflow, or correct the option."
        ) from error
    key = field.partition(".")[2]
    text = connection.extra_dejson.get(key) if key else getattr(connection, field)
    if text in (None, ""):
        raise SettingsError(
            f"The connection {connection_id!r} has no {field}, which {{conn:{name}}} in an option asks for."
            " Add it there, or correct the option."
        )
    return str(text)


# What plans and carries out a recovery imports this, and asks sources itself.
connections.resolve_by(value)


def handed(job: Submission, page: str | None) -> Submission:
    """Return a job with the file of the values that its options name; the job itself if they name none.

    :param page: address of the cluster's pages, if the cluster starts the job on a host of its own.
    :raises SettingsError: a value cannot be had, or a cluster starts the job, where the file would not be.
    """
    if not job.connections:
        return job
    if page is not None:
        raise SettingsError(
            f"{{conn:{job.connections[0]}}} in an option is handed over by a file of this host, and the"
            f" cluster of {page} starts jobs on hosts of its own. Use deploy mode client, or {{env:NAME}}."
        )
    values = {name: value(name) for name in job.connections}
    descriptor, file = tempfile.mkstemp(prefix="streamkeeper-connections-")
    os.close(descriptor)
    connections.hand_over(values, Path(file))
    return replace(job, environment={**job.environment, connections.FILE_VARIABLE: file})
