"""Run Spark Structured Streaming flows on Apache Airflow and recover them when a checkpoint breaks."""

import sys

__version__ = "0.1.0"
OLDEST_PYTHON = (3, 11)
"""As in ``distribution/versions.toml``, which an older Python cannot read."""

if sys.version_info < OLDEST_PYTHON:
    raise ImportError(
        f"Streamkeeper needs Python {'.'.join(map(str, OLDEST_PYTHON))} or later; {sys.executable} is Python"
        f" {'.'.join(map(str, sys.version_info[:3]))}. Start it with another one."
    )
