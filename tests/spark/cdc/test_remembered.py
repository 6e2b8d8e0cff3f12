"""What a table remembers is of its own log: it stays whatever others do to the table between batches, and
where they put the rows back without it, or copy them, the flow is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.cdc.replace_rows import opened

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.delta import remembered as in_log
from streamkeeper.errors import TableUnfit
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import DONE_BY_OTHERS, SPEC, CdcBed, killed_before_the_target


def deleted(spark: SparkSession, root: Path, spec: CdcSpec = SPEC) -> CdcBed:
    """Make a table with one row, in which a key was deleted at 5."""
    bed = CdcBed(spark, root, spec).prepare()
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"))
    bed.apply((1, 5, "D", None, None))
    return bed


def keys(bed: CdcBed) -> list[int]:
    return sorted(row["id"] for row in bed.rows())


@pytest.mark.parametrize("spec", long_after(1, [SPEC, replace(SPEC, ignore_null_updates=True)]))
def test_a_delete_outlives_what_others_do_to_the_table(
    spec: CdcSpec, spark: SparkSession, tmp_path: Path
) -> None:
    bed = deleted(spark, tmp_path, spec)
    for done in DONE_BY_OTHERS:
        done(bed)
    bed.apply((1, 4, "U", "late", "x"), (3, 1, "U", "c", "x"))
    assert keys(bed) == [2, 3]


@pytest.mark.long
def test_a_restore_that_no_recovery_made_is_found_out(spark: SparkSession, tmp_path: Path) -> None:
    bed = deleted(spark, tmp_path)
    spark.sql(f"RESTORE delta.`{bed.path}` TO VERSION AS OF {bed.versions() - 2}")
    with pytest.raises(TableUnfit, match=r"is a RESTORE that no recovery finished.*restore_table"):
        bed.apply((1, 4, "U", "late", "x"))
    with pytest.raises(TableUnfit, match="is a RESTORE that no recovery finished"):
        bed.prepare()


@pytest.mark.long
@pytest.mark.parametrize("deep", [False, True], ids=["shallow clone", "copied folder"])
def test_a_copy_of_a_table_is_found_out(deep: bool, spark: SparkSession, tmp_path: Path) -> None:
    bed = deleted(spark, tmp_path)
    other = CdcBed(spark, tmp_path / "copy")
    if deep:
        rows = spark.read.format("delta").load(bed.path)
        properties = opened(spark, bed.path).properties
        writer = rows.writeTo(f"delta.`{other.path}`").using("delta")
        for name, value in properties.items():
            writer = writer.tableProperty(name, value)
        writer.create()
    else:
        spark.sql(f"CREATE TABLE delta.`{other.path}` SHALLOW CLONE delta.`{bed.path}`")
    with pytest.raises(TableUnfit, match="it is a copy"):
        other.prepare()


def test_a_table_whose_log_does_not_say_what_it_remembers_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    bed = deleted(spark, tmp_path)
    table = f"delta.`{bed.path}`"
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{in_log.BOUND}')")
    spark.sql(f"ALTER TABLE {table} DROP FEATURE domainMetadata")
    with pytest.raises(TableUnfit, match=r"What .* remembers of deleted keys is gone"):
        bed.prepare()


@pytest.mark.long
def test_runs_are_merged_and_hold_the_last_delete_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    bed = CdcBed(spark, tmp_path).prepare()
    for at in range(9):
        bed.apply((1, 10 + at, "D", None, None), (2 + at, 10, "D", None, None))
    found = opened(spark, bed.path).remembered
    assert [run.rows for run in found.runs] == [9, 2]
    assert sorted((row["key"]["id"], row["sequence"]) for row in bed.remembered().collect()) == [
        (1, 17), (1, 18), *((key, 10) for key in range(2, 11)),
    ]  # fmt: skip
    bed.apply((1, 18, "U", "late", "x"), (9, 10, "U", "late", "x"), (10, 11, "U", "new", "x"))
    assert keys(bed) == [10]


def test_what_a_killed_batch_wrote_is_named_by_nobody(spark: SparkSession, tmp_path: Path) -> None:
    bed = deleted(spark, tmp_path)
    before = dict(opened(spark, bed.path).remembered.files)
    with killed_before_the_target():
        bed.apply((2, 5, "D", None, None))
    assert keys(bed) == [2]
    assert dict(opened(spark, bed.path).remembered.files) == before
    written = {path.name for path in Path(bed.path, in_log.FOLDER).glob("*/*.parquet")}
    assert len(written) == len(before) + 1
