"""Environment of processes that run user code: the child that imports pipeline files, and every Spark job.

Airflow's own environment holds passwords. So only the variables listed here are passed on, and those of
``STREAMKEEPER_PIPELINE_ENV``. ``{env:NAME}`` may use the latter alone: user code can read them anyway.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from streamkeeper.settings import PIPELINE_ENV, PROJECT, Settings

PLACEHOLDER = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
"""Placeholder for an environment variable in an option of a source."""

_NEVER = ("AIRFLOW*", "_AIRFLOW*", "STREAMKEEPER_METRICS_TOKEN")
"""Airflow's settings, connections and variables, and the token of its metrics, whatever the setting says."""

_HANDED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHON*", "JAVA_HOME", "SPARK_*", "PYSPARK_*", "HADOOP_*", "YARN_CONF_DIR", "KUBECONFIG", "KUBERNETES_*",
    "KRB5_CONFIG", "KRB5CCNAME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "STREAMKEEPER_*",
)  # fmt: skip
"""Variables that Python, Java, Spark and Streamkeeper need from the environment they are started in."""


def environment(settings: Settings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment of a process that runs user code: the settings, this Python, and the
    variables that are passed on.

    :param inherited: ``os.environ`` by default.
    """
    variables = os.environ if inherited is None else inherited
    passed_on = {
        name: value
        for name, value in variables.items()
        if is_allowed(name, (*_HANDED_ON, *settings.pipeline_env))
    }
    before = [
        part for part in passed_on.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(PROJECT)
    ]
    path = [
        part
        for part in passed_on.get("PATH", os.defpath).split(os.pathsep)
        if part != str(Path(sys.executable).parent)
    ]
    return {
        **passed_on,
        **settings.as_environment(),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *before]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), *path]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PIN_THREAD": "true",
        "PYTHONUNBUFFERED": "1",
    }


def variables_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the environment variables that ``{env:NAME}`` names in texts, each once, in order."""
    return tuple(dict.fromkeys(match[1] for text in texts for match in PLACEHOLDER.finditer(text)))


def is_allowed(name: str, allowed: Iterable[str]) -> bool:
    """Return whether pipelines may see an environment variable. Airflow's own are always excluded.

    :param allowed: names, or patterns such as ``ORDERS_*``: the setting.
    """
    return not _matches(name, _NEVER) and _matches(name, allowed)


def why_refused(names: Iterable[str], allowed: Iterable[str]) -> str | None:
    """Return why pipelines may not see some of the environment variables; None if they may see all."""
    allowed = tuple(allowed)
    refused = [name for name in names if not is_allowed(name, allowed)]
    if not refused:
        return None
    ours = [name for name in refused if _matches(name, _NEVER)]
    if ours:
        return (
            f"{', '.join(ours)} is Airflow's own, which pipelines may not read. Use a variable of another"
            " name"
        )
    return (
        f"{', '.join(refused)} is not an environment variable that pipelines may read: {PIPELINE_ENV} names"
        f" {', '.join(allowed) or 'none'}. Add it there, for Airflow, its workers and the command line alike"
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
