"""Makes ``constraints/``: versions of all packages for each pair of Airflow and Spark that is tried.

python -m tools.constraints
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from streamkeeper.distribution.versions import VERSIONS
from streamkeeper.settings import PROJECT

EXTRAS = ("airflow", "spark", "delta", "s3", "kafka", "kubernetes", "otlp")
DATABASE = ("psycopg2-binary", "asyncpg")
"""Clients of PostgreSQL, which an Airflow of one's own has."""


def constraints(airflow: str, spark: str) -> Path:
    """Return the file of a pair."""
    return PROJECT / "constraints" / f"airflow-{airflow}-spark-{spark}.txt"


def main() -> None:
    """Make the file of each pair.

    :raises subprocess.CalledProcessError: the versions cannot be had together; uv says why.
    """
    options = ["--quiet", "--universal", "--python-version", VERSIONS["python"]["oldest"], "--no-annotate"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"]
    options += [part for extra in EXTRAS for part in ("--extra", extra)]
    for airflow, spark in product(VERSIONS["airflow"]["tried"], VERSIONS["spark"]["tried"]):
        pair = [f"apache-airflow=={airflow}", f"pyspark=={spark}", f"pyspark-client=={spark}", *DATABASE]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write("\n".join(pair))
            requirements.flush()
            uv = [sys.executable, "-m", "uv", "pip", "compile", *options]
            inputs = ["pyproject.toml", requirements.name]
            output = ["--output-file", str(constraints(airflow, spark))]
            subprocess.run([*uv, *output, *inputs], cwd=PROJECT, check=True)


if __name__ == "__main__":
    main()
