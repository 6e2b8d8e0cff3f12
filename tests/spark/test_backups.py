"""Backups of real tables: every shape of table is kept, what is verified is what was pinned, and the source may go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import SparkSession

from streamkeeper import backups
from streamkeeper.storage import open_storage
from tests.spark.backupbed import Recoverer, copy_of
from tests.spark.flowbed import Flowbed

TABLE = "events.events"


@pytest.fixture
def at_work(bed: Flowbed, spark: SparkSession) -> Recoverer:
    return Recoverer(spark, bed.settings, "events")


def sql(spark: SparkSession, path: Path, *statements: str) -> None:
    for statement in statements:
        spark.sql(statement.replace("{t}", f"delta.`{path}`"))


def plain(spark: SparkSession, path: Path) -> None:
    """Partitions of special names, constraints, comments, properties, a generated and an identity column, and a log with a checkpoint."""
    table = (
        DeltaTable.create(spark)
        .location(str(path))
        .comment("what happened")
        .addColumn("number", "BIGINT", generatedAlwaysAs=IdentityGenerator(start=10, step=5))
        .addColumn("name", "STRING", nullable=False, comment="who")
        .addColumn("place", "STRING")
        .addColumn("length", "INT", generatedAlwaysAs="length(name)")
        .partitionedBy("place")
        .property("delta.checkpointInterval", "3")
        .property("owner's note", "a = 'b'")
    )
    table.execute()
    sql(spark, path, "ALTER TABLE {t} ADD CONSTRAINT named CHECK (name <> '')")
    for place in ("'a b'", "'50% = ü/?'", "NULL", "''"):
        sql(spark, path, f"INSERT INTO {{t}} (name, place) VALUES ('n', {place}), ('nn', {place})")


def mapped(spark: SparkSession, path: Path) -> None:
    """Columns by name with a drop and a rename, deletion vectors, clustering, row ids, commits with a time of their own, and odd types."""
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointPolicy": "v2",
        "delta.checkpointInterval": "2",
    }
    said = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    sql(
        spark,
        path,
        "CREATE TABLE {t} (id INT, `a b` STRING, gone INT, m MAP<STRING, INT>, d DOUBLE, n TIMESTAMP_NTZ) USING delta CLUSTER BY (id) "
        f"TBLPROPERTIES ({said})",
        "INSERT INTO {t} SELECT id, 'x', 1, map('b', 1, 'a', id), double('NaN'), timestamp_ntz'2026-01-01 00:00:00' FROM range(20)",
        "INSERT INTO {t} SELECT id + 20, NULL, 1, NULL, -0.0, NULL FROM range(20)",
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t} RENAME COLUMN `a b` TO `c, d`",
        "DELETE FROM {t} WHERE id % 5 = 0",
    )


SHAPES: dict[str, Callable[[SparkSession, Path], None]] = {"plain": plain, "mapped": mapped}


def said_of(spark: SparkSession, path: Path | str) -> dict[str, Any]:
    """All that a table is besides its rows, its place and its times."""
    found = DeltaTable.forPath(spark, str(path)).detail().collect()[0].asDict(recursive=True)
    kept = ("description", "partitionColumns", "clusteringColumns", "properties", "minReaderVersion", "minWriterVersion", "tableFeatures")
    said = {name: found[name] for name in kept}
    schema = json.loads(spark.read.format("delta").load(str(path)).schema.json())
    return {**said, "schema": schema, "files": found["numFiles"], "bytes": found["sizeInBytes"]}


def rows_of(spark: SparkSession, path: Path | str) -> list[str]:
    return sorted(str(row) for row in spark.read.format("delta").load(str(path)).collect())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_backup_is_the_same_table_and_outlives_the_one_it_was_made_of(
    spark: SparkSession, bed: Flowbed, at_work: Recoverer, shape: Callable[[SparkSession, Path], None]
) -> None:
    shape(spark, bed.table)
    rows, said = rows_of(spark, bed.table), said_of(spark, bed.table)
    entry = at_work.backup("b1", TABLE)
    found = copy_of(entry)
    assert (found["bytes"], found["checksum"]["rows"]) == (said["bytes"], len(rows))
    shutil.rmtree(bed.table)
    assert rows_of(spark, found["path"]) == rows
    assert said_of(spark, found["path"]) == said
    assert [made.id for made in backups.every(open_storage(bed.settings.state))] == ["b1"]
