"""A batch's rows as changes: of which key, at which sequence, an upsert, a delete or a truncate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from streamkeeper.cdc import CdcSpec
from streamkeeper.errors import ChangeRefused, DeclarationError
from streamkeeper_jobs.cdc.columns import Layout, field_of, holds, sequence_type, stored_fields
from streamkeeper_jobs.cdc.expressions import all_of, column, conformed, literal, portable, struct_of, whole_number
from streamkeeper_jobs.cdc.steps import CdcTables, Step

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

KEY, AT, KIND, ROW, UNUSABLE = "key", "sequence", "kind", "row", "unusable"
"""Columns of a frame of changes. ``row`` holds all declared columns, ``unusable`` an example of a row without key or sequence."""


def changes(batch: DataFrame, spec: CdcSpec, layout: Layout) -> DataFrame:
    """Give a batch's rows as changes: ``key``, ``sequence``, ``kind``, ``row`` (null unless it is an upsert), ``unusable`` (null if not).

    A row that fits both conditions truncates. What the target has and the batch does not is null.

    :raises DeclarationError: the target cannot hold what the batch has: it was not prepared for it.
    """
    _check_fits(batch.schema, spec, layout)
    at = sequence(batch.schema, spec, layout)
    key = F.struct(*[column(field.name).cast(field.dataType).alias(field.name) for field in layout.keys])
    kind = F.when(_holds(spec.apply_as_truncates), TRUNCATE).when(_holds(spec.apply_as_deletes), DELETE).otherwise(UPSERT)
    lacks_sequence = ~all_of([column(name).isNotNull() for name in spec.sequence_by])
    lacks_key = ~all_of([column(field.name).isNotNull() for field in layout.keys])
    example = F.to_json(F.struct(*[column(name) for name in batch.columns]), {"ignoreNullFields": "false"})
    return batch.select(
        key.alias(KEY),
        at.alias(AT),
        kind.alias(KIND),
        F.when(kind == UPSERT, _row(batch.schema, spec, layout)).alias(ROW),
        F.when(lacks_sequence | (lacks_key & (kind != TRUNCATE)), example).alias(UNUSABLE),
    )


def sequence(schema: StructType, spec: CdcSpec, layout: Layout) -> Column:
    """Give a row's sequence in the type that the target keeps."""
    if spec.sequence_literal is not None:
        return whole_number(spec.sequence_literal, layout.sequence)
    columns = [column(field_of(schema, name, "sequence_by").name) for name in spec.sequence_by]
    if isinstance(layout.sequence, StructType):
        return struct_of(layout.sequence.fields, columns)
    return columns[0].cast(layout.sequence)


BROADCAST_KEYS = 1_000_000
"""Up to so many keys of a batch are held by every executor at once: some tens of megabytes."""


@dataclass(frozen=True)
class Work:
    """Where a batch is applied to: the target's layout, the pair of tables, the step that the commits carry."""

    layout: Layout
    tables: CdcTables
    step: Step


@dataclass(frozen=True)
class Facts:
    """What a batch's changes hold, all keys together: values as :func:`streamkeeper_jobs.cdc.expressions.portable` gives them.

    ``truncated`` is the highest sequence of a truncate, ``lowest`` and ``highest`` the bounds of the first key column.
    """

    keys: int
    deletes: int
    truncated: Any
    lowest: Any
    highest: Any


def facts_of(reduced: DataFrame, layout: Layout) -> Facts:
    """Look through the reduced changes of a batch: columns ``key``, ``deleted``, ``truncated``, ``unusable``, ``rows_unusable``.

    :raises ChangeRefused: some rows have no key or no sequence.
    """
    first = layout.keys[0]
    bound = portable(column(KEY, first.name), first.dataType)
    keyed = column(KEY, first.name).isNotNull()
    found = reduced.agg(
        F.count_if(keyed).alias("keys"),
        F.count("deleted").alias("deletes"),
        portable(F.max("truncated"), layout.sequence).alias("truncated"),
        F.count("truncated").alias("truncates"),
        F.min(bound).alias("lowest"),
        F.max(bound).alias("highest"),
        F.sum("rows_unusable").alias("rows_unusable"),
        F.min(UNUSABLE).alias(UNUSABLE),
    ).first()
    assert found is not None, "an aggregate without groups has one row"
    _check_usable(found, layout)
    return Facts(found["keys"], found["deletes"], found["truncated"] if found["truncates"] else None, found["lowest"], found["highest"])


def unusable_of_group() -> tuple[Column, Column]:
    """Give the two aggregates that carry rows which cannot be applied through a grouping."""
    return F.min(UNUSABLE).alias(UNUSABLE), F.count(UNUSABLE).alias("rows_unusable")


@contextmanager
def materialised(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute a frame once for all that reads it inside the block; a lost part fails the batch, and is never computed anew differently."""
    kept = frame.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        plan: Any = kept._jdf.queryExecution().analyzed()
        plan.rdd().unpersist(False)


def within(path: Sequence[str], key: StructField, facts: Facts) -> Column:
    """Bound a column by the batch's lowest and highest first key, by which Delta can leave files aside."""
    value = column(*path)
    return value.between(literal(facts.lowest, key.dataType), literal(facts.highest, key.dataType))


def nearby(frame: DataFrame, facts: Facts) -> DataFrame:
    """Let a frame with a row for each key of the batch be sent to where it is joined, unless the batch is a big one."""
    return F.broadcast(frame) if facts.keys <= BROADCAST_KEYS else frame


def _holds(condition: str | None) -> Column:
    return F.coalesce(F.expr(condition), F.lit(False)) if condition is not None else F.lit(False)


def _row(schema: StructType, spec: CdcSpec, layout: Layout) -> Column:
    given = StructType(stored_fields(schema, spec))
    return conformed(F.struct(*[column(field.name) for field in given.fields]), given, layout.stored)


def _check_fits(schema: StructType, spec: CdcSpec, layout: Layout) -> None:
    known = {name.lower() for name in layout.stored.fieldNames()}
    unknown = [field.name for field in stored_fields(schema, spec) if field.name.lower() not in known]
    if unknown:
        raise DeclarationError(f"The target has no column {unknown[0]}, which the flow gives. Restart the flow: its start adds the column.")
    if spec.sequence_literal is None and not holds(layout.sequence, sequence_type(schema, spec)):
        raise DeclarationError(
            f"sequence_by gives {sequence_type(schema, spec).simpleString()}, and the target keeps {layout.sequence.simpleString()}. "
            "Flows of one table must be ordered by the same types: cast the column in the view."
        )


def _check_usable(found: Row, layout: Layout) -> None:
    count = found["rows_unusable"] or 0
    if count:
        keys = ", ".join(field.name for field in layout.keys)
        raise ChangeRefused(
            f"{count} row{'s' if count > 1 else ''} of the batch {'have' if count > 1 else 'has'} a null key ({keys}) or a null sequence, "
            f"such as {found[UNUSABLE]}. Each row needs both (a truncate its sequence only), or nobody could tell what it replaces. "
            "Filter such rows out in the view, or give them a value; nothing of the batch was written."
        )
