"""The sibling of a target: the deletes and truncates that it cannot show, and with SCD type 2 the changes that it shows as one.

Rows are only appended, duplicates are harmless: they are a set of changes that were there. Columns: ``kind`` (the partition), ``key``,
``sequence``, ``row`` (SCD type 2), ``written_at``.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from streamkeeper.delta_log import SEAL
from streamkeeper_jobs.cdc.columns import Layout
from streamkeeper_jobs.cdc.commits import append, table_at
from streamkeeper_jobs.cdc.events import AT, DELETE, KEY, KIND, ROW, TRUNCATE, Facts, Work, within
from streamkeeper_jobs.cdc.expressions import literal, portable
from streamkeeper_jobs.cdc.steps import CdcTables, Turn, tombstones_app
from streamkeeper_jobs.session import spark_url
from streamkeeper_jobs.tables import last_written

WRITTEN_AT = "written_at"


def tombstones_schema(layout: Layout) -> StructType:
    """Give the columns of the tombstones of a target."""
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


def read(session: SparkSession, tables: CdcTables) -> DataFrame:
    """Read all tombstones."""
    return session.read.format("delta").load(spark_url(tables.tombstones))


def remember(rows: DataFrame, work: Work) -> bool:
    """Append changes (columns as in :func:`tombstones_schema`, ``written_at`` left out) under the step; False if the generation is sealed.

    Delta skips what a sealed generation sends, in silence. The tombstones are sealed before the target, so without this look a batch could
    still reach the target whose deletes nobody remembers.
    """
    app_id = tombstones_app(work.step.query_id)
    append(rows.withColumn(WRITTEN_AT, F.current_timestamp()), work.tables.tombstones, app_id, work.step.batch_id)
    return last_written(rows.sparkSession, work.tables.tombstones, app_id) != SEAL


def barriers(stored: DataFrame, keys: DataFrame, layout: Layout, facts: Facts) -> DataFrame:
    """Give the highest stored delete of each of some keys (column ``key``) that has one: ``key``, ``barrier``."""
    first = layout.keys[0]
    deletes = stored.where((F.col(KIND) == DELETE) & within((KEY, first.name), first, facts))
    return deletes.join(F.broadcast(keys.select(KEY)), KEY, "left_semi").groupBy(KEY).agg(F.max(AT).alias("barrier"))


def last_truncate(stored: DataFrame, layout: Layout) -> Any:
    """Give the highest sequence of a stored truncate in its portable form, or None."""
    truncates = stored.where(F.col(KIND) == TRUNCATE)
    found = truncates.agg(portable(F.max(AT), layout.sequence).alias("at"), F.count(AT).alias("count")).first()
    return found["at"] if found is not None and found["count"] else None


def later(one: Any, other: Any, layout: Layout) -> Column | None:
    """Give the later of two sequences in portable form, each perhaps None, as a literal; None if both are."""
    known = [literal(value, layout.sequence) for value in (one, other) if value is not None]
    return F.greatest(*known) if len(known) == 2 else (known[0] if known else None)


def forget(session: SparkSession, tables: CdcTables, before: datetime, turn: Turn) -> int:
    """Remove what was written before a moment (with a time zone), and give how many rows went; what was written right then stays.

    A change that arrives later than this and is older than a removed delete of its key, or a removed truncate, is taken for a new one.
    """
    if before.tzinfo is None:
        raise ValueError(f"before is {before}, without a time zone. Give one, such as datetime.now(timezone.utc).")
    moment = F.lit(before.astimezone(timezone.utc).isoformat()).cast("timestamp")
    with turn():
        table = table_at(session, tables.tombstones)
        old = table.toDF().where(F.col(WRITTEN_AT) < moment).count()
        if old:
            table.delete(F.col(WRITTEN_AT) < moment)
    return old
