"""What a process of Spark keeps of the objects that it has read from a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.sources.on_s3 import python_on_s3
from tests.worlds.sources.s3_server import BUCKET

pytestmark = pytest.mark.long

OBJECTS = 60
READS = f"""
import re, subprocess
from tools.waiting import NotYet, wait_until

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
    done = python_on_s3(tmp_path, server, READS)
    assert done.returncode == 0, done.stderr[-4000:]
