"""The index of keys that a driver keeps of a table: with it a batch comes to the same table as one that
reads the table's keys.

A small table would be read nearly always, because that is cheaper: here the index costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.cdc import replace_rows
from streamkeeper_jobs.cdc.replace_rows import Opened
from streamkeeper_jobs.recover.restore_table import replace_content
from streamkeeper_jobs.spark.delta_snapshot import Listed, read_snapshot
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.session import with_settings

from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import (
    SPEC,
    TABLE,
    CdcBed,
    killed_before_the_target,
    optimized,
)

Row = tuple[Any, ...]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the index cost nothing, and list each batch that reads the table's keys all the same."""
    made: list[int] = []
    really = Opened._mark

    def searched(self: Opened, *given: Any) -> Any:
        assert self.target.step is not None
        made.append(self.target.step.batch_id)
        return really(self, *given)

    monkeypatch.setattr(Listed, "rows", property(lambda _: 10**6))
    monkeypatch.setattr(Opened, "_mark", searched)
    return made


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[..., CdcBed]:
    return lambda **more: CdcBed(spark, tmp_path, **more).prepare()


def names(bed: CdcBed) -> dict[Any, str]:
    rows = bed.rows()
    assert len({row["id"] for row in rows}) == len(rows), "a key has several rows"
    return {row["id"]: row["name"] for row in rows}


def upserts(at: int, *keys: int) -> list[Row]:
    return [(key, at, "U", f"{key} at {at}", "x") for key in keys]


def test_rows_of_known_keys_are_replaced_without_a_look_at_the_table(
    spark: SparkSession, tmp_path: Path, searches: list[int]
) -> None:
    bed = CdcBed(spark, tmp_path).prepare(replace(TABLE, partition_cols=("city",)))
    bed.apply(*((key, 1, "U", f"{key} at 1", "odd: %20 ö/") for key in range(20)))
    bed.apply(*upserts(2, *range(5, 30)), (3, 2, "D", None, None))
    bed.apply(*upserts(3, 1, 3, 5, 29, 31), (4, 3, "D", None, None), (99, 3, "D", None, None))
    wanted = {key: f"{key} at 1" for key in range(5)} | {key: f"{key} at 2" for key in range(5, 30)}
    wanted |= {key: f"{key} at 3" for key in (1, 3, 5, 29, 31)}
    del wanted[4]
    assert names(bed) == wanted
    assert searches == []
    metrics = bed.spark.sql(f"DESCRIBE HISTORY delta.`{bed.path}` LIMIT 1").collect()[0]["operationMetrics"]
    assert metrics["numTargetRowsDeleted"] == "4", "1, 4, 5 and 29; 3 was deleted before"


def test_a_batch_that_fails_before_its_commit_leaves_nothing_wrong_in_the_index(
    make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make()
    bed.apply(*upserts(1, 1, 2, 3))
    with killed_before_the_target():
        bed.apply(*upserts(2, 1, 2), (3, 2, "D", None, None))
    assert names(bed) == {1: "1 at 1", 2: "2 at 1", 3: "3 at 1"}
    bed.apply(*upserts(3, 2, 3), batch=1)
    bed.apply(*upserts(4, 1))
    assert names(bed) == {1: "1 at 4", 2: "2 at 3", 3: "3 at 3"}
    assert searches == []


@pytest.mark.long
def test_what_others_write_between_batches_is_learned(
    make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make()
    bed.apply(*upserts(1, *range(9)))
    bed.apply(*upserts(2, 1, 2))
    bed.spark.sql(f"DELETE FROM delta.`{bed.path}` WHERE id IN (2, 3)")
    bed.apply(*upserts(3, 2, 4))
    bed.spark.sql(f"UPDATE delta.`{bed.path}` SET name = 'by hand' WHERE id < 5")
    optimized(bed)
    bed.apply(*upserts(4, 0, 3, 8))
    wanted = {1: "by hand", 2: "by hand", 4: "by hand"}
    wanted |= {key: f"{key} at 4" for key in (0, 3, 8)} | {key: f"{key} at 1" for key in (5, 6, 7)}
    assert names(bed) == wanted
    assert searches == []


@pytest.mark.long
def test_rows_that_come_back_by_an_earlier_version_are_found_again(
    make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make()
    bed.apply(*upserts(1, 1, 2, 3))
    before = bed.versions() - 1
    bed.apply(*upserts(2, 1, 2))
    bed.apply(*upserts(3, 3))
    replace_content(bed.spark, bed.path, read_snapshot(bed.spark, bed.path, before), "put back")
    assert names(bed) == {1: "1 at 1", 2: "2 at 1", 3: "3 at 1"}
    bed.apply(*upserts(4, 3))
    assert searches == [3], "Delta keeps no checksum of the version that was put back"
    bed.apply(*upserts(5, 1, 2))
    assert names(bed) == {1: "1 at 5", 2: "2 at 5", 3: "3 at 4"}
    assert searches == [3]


@pytest.mark.long
@pytest.mark.parametrize("rows", [2, 3])
def test_a_key_with_several_rows_is_searched_for(
    rows: int, make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make()
    bed.apply(*upserts(1, 1, 2))
    for _ in range(rows - 1):
        bed.spark.sql(f"INSERT INTO delta.`{bed.path}` SELECT * FROM delta.`{bed.path}` WHERE id = 1 LIMIT 1")
    bed.apply(*upserts(2, 1))
    bed.apply(*upserts(3, 2))
    assert names(bed) == {1: "1 at 2", 2: "2 at 3"}
    assert searches == [1, 2], "what others write twice may come at any time, so the index is not used again"


@pytest.mark.parametrize(
    ("dtype", "keys"),
    long_after(
        1,
        [
            ("BIGINT", (-(2**63), -1, 2**32, 2**63 - 1)),
            ("SMALLINT", (-32768, 0, 1, 32767)),
            ("TINYINT", (-128, -1, 0, 127)),
        ],
    ),
)
def test_keys_of_all_whole_numbers_are_known(
    dtype: str, keys: tuple[int, ...], make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make(schema=f"id {dtype}, at BIGINT, op STRING, name STRING, city STRING")
    bed.apply(*upserts(1, *keys))
    bed.apply(*upserts(2, *keys[1:]), (keys[0], 2, "D", None, None))
    assert names(bed) == {key: f"{key} at 2" for key in keys[1:]}
    assert searches == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "table"),
    [
        (replace(SPEC, keys=("name",)), TABLE),
        (replace(SPEC, keys=("id", "city")), TABLE),
        (SPEC, replace(TABLE, partition_cols=("id",))),
    ],
    ids=["text", "two columns", "of partitions"],
)
def test_other_keys_are_searched_for(
    spec: Any, table: Any, spark: SparkSession, tmp_path: Path, searches: list[int]
) -> None:
    bed = CdcBed(spark, tmp_path, spec).prepare(table)
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"))
    bed.apply((1, 2, "U", "a", "x"))
    bed.apply((2, 3, "D", "b", "x"))
    assert [row["name"] for row in bed.rows()] == ["a"]
    assert searches[-2:] == [1, 2]


@pytest.mark.long
def test_columns_that_others_have_widened_renamed_or_written_in_many_row_groups(
    spark: SparkSession, tmp_path: Path, searches: list[int]
) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    bed = CdcBed(spark, tmp_path).prepare(replace(TABLE, properties=properties))
    with with_settings(spark, {"parquet.block.size": "4096", "parquet.page.size": "1024"}):
        bed.apply(*upserts(1, *range(5_000)))
    assert row_groups(bed) > 10
    spark.sql(f"ALTER TABLE delta.`{bed.path}` ALTER COLUMN id TYPE BIGINT")
    bed.schema = "id BIGINT, at BIGINT, op STRING, name STRING, city STRING"
    bed.prepare(replace(TABLE, properties=properties))
    changed = range(0, 5_000, 7)
    bed.apply(*upserts(2, *changed, 2**40))
    bed.apply(*upserts(3, 2**40, 4_999))
    wanted = {key: f"{key} at 1" for key in range(5_000)} | {key: f"{key} at 2" for key in changed}
    assert names(bed) == wanted | {2**40: f"{2**40} at 3", 4_999: "4999 at 3"}
    assert searches == [1], "Delta keeps no checksum of the version that widens a column"


@pytest.mark.long
def test_reading_a_table_into_the_index_must_be_worth_it(
    make: Callable[..., CdcBed], searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listed, "rows", property(lambda _: 20))
    bed = make()
    bed.apply(*upserts(1, *range(20)))
    for at in (2, 3, 4, 5):
        bed.apply(*upserts(at, 1))
    assert names(bed)[1] == "1 at 5"
    assert searches == [1, 2], "20 rows cost as much as 40 that batches read: the first met none"


@pytest.mark.long
def test_a_table_that_outgrows_its_index_gets_a_larger_one(
    make: Callable[..., CdcBed], searches: list[int]
) -> None:
    bed = make()
    bed.apply(*upserts(1, *range(20)))
    bed.apply(*upserts(2, 0, *range(1_000, 5_000)))
    for at in (3, 4, 5):
        bed.apply(*upserts(at, at, 1_000 + at))
    found = names(bed)
    assert [found[at] for at in (0, 1, 3, 1_004)] == ["0 at 2", "1 at 1", "3 at 3", "1004 at 4"]
    assert len(found) == 4_020
    assert searches == [2], "there was room for a thousand new keys"


@pytest.mark.long
def test_a_table_that_cannot_be_read_into_the_index_is_searched(
    make: Callable[..., CdcBed], searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replace_rows, "name_in_files", lambda _: "none of its columns")
    bed = make()
    bed.apply(*upserts(1, 1, 2))
    bed.apply(*upserts(2, 2))
    bed.apply(*upserts(3, 1))
    assert names(bed) == {1: "1 at 3", 2: "2 at 2"}
    assert searches == [1, 2]


def row_groups(bed: CdcBed) -> int:
    """Give the number of row groups of a table's only file."""
    (file,) = bed.table().inputFiles()
    java = classes(bed.spark)
    path = java("org.apache.hadoop.fs.Path")(java("java.net.URI")(file))
    conf = java("org.apache.hadoop.conf.Configuration")()
    reader = java("org.apache.parquet.hadoop.ParquetFileReader").open(
        java("org.apache.parquet.hadoop.util.HadoopInputFile").fromPath(path, conf)
    )
    try:
        return int(reader.getRowGroups().size())
    finally:
        reader.close()
