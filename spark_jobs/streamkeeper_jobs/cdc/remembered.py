"""What a target remembers beside its rows, as Spark reads it and adds to it: deletes, truncates, and with SCD
type 2 the changes that are shown as one.

It is a set of changes, so duplicates are harmless. Columns of a run's files: ``kind``, ``key``, ``sequence``,
``row`` (SCD type 2), ``learned``. Which files count is in the target's log: see
:mod:`streamkeeper.delta.remembered`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from streamkeeper.declare.cdc_spec import START_AT
from streamkeeper.delta.remembered import FOLDER, Remembered, Run, Truncate
from streamkeeper.delta.remembered import Bounds as Texts
from streamkeeper_jobs.cdc.columns import Layout, layout_by
from streamkeeper_jobs.cdc.events import (
    AT,
    DELETE,
    KEY,
    KIND,
    ROW,
    TRUNCATE,
    UPSERT,
    Bounds,
    Facts,
    Work,
    nearby,
    within,
)
from streamkeeper_jobs.cdc.expressions import (
    bounded,
    by_reference,
    literal,
    of_text,
    orderable,
    to_text,
)
from streamkeeper_jobs.cdc.replace_rows import Target, opened
from streamkeeper_jobs.cdc.steps import WriteLocked
from streamkeeper_jobs.cdc.values import values_of
from streamkeeper_jobs.spark.delta_commit import files_named, files_written, table_at
from streamkeeper_jobs.spark.frames import column, materialised
from streamkeeper_jobs.spark.session import begun

LEARNED = "learned"
_A_FILE = 500_000
"""Changes in one file of a run."""

Learned = Callable[[], Remembered]
"""Waits for what is written, and returns what the target remembers then."""


def run_schema(layout: Layout) -> StructType:
    """Return the columns of the files of a target's runs."""
    row = [StructField(ROW, layout.stored)] if layout.history else []
    return StructType(
        [
            StructField(KIND, StringType()),
            StructField(KEY, StructType(list(layout.keys))),
            StructField(AT, layout.sequence),
            *row,
            StructField(LEARNED, TimestampType()),
        ]
    )


def barriers(keys: DataFrame, work: Work, facts: Facts, since: Any = None) -> DataFrame | None:
    """Return the highest remembered delete of some keys (column ``key``): ``key``, ``barrier``.

    None if no run has one.

    :param since: skip older ones (in portable form): in a stream that is in order these are all, and nothing
        is read.
    """
    deletes = _near(work, facts, since)
    if deletes is None:
        return None
    deletes = deletes.where(F.col(KIND) == DELETE)
    if since is not None:
        deletes = deletes.where(F.col(AT) >= literal(since, work.layout.sequence))
    return (
        deletes.join(nearby(keys.select(KEY), facts), KEY, "left_semi")
        .groupBy(KEY)
        .agg(F.max(AT).alias("barrier"))
    )


def changes_of(keys: DataFrame, work: Work, facts: Facts) -> DataFrame | None:
    """Return the remembered changes of some keys: ``kind``, ``key``, ``sequence``, ``row``.

    None if no run has one.
    """
    rows = _near(work, facts)
    return None if rows is None else rows.select(KIND, KEY, AT, ROW).join(keys, KEY, "left_semi")


def reaches(work: Work, facts: Facts, since: Any) -> bool:
    """Return whether a change of the batch's range of keys may be remembered at a sequence or later.

    :param since: in portable form.
    """
    return _near(work, facts, since) is not None


def last_truncate(work: Work, batch_truncate: Any) -> Any:
    """Return the highest sequence of a truncate, remembered or of the batch, in portable form; None if there
    is none.
    """
    remembered_truncate, dtype = work.target.remembered.truncate, work.layout.sequence
    values = [
        value
        for value in (batch_truncate, of_text(remembered_truncate.at, dtype) if remembered_truncate else None)
        if value is not None
    ]
    return max(values, key=lambda value: _place(value, dtype), default=None)


def learn(rows: DataFrame | None, bounds: Bounds, truncated: Any, work: Work, stack: ExitStack) -> Learned:
    """Begin to write changes that are to be remembered, beside what the batch does meanwhile.

    Nothing counts before it is committed.

    :param rows: columns as in :func:`run_schema` without ``learned``; None for none.
    :param truncated: the last truncate that is known, in portable form.
    :param stack: ends once the batch is done, and waits for the writing.
    """
    remembered, now = work.target.remembered, datetime.now(timezone.utc).isoformat()
    at = to_text(truncated, work.layout.sequence)
    if truncated is not None and (remembered.truncate is None or remembered.truncate.at != at):
        remembered = replace(remembered, truncate=Truncate(at, now))
    if rows is None or not bounds.rows:
        return lambda: remembered
    dated = rows.withColumn(LEARNED, by_reference(F.lit(now).cast("timestamp"), F.col(AT)))
    others = remembered.merged_with(bounds.rows)
    run = Run((), bounds.rows, *_texts(bounds, work.layout), now)
    writing = begun(
        work.target.session,
        lambda: _written(work.target.session, work.target.path, dated, work.layout, run, others),
    )
    stack.callback(writing.exception)
    return lambda: remembered.with_run(writing.result(), instead_of=others)


def rows_of(session: SparkSession, path: str, layout: Layout, remembered: Remembered) -> DataFrame:
    """Return all that a target remembers, a truncate as a row without a key."""
    schema = run_schema(layout)
    rows = _read(session, path, schema, remembered.runs)
    if rows is None:
        rows = session.createDataFrame([], schema)
    if remembered.truncate is None:
        return rows
    last = session.range(1).select(
        F.lit(TRUNCATE).alias(KIND),
        F.lit(None).cast(schema[KEY].dataType).alias(KEY),
        literal(of_text(remembered.truncate.at, layout.sequence), layout.sequence).alias(AT),
        F.lit(remembered.truncate.learned).cast("timestamp").alias(LEARNED),
    )
    return rows.unionByName(last, allowMissingColumns=True)


def forget(session: SparkSession, path: str, before: datetime, lock: WriteLocked) -> int:
    """Forget what was written before a time (with a time zone), and return the number of forgotten changes.

    What was written exactly then stays. A change that arrives later and is older than a forgotten delete of
    its key, or than a forgotten truncate, is taken as new. With SCD type 2, upserts stay that are needed by a
    change which is newer than all that was forgotten of its key.
    """
    if before.tzinfo is None:
        raise ValueError(
            f"before is {before}, without a time zone. Give one, such as datetime.now(timezone.utc)."
        )
    with lock():
        target = opened(session, path)
        layout = layout_by(target.schema, target.properties)
        remembered, limit = target.remembered, before.astimezone(timezone.utc)
        remaining, count = _without_old(target, layout, limit)
        if remembered.truncate is not None and _is_before(remembered.truncate.learned, limit):
            remaining, count = replace(remaining, truncate=None), count + 1
        if count:
            target.commit_remembered(remaining)
    return count


def _without_old(target: Target, layout: Layout, before: datetime) -> tuple[Remembered, int]:
    """Write the changes of a target's old runs anew that stay; return what is remembered then, and how many
    changes are gone.
    """
    remembered = target.remembered
    aged = tuple(run for run in remembered.runs if _is_before(run.learned, before))
    rows = _read(target.session, target.path, run_schema(layout), aged)
    if rows is None:
        return remembered, 0
    old = F.col(LEARNED) < F.lit(before.isoformat()).cast("timestamp")
    stays = rows.where(~old)
    if layout.history:
        stays = stays.unionByName(_needed(rows.where(old), target))
    had = rows.count()
    with materialised(stays) as computed:
        remaining_rows = computed.count()
        if remaining_rows == had:
            return remembered, 0
        young = tuple(run for run in remembered.runs if run not in aged)
        if not remaining_rows:
            return replace(remembered, runs=young), had
        first = computed.agg(F.unix_micros(F.min(LEARNED)).alias("micros")).first()
        assert first is not None, "an aggregate without groups has one row"
        learned = datetime.fromtimestamp(first["micros"] / 1e6, timezone.utc).isoformat()
        run = replace(_covering(aged), rows=remaining_rows, learned=learned)
        new_run = _written(target.session, target.path, computed, layout, run, ())
    return replace(remembered, runs=(*young, new_run)), had - remaining_rows


def _needed(old: DataFrame, target: Target) -> DataFrame:
    """Return the old changes of an SCD type 2 target that are still needed.

    A timely change is newer than all that is old of its key. The version that it splits ends with the newest
    change before it, so that one is needed. With ``ignore_null_updates``, the newest of each value is needed
    too, and the first of the version, which shows values of its last.
    """
    row = old.schema[ROW].dataType
    assert isinstance(row, StructType), "run_schema made it"
    names = old.select(f"{KEY}.*").columns
    begins = (
        table_at(target.session, target.path)
        .toDF()
        .select(
            F.struct(*[column(name) for name in names]).alias(KEY),
            F.col(START_AT).alias(AT),
            F.lit(True).alias("begins"),
        )
    )
    upsert = F.col(KIND) == UPSERT
    conditions = (
        F.lit(True),
        F.col("begins"),
        *(value.in_row(ROW).isNotNull() for value in values_of(row.fields)),
    )
    newest = F.array(*[F.max(F.when(upsert & each, F.col(AT))) for each in conditions])
    deleted = F.max(F.when(F.col(KIND) == DELETE, F.col(AT)))
    keys = (
        old.join(begins, [KEY, AT], "left")
        .groupBy(KEY)
        .agg(F.array_compact(newest).alias("newest"), deleted.alias("deleted"))
    )
    stays = (
        upsert & F.array_contains("newest", F.col(AT)) & F.coalesce(F.col(AT) > F.col("deleted"), F.lit(True))
    )
    return old.join(keys, KEY).where(stays).select(*old.columns)


def _near(work: Work, facts: Facts, since: Any = None) -> DataFrame | None:
    """Return what may be remembered of the batch's range of keys; None if no run may hold any."""
    layout, first = work.layout, work.layout.keys[0]
    keys = (to_text(facts.lowest, first.dataType), to_text(facts.highest, first.dataType))
    least = None if since is None else to_text(since, layout.sequence)
    runs = [
        run
        for run in work.target.remembered.runs
        if run.may_meet(keys if bounded(first.dataType) else None, least)
    ]
    rows = _read(work.target.session, work.target.path, run_schema(layout), runs)
    return None if rows is None else rows.where(within((KEY, first.name), first, facts))


def _read(session: SparkSession, path: str, schema: StructType, runs: Iterable[Run]) -> DataFrame | None:
    files = [file for run in runs for file in run.files]
    return files_named(session, path, schema, files) if files else None


def _written(  # noqa: PLR0917 - one caller a kind of run
    session: SparkSession, path: str, rows: DataFrame, layout: Layout, run: Run, others: Sequence[Run]
) -> Run:
    """Write a run's changes, and those of other runs with them, and return it with its files."""
    other_rows = _read(session, path, run_schema(layout), others)
    run = _covering((run, *others))
    rows = rows.select(*run_schema(layout).fieldNames())
    if other_rows is not None:
        rows = rows.unionByName(other_rows)
    rows = rows.coalesce(1 + run.rows // _A_FILE)
    if other_rows is not None:
        rows = _each_once(rows, layout)
    run = replace(run, files=files_written(rows, path, f"{FOLDER}/{uuid.uuid4().hex}"))
    if other_rows is None:
        return run
    written_rows = _read(session, path, run_schema(layout), [run])
    return replace(run, rows=written_rows.count() if written_rows is not None else 0)


def _each_once(rows: DataFrame, layout: Layout) -> DataFrame:
    """Return changes without those that say nothing more: older deletes of a key, and repeated changes."""
    if not layout.history:
        last = F.max(AT).alias(AT), F.max(LEARNED).alias(LEARNED)
        return rows.groupBy(KIND, KEY).agg(*last).select(*rows.columns)
    if not orderable(layout.stored):
        return rows
    return rows.groupBy(KIND, KEY, AT, ROW).agg(F.max(LEARNED).alias(LEARNED)).select(*rows.columns)


def _covering(runs: Sequence[Run]) -> Run:
    """Return a run without files whose bounds are those of some runs together."""

    def together(bounds: Sequence[Texts | None]) -> Texts | None:
        known_bounds = [bound for bound in bounds if bound is not None]
        if len(known_bounds) < len(bounds):
            return None
        return min(low for low, _ in known_bounds), max(high for _, high in known_bounds)

    return Run(
        (),
        sum(run.rows for run in runs),
        together([run.first_key for run in runs]),
        together([run.at for run in runs]),
        min(run.learned for run in runs),
    )


def _texts(bounds: Bounds, layout: Layout) -> tuple[Texts | None, Texts | None]:
    def texts(values: tuple[Any, Any], dtype: DataType) -> Texts | None:
        if not bounded(dtype):
            return None
        low, high = (to_text(value, dtype) for value in values)
        return (low, high)

    return texts(bounds.first_key, layout.keys[0].dataType), texts(bounds.at, layout.sequence)


def _place(value: Any, dtype: DataType) -> Any:
    """Return what sorts as Spark sorts a sequence: a null first, NaN last."""
    if isinstance(dtype, StructType):
        return tuple(_place(value[field.name], field.dataType) for field in dtype.fields)
    if value is None:
        return (0,)
    return (2,) if isinstance(value, float) and math.isnan(value) else (1, value)


def _is_before(learned: str, limit: datetime) -> bool:
    return datetime.fromisoformat(learned) < limit
