"""The sibling of a target: the deletes and truncates that it cannot show, and with SCD type 2 the changes that it shows as one.

Rows are only appended, duplicates are harmless: they are a set of changes that were there. Columns: ``kind`` (the partition), ``key``,
``sequence``, ``row`` (SCD type 2), ``written_at``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from streamkeeper.delta_log import SEAL
from streamkeeper_jobs.cdc.columns import Layout
from streamkeeper_jobs.cdc.commits import append, table_at
from streamkeeper_jobs.cdc.events import AT, DELETE, KEY, KIND, ROW, TRUNCATE, Facts, Work, nearby, within
from streamkeeper_jobs.cdc.expressions import literal, portable
from streamkeeper_jobs.cdc.steps import CdcTables, Turn, tombstones_app
from streamkeeper_jobs.session import spark_url
from streamkeeper_jobs.tables import last_written

WRITTEN_AT = "written_at"

_TRUNCATES: dict[tuple[str, ...], Any] = {}
"""The last truncate by the files that hold the truncates of a table."""


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


def remember(rows: DataFrame, work: Work) -> bool:
    """Append changes (columns as in :func:`tombstones_schema`, ``written_at`` left out) under the step; False if the generation is sealed.

    Delta skips what a sealed generation sends, in silence. The tombstones are sealed before the target, so without this look a batch could
    still reach the target whose deletes nobody remembers.
    """
    app_id = tombstones_app(work.step.query_id)
    append(rows.withColumn(WRITTEN_AT, F.current_timestamp()), work.tables.tombstones, app_id, work.step.batch_id)
    return last_written(rows.sparkSession, work.tables.tombstones, app_id) != SEAL


@dataclass(frozen=True)
class Remembered:
    """What there is in the tombstones, as the batch found them: so that nothing is read where there is nothing."""

    rows: DataFrame
    deletes: bool
    truncates: tuple[str, ...]


def read(session: SparkSession, tables: CdcTables) -> Remembered:
    """Look at the tombstones as they are now; that reads their log, not their files."""
    rows = session.read.format("delta").load(spark_url(tables.tombstones))
    files = rows.inputFiles()
    truncates = sorted(file for file in files if f"/{KIND}={TRUNCATE}/" in file)
    return Remembered(rows, len(files) > len(truncates), tuple(truncates))


def barriers(stored: DataFrame, keys: DataFrame, layout: Layout, facts: Facts) -> DataFrame:
    """Give the highest stored delete of each of some keys (column ``key``) that has one: ``key``, ``barrier``."""
    first = layout.keys[0]
    deletes = stored.where((F.col(KIND) == DELETE) & within((KEY, first.name), first, facts))
    return deletes.join(nearby(keys.select(KEY), facts), KEY, "left_semi").groupBy(KEY).agg(F.max(AT).alias("barrier"))


def last_truncate(stored: Remembered, layout: Layout) -> Any:
    """Give the highest sequence of a stored truncate in its portable form, or None.

    Each batch asks, and truncates are rare: what some files hold is asked once, since files never change.
    """
    if not stored.truncates:
        return None
    if stored.truncates not in _TRUNCATES:
        found = stored.rows.where(F.col(KIND) == TRUNCATE).agg(portable(F.max(AT), layout.sequence).alias("at")).first()
        assert found is not None, "an aggregate without groups has one row"
        _TRUNCATES.clear()
        _TRUNCATES[stored.truncates] = found["at"]
    return _TRUNCATES[stored.truncates]


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
