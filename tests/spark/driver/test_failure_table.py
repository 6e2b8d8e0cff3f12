"""The table of failures, row by row as Spark and Delta really raise them on a query that anyone could write,
and how each is classed.

What a flow makes of them is in test_failure_classes.py; here are those, too, that only sources of later
releases can raise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from streamkeeper.drivers.failures import Failure, FailureClass, classify
from tests.worlds import checkpoint_samples as samples
from tests.worlds.suites import long_after

RECOVER, CORRECT, RESTART = (
    FailureClass.NEEDS_RECOVERY,
    FailureClass.NEEDS_CORRECTION,
    FailureClass.RESTART,
)
View = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Bed:
    """Folders of one query: ``in`` has events, ``checkpoint`` is Spark's."""

    spark: SparkSession
    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def events(self, first: int = 0, files: int = 2, folder: str = "in") -> None:
        samples.write_events(self.root / folder, files, first)

    def stream(self, folder: str = "in") -> DataFrame:
        return samples.read_json(self.spark, self.root / folder).withWatermark("at", "1 hour")

    def drain(self, frame: DataFrame) -> None:
        samples.drain(frame, self.checkpoint)

    def table(self, name: str = "table") -> str:
        return str(self.root / name)

    def append(self, first: int, last: int) -> None:
        self.spark.range(first, last).coalesce(1).write.format("delta").mode("append").save(self.table())

    def delta(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("delta").options(**options).load(self.table())

    def rewrite(self, name: str, text: str) -> None:
        """Overwrite a file of the checkpoint's logs, and take its checksum away."""
        file = self.checkpoint / name
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(text)

    def remove(self, name: str) -> None:
        file = self.checkpoint / name
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.unlink()


def dedupe(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["event_id"])


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("at").count()


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("at").agg(f.count("*").alias("count"), f.collect_list("customer").alias("who"))


def changed(before: View, after: View) -> Callable[[Bed], None]:
    """One query, then another on its checkpoint."""

    def provoke(bed: Bed) -> None:
        bed.events()
        bed.drain(before(bed.stream()))
        bed.events(10)
        bed.drain(after(bed.stream()))

    return provoke


def joined(bed: Bed, kind: str) -> DataFrame:
    left, right = bed.stream(), bed.stream("other").selectExpr("event_id AS other", "at AS then")
    return left.join(right, (f.col("event_id") == f.col("other")) & (f.col("at") == f.col("then")), kind)


def an_inner_join_becomes_an_outer_one(bed: Bed) -> None:
    for first, kind in ((0, "inner"), (10, "left_outer")):
        bed.events(first)
        bed.events(first, folder="other")
        bed.drain(joined(bed, kind))


def state_is_garbage(bed: Bed) -> None:
    bed.events()
    bed.drain(dedupe(bed.stream()))
    for file in (bed.checkpoint / "state").rglob("*.delta"):
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_bytes(b"garbage")
    bed.events(10)
    bed.drain(dedupe(bed.stream()))


def one_source_less(bed: Bed) -> None:
    bed.events()
    bed.events(folder="other")
    bed.drain(bed.stream().union(bed.stream("other")))
    bed.events(10)
    bed.drain(bed.stream())


def another_path_behind_a_batch_in_flight(bed: Bed) -> None:
    bed.events()
    bed.drain(bed.stream())
    bed.remove("commits/1")
    shutil.copytree(bed.root / "in", bed.root / "elsewhere")
    bed.events(10, folder="elsewhere")
    bed.drain(bed.stream("elsewhere"))


def broken_offsets(text: str) -> Callable[[Bed], None]:
    def provoke(bed: Bed) -> None:
        bed.events(files=3)
        bed.drain(bed.stream())
        bed.rewrite("offsets/2", text)
        bed.events(10)
        bed.drain(bed.stream())

    return provoke


def a_source_table_made_anew(bed: Bed) -> None:
    bed.append(0, 5)
    bed.drain(bed.delta())
    shutil.rmtree(bed.table())
    bed.append(0, 5)
    bed.append(5, 9)
    bed.drain(bed.delta())


def history_of_a_source_table_gone(bed: Bed) -> None:
    bed.append(0, 5)
    bed.drain(bed.delta())
    for first in range(10, 150, 10):
        bed.append(first, first + 5)
    log = Path(bed.table()) / "_delta_log"
    for version in range(1, 8):
        for file in (
            log / f"{version:020d}.json",
            log / f".{version:020d}.json.crc",
            log / f"{version:020d}.crc",
        ):
            file.unlink(missing_ok=True)
    bed.drain(bed.delta())


def rows_of_a_source_table_changed(bed: Bed) -> None:
    bed.append(0, 5)
    bed.drain(bed.delta())
    bed.spark.sql(f"DELETE FROM delta.`{bed.table()}` WHERE id = 3")
    bed.drain(bed.delta())


def all_rows_of_a_source_table_deleted(bed: Bed) -> None:
    bed.append(0, 5)
    bed.drain(bed.delta())
    bed.spark.sql(f"DELETE FROM delta.`{bed.table()}`")
    bed.drain(bed.delta())


def the_schema_of_a_source_table_moves_on(bed: Bed) -> None:
    bed.spark.sql(
        f"CREATE TABLE delta.`{bed.table()}` (id LONG, old STRING) USING delta TBLPROPERTIES"
        " ('delta.columnMapping.mode'='name')"
    )
    bed.spark.sql(f"INSERT INTO delta.`{bed.table()}` VALUES (1, 'a')")
    noted = {"schemaTrackingLocation": str(bed.checkpoint / "schemas")}
    for _ in range(2):  # the first start notes the schema that it begins with
        try:
            bed.drain(bed.delta(**noted))
        except Exception as error:
            if "DELTA_STREAMING_METADATA_EVOLUTION" not in str(error):
                raise
    bed.spark.sql(f"ALTER TABLE delta.`{bed.table()}` RENAME COLUMN old TO new")
    bed.spark.sql(f"INSERT INTO delta.`{bed.table()}` VALUES (2, 'b')")
    bed.drain(bed.delta(**noted))


ANYONES = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}
"""Spark's own defaults, which drivers do not use: sources without names."""
OFFSETS_OF_A_LATER_SPARK = "v99\n" + json.dumps({"batchWatermarkMs": 0}) + '\n{"logOffset":2}'

ROWS: dict[str, tuple[Callable[[Bed], None], FailureClass, str]] = {
    "deduplication becomes an aggregation": (
        changed(dedupe, counts),
        RECOVER,
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    ),
    "other aggregates": (changed(counts, sums), RECOVER, "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
    "inner join becomes left outer": (
        an_inner_join_becomes_an_outer_one,
        RECOVER,
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    ),
    "state is garbage": (state_is_garbage, RECOVER, "CANNOT_LOAD_STATE_STORE"),
    "one source less": (one_source_less, RECOVER, "There are [2] sources in the checkpoint"),
    "another path behind a batch in flight": (
        another_path_behind_a_batch_in_flight,
        RECOVER,
        "Wrong basePath",
    ),
    "offsets are garbage": (broken_offsets("garbage"), RECOVER, "MALFORMED_LOG_FILE"),
    "offsets of a later Spark": (
        broken_offsets(OFFSETS_OF_A_LATER_SPARK),
        CORRECT,
        "INVALID_LOG_VERSION.MAX_SUPPORTED_VERSION",
    ),
    "source table recreated": (
        a_source_table_made_anew,
        RECOVER,
        "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
    ),
    "history of the source table gone": (
        history_of_a_source_table_gone,
        RECOVER,
        "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
    ),
    "rows of the source table changed": (
        rows_of_a_source_table_changed,
        CORRECT,
        "DELTA_SOURCE_TABLE_IGNORE_CHANGES",
    ),
    "all rows of the source table deleted": (
        all_rows_of_a_source_table_deleted,
        CORRECT,
        "DELTA_SOURCE_IGNORE_DELETE",
    ),
    "schema of the source table moves on": (
        the_schema_of_a_source_table_moves_on,
        RESTART,
        "DELTA_STREAMING_METADATA_EVOLUTION",
    ),
}


def failure_of(bed: Bed, provoke: Callable[[Bed], None]) -> Failure:
    from streamkeeper_jobs.spark.exceptions import causes_of

    with pytest.raises(Exception) as raised:
        provoke(bed)
    return classify(causes_of(raised.value))


@pytest.mark.parametrize("name", long_after(4, ROWS))
def test_what_spark_raises_is_classed_as_the_table_says(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    provoke, classed, told = ROWS[name]
    with samples.confs(spark, ANYONES):
        failure = failure_of(Bed(spark, tmp_path), provoke)
    assert told in f"{failure.condition} {failure.message}", failure
    assert failure.classed is classed, failure
    assert (failure.recovery == "reset_checkpoint") == (classed is RECOVER)
