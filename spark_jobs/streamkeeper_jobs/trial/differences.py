"""Which rows of a table a rehearsal changed: the version that was copied beside the newest one.

Rows are compared by a 64-bit hash of the columns that both versions have, repeats counted. An AUTO CDC
table's bookkeeping is none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper.delta import log as delta_log
from streamkeeper.recover.plans.rehearsal import EXAMPLES, TableEvidence
from streamkeeper.tables.backups import Checksum
from streamkeeper_jobs.spark.frames import column, quoted
from streamkeeper_jobs.spark.row_checksums import checksum, hash_of
from streamkeeper_jobs.spark.session import spark_url

_LONGEST = 300
"""Characters of an example."""


def compare(
    spark: SparkSession, table: str, path: str, before: int | None, keys: Sequence[str]
) -> TableEvidence:
    """Return what differs between a version of a table and its newest one.

    :param before: None if there was no table.
    :param keys: columns by which the examples are ordered, and which come first in them.
    """
    newest = delta_log.latest_version(path)
    if newest is None:
        return TableEvidence(table, 0, 0, 0, 0, "–", "–")
    after = _read(spark, path, newest)
    old = after.limit(0) if before is None else _read(spark, path, before)
    was, now = checksum(old), checksum(after)
    only = sorted({*old.columns} ^ {*after.columns})
    shared = [name for name in after.columns if name in old.columns]
    both = [frame.select(*(column(name) for name in shared)) for frame in (old, after)]
    if was == now and not only:
        return TableEvidence(table, was.rows, now.rows, 0, 0, _short(was), _short(now))
    differ = _differing(*both).cache()
    try:
        gone, new = (_total(differ, side) for side in ("gone", "new"))
        examples = [
            tuple(_examples(frame, differ, side, keys))
            for frame, side in zip(both, ("gone", "new"), strict=True)
        ]
    finally:
        differ.unpersist()
    return TableEvidence(
        table=table,
        rows=was.rows,
        rows_after=now.rows,
        only_before=gone,
        only_after=new,
        checksum=_short(was),
        checksum_after=_short(now),
        gone=examples[0],
        new=examples[1],
        columns=tuple(only),
    )


def _read(spark: SparkSession, path: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(spark_url(path)).drop(BOOKKEEPING)


def _short(rows_checksum: Checksum) -> str:
    return f"{rows_checksum.xor & (2**64 - 1):016x}"


def _differing(old: DataFrame, new: DataFrame) -> DataFrame:
    """Return the hashes of rows of which one side has more, with how many more."""
    counted = [frame.groupBy(hash_of(frame.schema).alias("hash")).count() for frame in (old, new)]
    old_counts, new_counts = (
        counted[0].withColumnRenamed("count", "was"),
        counted[1].withColumnRenamed("count", "now"),
    )
    more = F.coalesce("was", F.lit(0)) - F.coalesce("now", F.lit(0))
    joined = old_counts.join(new_counts, "hash", "full").withColumn("more", more).where("more <> 0")
    return joined.select(
        "hash", F.greatest("more", F.lit(0)).alias("gone"), F.greatest(-F.col("more"), F.lit(0)).alias("new")
    )


def _total(differ: DataFrame, side: str) -> int:
    row = differ.agg(F.sum(side).alias("rows")).first()
    assert row is not None, "an aggregate without groups has one row"
    return int(row["rows"] or 0)


def _examples(frame: DataFrame, differ: DataFrame, side: str, keys: Sequence[str]) -> list[str]:
    """Return rows of one side as JSON, keys first."""
    first = [name for name in keys if name in frame.columns]
    names = [*first, *(name for name in frame.columns if name not in first)]
    hashes = differ.where(F.col(side) > 0).select("hash")
    hashed = frame.withColumn("hash", hash_of(frame.schema)).join(hashes, "hash", "left_semi")
    rows = hashed.dropDuplicates(["hash"])
    text = F.to_json(F.struct(*(column(name) for name in names)))
    examples = rows.orderBy(*(F.expr(quoted(name)) for name in names[: max(1, len(first))])).limit(EXAMPLES)
    return [str(row[0])[:_LONGEST] for row in examples.select(text).collect()]
