"""Backups of real tables: every shape of table is kept, what is verified is what was pinned, and the source
may go.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from streamkeeper_jobs.spark.row_checksums import checksum, hash_of

from streamkeeper.errors import RecoveryError
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups
from streamkeeper.tables.backups import Checksum
from tests.worlds.flow_world import Flowbed
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

TABLE = "events.events"


def sql(spark: SparkSession, path: Path, *statements: str) -> None:
    for statement in statements:
        spark.sql(statement.replace("{t}", f"delta.`{path}`"))


def plain(spark: SparkSession, path: Path) -> None:
    """Partitions of special names, constraints, comments, properties, a generated and an identity column, and
    a log with a checkpoint.
    """
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
    """Columns by name with a drop and a rename, deletion vectors, clustering, row ids, commits with a time of
    their own, and odd types.
    """
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
        "CREATE TABLE {t} (id INT, `a b` STRING, gone INT, m MAP<STRING, INT>, d DOUBLE, n TIMESTAMP_NTZ)"
        f" USING delta CLUSTER BY (id) TBLPROPERTIES ({said})",
        "INSERT INTO {t} SELECT id, 'x', 1, map('b', 1, 'a', id), double('NaN'), timestamp_ntz'2026-01-01"
        " 00:00:00' FROM range(20)",
        "INSERT INTO {t} SELECT id + 20, NULL, 1, NULL, -0.0, NULL FROM range(20)",
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t} RENAME COLUMN `a b` TO `c, d`",
        "DELETE FROM {t} WHERE id % 5 = 0",
    )


SHAPES: dict[str, Callable[[SparkSession, Path], None]] = {"plain": plain, "mapped": mapped}


def said_of(spark: SparkSession, path: Path | str) -> dict[str, Any]:
    """All that a table is besides its rows, its place and its times."""
    found = DeltaTable.forPath(spark, str(path)).detail().collect()[0].asDict(recursive=True)
    kept = (
        "description",
        "partitionColumns",
        "clusteringColumns",
        "properties",
        "minReaderVersion",
        "minWriterVersion",
        "tableFeatures",
    )
    said = {name: found[name] for name in kept}
    said["properties"].pop(
        "delta.columnMapping.maxColumnId", None
    )  # it only grows: a dropped column's id is never given again
    schema = json.loads(spark.read.format("delta").load(str(path)).schema.json())
    return {**said, "schema": schema, "files": found["numFiles"], "bytes": found["sizeInBytes"]}


def rows_of(spark: SparkSession, path: Path | str) -> list[str]:
    return sorted(str(row) for row in spark.read.format("delta").load(str(path)).collect())


def spoil(spark: SparkSession, path: Path) -> None:
    """Replace rows, columns, properties and what they are clustered by, and let VACUUM take the files of
    every earlier version.
    """
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    found = DeltaTable.forPath(spark, str(path)).detail().collect()[0]
    if "checkConstraints" in found["tableFeatures"] or "delta.constraints.named" in found["properties"]:
        sql(spark, path, "ALTER TABLE {t} DROP CONSTRAINT named")
    if found["clusteringColumns"]:
        sql(spark, path, "ALTER TABLE {t} CLUSTER BY NONE")
    sql(spark, path, "ALTER TABLE {t} SET TBLPROPERTIES ('new' = 'x', 'delta.checkpointInterval' = '7')")
    sql(spark, path, "ALTER TABLE {t} ADD COLUMN more INT", "DELETE FROM {t}", "VACUUM {t} RETAIN 0 HOURS")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


@pytest.mark.parametrize("shape", long_after(1, SHAPES.values()), ids=SHAPES)
def test_a_backup_is_the_same_table_outlives_vacuum_and_drop_and_is_put_back_as_it_was(
    spark: SparkSession, bed: Flowbed, at_work: Recoverer, shape: Callable[[SparkSession, Path], None]
) -> None:
    shape(spark, bed.table)
    rows, said = rows_of(spark, bed.table), said_of(spark, bed.table)
    found = at_work.backup("b1", TABLE)["copy"]
    assert (found["bytes"], found["checksum"]["rows"]) == (said["bytes"], len(rows))
    assert [made.id for made in backups.every(open_storage(bed.settings.state))] == ["b1"]
    table_id = DeltaTable.forPath(spark, str(bed.table)).detail().collect()[0]["id"]
    spoil(spark, bed.table)
    at_work.run("restore_table", "r1", table=TABLE, backup="b1")
    assert rows_of(spark, bed.table) == rows
    assert said_of(spark, bed.table) == said
    assert DeltaTable.forPath(spark, str(bed.table)).detail().collect()[0]["id"] == table_id
    shutil.rmtree(bed.table)
    assert rows_of(spark, found["path"]) == rows
    assert said_of(spark, found["path"]) == said
    at_work.run("restore_table", "r2", table=TABLE, backup="b1")
    assert rows_of(spark, bed.table) == rows
    assert said_of(spark, bed.table) == said


@pytest.mark.long
def test_a_copy_that_was_damaged_is_not_entered_and_one_damaged_later_is_not_put_back(
    spark: SparkSession, bed: Flowbed, at_work: Recoverer
) -> None:
    spark.range(30).repartition(3).write.format("delta").save(str(bed.table))
    at_work.plan("backup_table", "b1", table=TABLE)
    at_work.step("b1", "pin")
    spark.range(5).write.format("delta").mode("append").save(str(bed.table))  # a writer goes on
    [copied] = at_work.step("b1", "copy")["copied"]
    assert copied["files"] == 3
    [first, second, *_] = sorted(Path(bed.settings.backups_path, "events/events/b1/target").glob("*.parquet"))
    kept = first.read_bytes()
    shutil.copyfile(second, first)
    with pytest.raises(RecoveryError, match="differs from the chosen version: it has 30 rows"):
        at_work.step("b1", "verify")
    assert list(backups.every(open_storage(bed.settings.state))) == []
    first.write_bytes(kept)
    at_work.step("b1", "verify")
    at_work.step("b1", "enter")
    shutil.copyfile(second, first)
    at_work.plan("restore_table", "r1", table=TABLE, backup="b1")
    at_work.step("r1", "hold")
    at_work.step("r1", "plan_again")
    with pytest.raises(RecoveryError, match=r"its entry says 30 rows.* Nothing was changed"):
        at_work.step("r1", "check_copy")
    assert spark.read.format("delta").load(str(bed.table)).count() == 35


DIFFERENT = [
    "named_struct('a', 1, 'b', cast(null AS INT))",
    "named_struct('a', cast(null AS INT), 'b', 1)",
    "named_struct('a', cast(null AS INT), 'b', cast(null AS INT))",
    "cast(null AS STRUCT<a: INT, b: INT>)",
]
NO_ARRAY, NO_MAP = "cast(null AS ARRAY<INT>)", "cast(null AS MAP<STRING, INT>)"
ARRAYS = [
    "array(1, null)",
    "array(null, 1)",
    "array(1)",
    "cast(array() AS ARRAY<INT>)",
    NO_ARRAY,
    "array(cast(null AS INT))",
    "array(1, 1)",
]
MAPS = [
    "map('a', 1)",
    "map('a', cast(null AS INT))",
    "map('b', 1)",
    "map('a', 1, 'b', 1)",
    "cast(map() AS MAP<STRING, INT>)",
    NO_MAP,
]
NUMBERS = ["0.5D", "double('NaN')", "0.0D", "cast(null AS DOUBLE)", "double('Infinity')"]
NESTED = [
    "map('k', array(map('x', 1)))",
    "map('k', array(map('x', cast(null AS INT))))",
    "map('k', array(cast(null AS MAP<STRING, INT>)))",
]
ALIKE = [
    ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)"),
    ("double('NaN')", "-double('NaN')"),
    ("0.0D", "-0.0D"),
]


@pytest.mark.parametrize(
    "values",
    [DIFFERENT, ARRAYS, MAPS, NUMBERS, NESTED],
    ids=["structs", "arrays", "maps", "numbers", "nested"],
)
def test_rows_that_differ_hash_differently_wherever_the_value_is_and_whatever_is_null(
    spark: SparkSession, values: list[str]
) -> None:
    frame = spark.sql(
        " UNION ALL ".join(
            f"SELECT {value} AS v, 'x' AS w UNION ALL SELECT {value}, NULL" for value in values
        )
    )
    assert frame.select(hash_of(frame.schema)).distinct().count() == 2 * len(values)


def test_maps_are_sets_of_entries_and_a_checksum_knows_no_order(spark: SparkSession) -> None:
    for one, other in ALIKE:
        frame = spark.sql(f"SELECT {one} AS v UNION ALL SELECT {other}")
        assert frame.select(hash_of(frame.schema)).distinct().count() == 1, (one, other)
    rows = spark.range(1000).withColumn("name", F.concat(F.lit("n"), "id"))
    assert checksum(rows) == checksum(rows.repartition(7, "name").orderBy(F.desc("name")))
    assert checksum(rows) != checksum(rows.where("id < 999").union(rows.where("id = 5"))), (
        "one row twice, another not at all"
    )
    assert checksum(rows.where("false")) == Checksum(0, "0", 0)
