"""What a process of Spark keeps of the objects that it has read from a real S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.sources.on_s3 import environment_on_s3
from tests.worlds.sources.s3_server import BUCKET

pytestmark = pytest.mark.long

OBJECTS = 60
READS = f"""
import re, subprocess
from pyspark.sql import SparkSession
from streamkeeper.declare.model import AppendFlow, Where
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import Settings
from tools.waiting import NotYet, wait_until

flow = AppendFlow("flow", "table", (), "", "1 second", {{}}, Where("pipeline", 1))
builder = SparkSession.builder.master("local[2]")
for name, value in spark_settings(Settings.from_environment(), flow).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
place = "s3a://{BUCKET}/rows"
spark.range({OBJECTS}).repartition({OBJECTS}).write.parquet(place)
assert spark.read.parquet(place).agg({{"id": "sum"}}).first()[0] == sum(range({OBJECTS}))
java = str(spark._jvm.java.lang.ProcessHandle.current().pid())

def few():
    found = subprocess.run(["jcmd", java, "GC.class_histogram"], capture_output=True, text=True, check=True)
    kept = re.search(r"(\\d+) +\\d+ +[\\w.]+[$]InputStreamStatistics", found.stdout)
    if kept is not None and int(kept[1]) > 5:
        raise NotYet(f"{{kept[1]}} are kept")
    return True

wait_until(few, 30, "what was read is let go", 0.5)
"""


def test_it_keeps_nothing_of_a_parquet_file(server: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS],
        env={**os.environ, **environment_on_s3(tmp_path, f"http://{server}")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
