"""The index of a table's keys (AUTO CDC), where the table is on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.sources.on_s3 import python_on_s3
from tests.worlds.sources.s3_server import BUCKET

pytestmark = pytest.mark.long

BATCHES = f"""
import sys
sys.path.insert(0, "spark_jobs")
from pyspark.sql.types import StructType
from streamkeeper_jobs.cdc import Step, apply_changes, prepare
from streamkeeper_jobs.cdc.replace_rows import Opened
from streamkeeper_jobs.spark.delta_snapshot import Listed
from tests.worlds.tables.cdc_world import SCHEMA, SPEC, TABLE, alone

def searched(*_):
    raise AssertionError("the keys were searched for")

Listed.rows = property(lambda _: 10**6)  # so that the index costs nothing
Opened._mark = searched
schema, path, wanted = StructType.fromDDL(SCHEMA), "s3://{BUCKET}/warehouse/customers", {{}}
prepare(spark, schema, SPEC, path, TABLE, alone)
for at in range(5):
    keys = range(200) if at == 0 else range(at, 40 + at)
    rows = spark.createDataFrame([(key, at, "U", f"{{key}} at {{at}}", "x") for key in keys], schema)
    apply_changes(rows, SPEC, path, Step("flow", at), alone)
    wanted.update({{key: f"{{key}} at {{at}}" for key in keys}})
    if at == 3:  # somebody else marks rows of files that are known
        spark.sql(f"DELETE FROM delta.`s3a://{BUCKET}/warehouse/customers` WHERE id IN (5, 100)")
        del wanted[5], wanted[100]
found = [(row["id"], row["name"]) for row in spark.read.format("delta").load(path).collect()]
assert sorted(found) == sorted(wanted.items()), found
"""


def test_rows_of_known_keys_are_replaced_without_a_look_at_the_table(server: str, tmp_path: Path) -> None:
    done = python_on_s3(tmp_path, server, BATCHES)
    assert done.returncode == 0, done.stderr[-4000:]
