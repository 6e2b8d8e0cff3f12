"""The rows of a batch as changes: key, sequence, and kind (upsert, delete or truncate)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.errors import ChangeRefused, DeclarationError
from streamkeeper_jobs.cdc.columns import Layout, field_of, holds, sequence_type, stored_fields
from streamkeeper_jobs.cdc.expressions import (
    all_of,
    conformed,
    literal,
    portable,
    struct_of,
    whole_number,
    whole_numbers,
)
from streamkeeper_jobs.cdc.replace_rows import Target
from streamkeeper_jobs.spark.frames import column, measured, named, once

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

KEY, AT, KIND, ROW, UNUSABLE = "key", "sequence", "kind", "row", "unusable"
"""Columns of a frame of changes.

``row`` holds all declared columns, ``unusable`` an example of a row without key or sequence.
"""


def changes(batch: DataFrame, spec: CdcSpec, layout: Layout) -> DataFrame:
    """Return a batch's rows as changes.

    Columns: ``key``, ``sequence``, ``kind``, ``row`` (null unless it is an upsert), ``unusable`` (null if
    usable). A row that fits both conditions truncates. Columns of the target that the batch lacks are null.

    :raises DeclarationError: the target was not prepared for the batch's columns.
    """
    schema = batch.schema
    _check_fits(schema, spec, layout)
    return batch.select(*_columns(schema, spec, layout))


@once
def _columns(schema: StructType, spec: CdcSpec, layout: Layout) -> tuple[Column, ...]:
    at = sequence(schema, spec, layout)
    key = F.struct(*[column(field.name).cast(field.dataType).alias(field.name) for field in layout.keys])
    kind = (
        F.when(_holds(spec.apply_as_truncates), TRUNCATE)
        .when(_holds(spec.apply_as_deletes), DELETE)
        .otherwise(UPSERT)
    )
    needed = spec.sequence_by[:1] if spec.parts_may_be_null else spec.sequence_by
    lacks_sequence = ~all_of([column(name).isNotNull() for name in needed])
    lacks_key = ~all_of([_identifies(field, layout) for field in layout.keys])
    example = F.to_json(F.struct(*[column(name) for name in schema.names]), {"ignoreNullFields": "false"})
    return (
        key.alias(KEY),
        at.alias(AT),
        kind.alias(KIND),
        F.when(kind == UPSERT, _row(schema, spec, layout)).alias(ROW),
        F.when(lacks_sequence | (lacks_key & (kind != TRUNCATE)), example).alias(UNUSABLE),
    )


def sequence(schema: StructType, spec: CdcSpec, layout: Layout) -> Column:
    """Return a row's sequence in the type of the target."""
    if spec.sequence_literal is not None:
        return whole_number(spec.sequence_literal, layout.sequence)
    columns = [column(field_of(schema, name, "sequence_by").name) for name in spec.sequence_by]
    if isinstance(layout.sequence, StructType):
        return struct_of(layout.sequence.fields, columns)
    return columns[0].cast(layout.sequence)


SEVERAL = "several"
"""Column of a reduced frame whose keys may have one row each only."""

JOINS = "joins"
"""Column of a reduced frame: whether one version (SCD type 2) may show the change with the one before."""

TIED = "tied"
"""Column of a reduced frame: whether an upsert lost to a delete of the same sequence."""

DIFFERS = "differs"
"""Column of a reduced frame: whether upserts of the same sequence have other values."""

BROADCAST_KEYS, BROADCAST_ROWS = 1_000_000, 100_000
"""Keys of a batch, or whole rows, up to which they are broadcast to every executor: some tens of megabytes.
"""


@dataclass(frozen=True)
class Work:
    """The destination of a batch: the target, opened for its step, and its layout."""

    layout: Layout
    target: Target


@dataclass(frozen=True)
class Ties:
    """Upserts of a batch for which the sequence does not tell what is newer.

    ``deleted`` lost to a delete of their sequence (of keys that therefore have no row). ``differing`` are
    keys (SCD type 2: and sequences) with upserts of other values at one sequence, of which the larger row
    counts: those within the batch, and in SCD type 1 those with the stored row.
    """

    deleted: int = 0
    differing: int = 0

    @property
    def number(self) -> int:
        """How many there are in all."""
        return self.deleted + self.differing


@dataclass(frozen=True)
class Facts:
    """Facts about the changes of a batch, over all keys.

    Values are in the form of :func:`streamkeeper_jobs.cdc.expressions.portable`. ``deletes`` says which
    deletes must be remembered, ``truncated`` is the highest sequence of a truncate, ``lowest`` and
    ``highest`` are the bounds of the first key column. ``earliest`` is what :func:`facts_of` was asked for.
    ``joins`` is how many changes do, and ``ties`` are those of frames with such columns.
    """

    keys: int
    deletes: Bounds
    truncated: Any
    lowest: Any
    highest: Any
    earliest: Any = None
    joins: int = 0
    ties: Ties = Ties()


@dataclass(frozen=True)
class Bounds:
    """The number of some changes, and the bounds of their first key column and of their sequences, in
    portable form.
    """

    rows: int
    first_key: tuple[Any, Any]
    at: tuple[Any, Any]


def bounds_of(layout: Layout, condition: Column, at: Column) -> tuple[Column, ...]:
    """Return the aggregates of the changes that meet a condition, for :func:`bounds_in`.

    :param at: their sequence.
    """
    first, order = layout.keys[0], layout.sequence
    key = portable(F.when(condition, column(KEY, first.name)), first.dataType)
    when = F.when(condition, at)
    return named(
        {
            "bounded": F.count_if(condition),
            "lowest_key": F.min(key),
            "highest_key": F.max(key),
            "lowest_at": portable(F.min(when), order),
            "highest_at": portable(F.max(when), order),
        }
    )


def bounds_in(aggregated: Row) -> Bounds:
    """Return the outcome of :func:`bounds_of`."""
    return Bounds(
        aggregated["bounded"],
        (aggregated["lowest_key"], aggregated["highest_key"]),
        (aggregated["lowest_at"], aggregated["highest_at"]),
    )


@contextmanager
def facts_of(
    reduced: DataFrame, layout: Layout, needed: Column, at: Column | None = None
) -> Iterator[tuple[DataFrame, Facts]]:
    """Compute the reduced changes, and yield them with their facts.

    Their columns include ``key``, ``deleted``, ``truncated``, ``unusable`` and ``rows_unusable``.

    :param needed: whether a key's ``deleted`` must be remembered.
    :param at: a sequence of each of them, the lowest of which is ``earliest``.
    :raises ChangeRefused: some rows have no key or no sequence, or a key that may have one has several.
    """
    first = layout.keys[0]
    bound = portable(column(KEY, first.name), first.dataType)
    keyed = column(KEY, first.name).isNotNull()
    aggregates = (
        F.count_if(keyed).alias("keys"),
        portable(F.max("truncated"), layout.sequence).alias("truncated"),
        F.count("truncated").alias("truncates"),
        F.min(bound).alias("lowest"),
        F.max(bound).alias("highest"),
        F.sum("rows_unusable").alias("rows_unusable"),
        F.min(UNUSABLE).alias(UNUSABLE),
        *bounds_of(layout, needed, F.col("deleted")),
        *([F.min(SEVERAL).alias(SEVERAL)] if SEVERAL in reduced.columns else []),
        (portable(F.min(at), layout.sequence) if at is not None else F.lit(None)).alias("earliest"),
        *(
            (F.count_if(name) if name in reduced.columns else F.lit(0)).alias(name)
            for name in (JOINS, TIED, DIFFERS)
        ),
    )
    with measured(reduced, *aggregates) as (computed, aggregated):
        _check_usable(aggregated, layout)
        _check_single(aggregated, layout)
        truncated = aggregated["truncated"] if aggregated["truncates"] else None
        bounds = (aggregated["lowest"], aggregated["highest"])
        yield (
            computed,
            Facts(
                aggregated["keys"],
                bounds_in(aggregated),
                truncated,
                *bounds,
                aggregated["earliest"],
                aggregated[JOINS],
                Ties(aggregated[TIED], aggregated[DIFFERS]),
            ),
        )


@once
def unusable_of_group() -> tuple[Column, Column]:
    """Return the two aggregates that carry unusable rows through a grouping."""
    return F.min(UNUSABLE).alias(UNUSABLE), F.count(UNUSABLE).alias("rows_unusable")


def within(path: Sequence[str], key: StructField, facts: Facts) -> Column:
    """Return a condition on a column by the batch's bounds of the first key, with which Delta skips files.

    It may let through a few keys more.
    """
    lowest, highest = _widened(facts.lowest, facts.highest, key.dataType)
    return column(*path).between(literal(lowest, key.dataType), literal(highest, key.dataType))


def _widened(lowest: Any, highest: Any, dtype: DataType) -> tuple[Any, Any]:
    """Return whole numbers as bounds that the next batch probably shares, at most half again as far apart.

    Numbers are part of the code that Spark generates: with others it is compiled again, and the JVM begins
    again to optimise it.

    A bound of zero includes both zeros: they are one key, but Parquet's filters take -0.0 for less than 0.0.
    """
    if isinstance(dtype, (DoubleType, FloatType)):
        return lowest or -0.0, highest or 0.0
    if not isinstance(dtype, IntegralType):
        return lowest, highest
    step = 1 << max(0, (highest - lowest).bit_length() - 3)
    least, most = whole_numbers(dtype)
    return max(least, lowest // step * step), min(most, -(-highest // step) * step)


def nearby(frame: DataFrame, facts: Facts, most: int = BROADCAST_KEYS) -> DataFrame:
    """Broadcast a frame with a row for each key of the batch, unless it has more keys than ``most``."""
    return F.broadcast(frame) if facts.keys <= most else frame


def _identifies(key: StructField, layout: Layout) -> Column:
    """Return whether a key's value finds its row again."""
    value = column(key.name)
    if not isinstance(key.dataType, StringType):
        return value.isNotNull()
    valid = value.isNotNull() & F.is_valid_utf8(value)
    return valid & (value != "") if layout.loses_empty_text(key) else valid


def _holds(condition: str | None) -> Column:
    return F.coalesce(F.expr(condition), F.lit(False)) if condition is not None else F.lit(False)


def _row(schema: StructType, spec: CdcSpec, layout: Layout) -> Column:
    """Return a row's declared columns as those of the target.

    Each is conformed by itself: a field of the whole struct would hold the struct once more, and a row of n
    columns have n² parts.
    """
    sources = {field.name.lower(): field for field in stored_fields(schema, spec)}

    def value(field: StructField) -> Column:
        source = sources.get(field.name.lower())
        if source is None:
            return F.lit(None)
        content = column(source.name)
        usable = F.nullif(content, F.lit("")) if layout.loses_empty_text(field) else content
        return conformed(usable, source.dataType, field.dataType)

    return struct_of(layout.stored.fields, [value(field) for field in layout.stored.fields])


def _check_fits(schema: StructType, spec: CdcSpec, layout: Layout) -> None:
    stored_names = {name.lower() for name in layout.stored.fieldNames()}
    unknown = [field.name for field in stored_fields(schema, spec) if field.name.lower() not in stored_names]
    if unknown:
        raise DeclarationError(
            f"The target has no column {unknown[0]}, which the flow gives. Restart the flow: its start adds"
            " the column."
        )
    if spec.sequence_literal is None and not holds(layout.sequence, sequence_type(schema, spec)):
        raise DeclarationError(
            f"sequence_by gives {sequence_type(schema, spec).simpleString()}, and the target keeps"
            f" {layout.sequence.simpleString()}. Flows of one table must be ordered by the same types: cast"
            " the column in the view."
        )


def _check_usable(aggregated: Row, layout: Layout) -> None:
    count = aggregated["rows_unusable"] or 0
    if count:
        raise ChangeRefused(
            f"{count} row{'s' if count > 1 else ''} of the batch {'have' if count > 1 else 'has'}"
            f" {_unusable(layout)}, such as {aggregated[UNUSABLE]}. Each row needs both (a truncate its"
            " sequence only), to find the row that it replaces. Nothing of the batch was written. Filter such"
            " rows out in the view, or give them a value."
        )


def _check_single(aggregated: Row, layout: Layout) -> None:
    if SEVERAL in aggregated and aggregated[SEVERAL] is not None:
        keys = ", ".join(field.name for field in layout.keys)
        raise ChangeRefused(
            f"The batch has several rows of the key {aggregated[SEVERAL]}, and none is newer than the other."
            f" Nothing of the batch was written. The keys ({keys}) must identify a row of the query: group by"
            " them alone, or declare another table with all columns that the query groups by as its keys."
        )


def _unusable(layout: Layout) -> str:
    texts = [field.name for field in layout.keys if isinstance(field.dataType, StringType)]
    broken = f", a key that is not valid UTF-8 ({', '.join(texts)})," if texts else ""
    parts = [field.name for field in layout.keys if layout.loses_empty_text(field)]
    empty = (
        " an empty text in a key by which the table is partitioned, which Delta keeps as null"
        f" ({', '.join(parts)}),"
        if parts
        else ""
    )
    return f"a null key ({', '.join(field.name for field in layout.keys)}){broken}{empty} or a null sequence"
