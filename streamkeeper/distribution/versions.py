"""Versions of what Streamkeeper runs on, as ``versions.toml`` has them."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

# A driver on a cluster imports this from a zip file.
VERSIONS: dict[str, dict[str, Any]] = tomllib.loads(
    files("streamkeeper.distribution").joinpath("versions.toml").read_text()
)
"""Versions by the name of the part: ``airflow``, ``spark``, ``delta``, ``python``, ``java``."""

SPARK: str = VERSIONS["spark"]["release"]
"""The release of Spark that Streamkeeper and the jars of ``jars.lock`` are made for: 4.1 has no names of
sources (``DataStreamReader.name``).
"""
JAVA: int = VERSIONS["java"]["supported"][0]
"""The oldest Java that this Spark runs on."""
AIRFLOW: str = VERSIONS["airflow"]["oldest"]
"""The first Airflow with retry policies (``airflow.sdk.RetryPolicy``), by which drivers are tried again."""


def delta_release() -> tuple[int, ...]:
    """Return the numbers of the release of Delta that is installed; where Delta's Python package is not,
    those of the one that Streamkeeper was tested with.
    """
    try:
        release = version("delta-spark")
    except PackageNotFoundError:
        release = VERSIONS["delta"]["tested"][-1]
    return tuple(int(number) for number in re.findall(r"[0-9]+", release)[:3])
