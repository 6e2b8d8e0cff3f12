"""Commands of streamkeeper whose state, tables and backups are on a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable, QueryBuilder

from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_jars

Streamkeeper = Callable[..., "subprocess.CompletedProcess[str]"]


def environment_on_s3(root: Path, endpoint: str) -> dict[str, str]:
    """Return what a command, or a Spark job, adds to its environment to reach the server by an endpoint."""
    here = {name: str(root / name) for name in ("pipelines", "data")}
    there = {name: f"s3://{BUCKET}/{name}" for name in ("state", "warehouse", "backups")}
    settings = {**here, **there, "jars": str(s3_jars()), "pipeline_env": "AWS_*"}
    given = os.environ.get("SPARK_CONF_DIR")
    conf = Path(given, "spark-defaults.conf").read_text() if given else ""
    (root / "conf").mkdir(exist_ok=True)
    (root / "conf" / "spark-defaults.conf").write_text(
        f"{conf}\nspark.hadoop.fs.s3a.endpoint {endpoint}\n"
        "spark.hadoop.fs.s3a.endpoint.region us-east-1\nspark.hadoop.fs.s3a.path.style.access true\n"
    )
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **{f"STREAMKEEPER_{name.upper()}": value for name, value in settings.items()},
        **LOGIN,
        "AWS_ENDPOINT_URL": endpoint,
        "SPARK_CONF_DIR": str(root / "conf"),
    }


SESSION = """
from pyspark.sql import SparkSession
from streamkeeper.declare.model import AppendFlow, Location
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import Settings

flow = AppendFlow("flow", "table", (), "", "1 second", {}, Location("pipeline", 1))
builder = SparkSession.builder.master("local[2]")
for name, value in spark_settings(Settings.from_environment(), flow).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
"""


def python_on_s3(root: Path, server: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, where ``spark`` is a session as a driver on the server has it."""
    return subprocess.run(
        [sys.executable, "-c", SESSION + code],
        env={**os.environ, **environment_on_s3(root, f"http://{server}")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def on_s3(root: Path, pipeline: str, text: str) -> Streamkeeper:
    """Declare a pipeline; return what runs a command, given the address of the server and arguments."""
    (root / "pipelines").mkdir()
    (root / "pipelines" / f"{pipeline}.py").write_text(text)

    def run(endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "streamkeeper", *arguments],
            env={**os.environ, **environment_on_s3(root, endpoint)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def arrive(root: Path, name: str, rows: Sequence[dict[str, Any]], source: str = "events") -> None:
    """Let a file of rows come to a source, at once."""
    folder = root / "data" / source
    folder.mkdir(parents=True, exist_ok=True)
    aside = root / "data" / name
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    aside.rename(folder / name)


def rows_of(server: str, table: str, by: str = "n") -> list[dict[str, Any]]:
    """Return the rows of a table, in order."""
    options = {**LOGIN, "AWS_ENDPOINT_URL": f"http://{server}", "AWS_ALLOW_HTTP": "true"}
    found = DeltaTable(f"s3://{BUCKET}/warehouse/{table}", storage_options=options)
    # It heeds deletion vectors, which a table of Arrow does not.
    rows = QueryBuilder().register("found", found).execute(f"SELECT * FROM found ORDER BY {by}").read_all()
    return pyarrow.table(rows).to_pylist()
