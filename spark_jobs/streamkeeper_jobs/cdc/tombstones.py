"""The sibling of a target: deletes and truncates, and with SCD type 2 the changes that are shown as one.

Rows are only appended, and duplicates are harmless: they are a set of changes. Columns: ``kind`` (the
partition), ``key``, ``sequence``, ``row`` (SCD type 2), ``written_at``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from streamkeeper.declare.cdc_spec import START_AT
from streamkeeper.delta.log import SEAL
from streamkeeper_jobs.cdc.columns import Layout
from streamkeeper_jobs.cdc.events import (
    AT,
    DELETE,
    KEY,
    KIND,
    ROW,
    TRUNCATE,
    UPSERT,
    Facts,
    Work,
    nearby,
    within,
)
from streamkeeper_jobs.cdc.expressions import all_of, literal, ordered, portable
from streamkeeper_jobs.cdc.steps import CdcTables, Turn, tombstones_app
from streamkeeper_jobs.cdc.values import values_of
from streamkeeper_jobs.spark.columns import column
from streamkeeper_jobs.spark.delta_commit import append_within, files_read, resolved, table_at
from streamkeeper_jobs.spark.delta_table import delta_log_of, last_written
from streamkeeper_jobs.spark.jvm import classes, python_list, scala_seq
from streamkeeper_jobs.spark.session import spark_url

WRITTEN_AT = "written_at"

_TRUNCATES: dict[tuple[str, ...], Any] = {}
"""Cache of the last truncate by table and by the files that hold its truncates."""


def tombstones_schema(layout: Layout) -> StructType:
    """Return the columns of the tombstones of a target."""
    row = [StructField(ROW, layout.stored)] if layout.history else []
    return StructType(
        [
            StructField(KIND, StringType()),
            StructField(KEY, StructType(list(layout.keys))),
            StructField(AT, layout.sequence),
            *row,
            StructField(WRITTEN_AT, TimestampType()),
        ]
    )


@dataclass(frozen=True)
class Remembered:
    """The tombstones as a batch finds them, in the one transaction in which it adds its own.

    If there are none, nothing is read.
    """

    session: SparkSession
    transaction: Any

    def files(self, *conditions: Column) -> Any:
        """Return the files that may have rows of all conditions.

        Each condition is either about ``kind``, the partition, or about other columns.
        """
        wanted = [resolved(self.session, self.transaction, condition) for condition in conditions]
        return (
            self.transaction.snapshot().filesForScan(scala_seq(classes(self.session), wanted), False).files()
        )

    def rows(self, files: Any) -> DataFrame:
        """Return the rows of some of its files."""
        return files_read(self.session, self.transaction, files)


def read(session: SparkSession, tables: CdcTables) -> Remembered:
    """Open the present tombstones; this reads their log, not their files."""
    return Remembered(session, delta_log_of(session, tables.tombstones).startTransaction())


def rows_of(session: SparkSession, tables: CdcTables) -> DataFrame:
    """Return all rows of the tombstones, as of the time of reading."""
    return session.read.format("delta").load(spark_url(tables.tombstones))


def remember(rows: DataFrame, stored: Remembered, work: Work) -> Remembered | None:
    """Append changes under the step and return the tombstones beside them; None if the generation is sealed.

    Columns as in :func:`tombstones_schema` without ``written_at``. The returned tombstones are as they were
    found, or read again if others wrote meanwhile. Tombstones are sealed before the target: without these
    checks, a batch could reach the target while its deletes are not stored. A seal in between prevents the
    commit.

    What was appended under the step before stays. But a repeated batch may have more to store than when it
    was interrupted: what SCD type 2 hides depends on what other flows did meanwhile, and the tombstones may
    have been restored. So missing changes are added.

    :raises DeltaConcurrentModificationException: a conflicting commit came in between, such as a seal.
    """
    session, path, app_id = rows.sparkSession, work.tables.tombstones, tombstones_app(work.step.query_id)
    dated = rows.withColumn(WRITTEN_AT, F.current_timestamp())
    last, following = (
        int(stored.transaction.txnVersion(app_id)),
        int(stored.transaction.snapshot().version()) + 1,
    )
    if last == SEAL:
        return None
    written = following
    if last < work.step.batch_id:
        written = append_within(dated, stored.transaction, app_id, work.step.batch_id)
    else:
        lacking = _lacking(dated, work)
        if not lacking.isEmpty():
            written = append_within(lacking, stored.transaction, app_id, last)
    if last_written(session, path, app_id) == SEAL:
        return None
    return stored if written == following else read(session, work.tables)


def _lacking(rows: DataFrame, work: Work) -> DataFrame:
    """Return the changes that the tombstones lack."""

    def same(side: str) -> Column:
        row = [ordered(column(side, ROW), work.layout.stored)] if work.layout.history else []
        return F.struct(*[column(side, name) for name in (KIND, KEY, AT)], *row)

    stored = rows_of(rows.sparkSession, work.tables)
    return rows.alias("rows").join(
        stored.alias("stored"), same("rows").eqNullSafe(same("stored")), "left_anti"
    )


def barriers(
    stored: Remembered, keys: DataFrame, layout: Layout, facts: Facts, since: Any = None
) -> DataFrame | None:
    """Return the highest stored delete of some keys (column ``key``): ``key``, ``barrier``.

    None if no file has one.

    :param since: skip older ones (in portable form): in a stream that is in order these are all, and no file
        is read.
    """
    first = layout.keys[0]
    of_deletes, bounds = F.col(KIND) == DELETE, within((KEY, first.name), first, facts)
    wanted = bounds if since is None else bounds & (F.col(AT) >= literal(since, layout.sequence))
    files = stored.files(of_deletes, wanted)
    if files.isEmpty():
        return None
    deletes = stored.rows(files).where(of_deletes & wanted)
    return (
        deletes.join(nearby(keys.select(KEY), facts), KEY, "left_semi")
        .groupBy(KEY)
        .agg(F.max(AT).alias("barrier"))
    )


def last_truncate(stored: Remembered, layout: Layout) -> Any:
    """Return the highest sequence of a stored truncate in its portable form, or None.

    Each batch asks, and truncates are rare: the content of files is cached, since files never change.
    """
    of_truncates = F.col(KIND) == TRUNCATE
    files = stored.files(of_truncates)
    if files.isEmpty():
        return None
    names = (str(file.path()) for file in python_list(classes(stored.session), files))
    known = (str(stored.transaction.deltaLog().dataPath()), *sorted(names))
    if known not in _TRUNCATES:
        found = (
            stored.rows(files)
            .where(of_truncates)
            .agg(portable(F.max(AT), layout.sequence).alias("at"))
            .first()
        )
        assert found is not None, "an aggregate without groups has one row"
        _TRUNCATES.clear()
        _TRUNCATES[known] = found["at"]
    return _TRUNCATES[known]


def later(one: Any, other: Any, layout: Layout) -> Column | None:
    """Return the later of two sequences in portable form as a literal.

    Either may be None; None if both are.
    """
    known = [literal(value, layout.sequence) for value in (one, other) if value is not None]
    return F.greatest(*known) if len(known) == 2 else (known[0] if known else None)


def forget(session: SparkSession, tables: CdcTables, before: datetime, turn: Turn) -> int:
    """Remove what was written before a time (with a time zone), and return the number of removed rows.

    What was written exactly then stays. A change that arrives later and is older than a removed delete of its
    key, or than a removed truncate, is taken as new. With SCD type 2, upserts stay that are needed by a
    change which is newer than all that was removed of its key.
    """
    if before.tzinfo is None:
        raise ValueError(
            f"before is {before}, without a time zone. Give one, such as datetime.now(timezone.utc)."
        )
    old = F.col(WRITTEN_AT) < F.lit(before.astimezone(timezone.utc).isoformat()).cast("timestamp")
    with turn():
        table = table_at(session, tables.tombstones)
        if ROW in table.toDF().columns:
            return _forget_changes(table, old, table_at(session, tables.target).toDF())
        count = table.toDF().where(old).count()
        if count:
            table.delete(old)
    return count


def _forget_changes(table: DeltaTable, old: Column, target: DataFrame) -> int:
    """Remove what is old and not needed from the sibling of an SCD type 2 target.

    A timely change is newer than all that is old of its key. The version that it splits ends with the newest
    change before it, so that one is needed. With ``ignore_null_updates``, the newest of each value is needed
    too, and the first of the version, which shows values of its last.
    """
    stored = table.toDF().where(old)
    row = stored.schema[ROW].dataType
    assert isinstance(row, StructType), "tombstones_schema made it"
    names = stored.select(f"{KEY}.*").columns
    begins = target.select(
        F.struct(*[column(name) for name in names]).alias(KEY),
        F.col(START_AT).alias(AT),
        F.lit(True).alias("begins"),
    )
    upsert = F.col(KIND) == UPSERT
    wanted = (F.lit(True), F.col("begins"), *(value.of(ROW).isNotNull() for value in values_of(row.fields)))
    newest = F.array(*[F.max(F.when(upsert & each, F.col(AT))) for each in wanted])
    deleted = F.max(F.when(F.col(KIND) == DELETE, F.col(AT)))
    keys = (
        stored.join(begins, [KEY, AT], "left")
        .groupBy(KEY)
        .agg(F.array_compact(newest).alias("newest"), deleted.alias("deleted"))
    )
    stays = (
        upsert & F.array_contains("newest", F.col(AT)) & F.coalesce(F.col(AT) > F.col("deleted"), F.lit(True))
    )
    gone = stored.join(keys, KEY).where(~stays).select(KEY, KIND, AT, WRITTEN_AT)
    count = gone.count()
    if count:
        same = [column("stored", name) == column("gone", name) for name in gone.columns]
        table.alias("stored").merge(gone.distinct().alias("gone"), all_of(same)).whenMatchedDelete().execute()
    return count
