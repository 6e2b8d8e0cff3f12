"""SCD type 1 with ``ignore_null_updates``: each value has a sequence, by its path in the bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType

from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper_jobs.cdc.columns import COLUMNS, SEQUENCE, Layout
from streamkeeper_jobs.cdc.events import (
    AT,
    BROADCAST_ROWS,
    DELETE,
    KEY,
    KIND,
    ROW,
    UPSERT,
    Facts,
    Work,
    facts_of,
    nearby,
    unusable_of_group,
)
from streamkeeper_jobs.cdc.expressions import orderable, ordered
from streamkeeper_jobs.cdc.replace_rows import PLACE, Opened
from streamkeeper_jobs.cdc.scd1 import (
    CHANGE,
    FATE,
    TARGET,
    Cut,
    cut_off,
    dead,
    look_at,
    marks,
    merged_into,
    same_key,
    target_at,
)
from streamkeeper_jobs.cdc.values import Path, Value, together, values_of
from streamkeeper_jobs.spark.delta_commit import assigned
from streamkeeper_jobs.spark.frames import column, materialised, named

VALUE = "value"


def apply_by_value(changes: DataFrame, work: Work) -> None:
    """Apply the changes of one batch to an SCD type 1 target that ignores nulls."""
    values, layout = values_of(work.layout.values), work.layout
    # Every delete is needed, also if the key has a newer upsert: an older value may still arrive that the
    # upsert did not have.
    needed = F.col("deleted").isNotNull()
    with ExitStack() as stack:
        reduced, facts = stack.enter_context(facts_of(reduce(changes, values), layout, needed))
        _write(cut_off(reduced, needed, work, facts, stack), values, work, facts, stack)


def reduce(changes: DataFrame, values: Sequence[Value]) -> DataFrame:
    """Return one row for each key, with the newest of each value.

    Columns also: ``deleted``, ``truncated``, and ``upserted``, the highest sequence of an upsert.
    """
    newest = [_newest(value).alias(_column_of(value)) for value in values]
    upserted = F.max(F.when(F.col(KIND) == UPSERT, F.col(AT))).alias("upserted")
    return changes.groupBy(KEY).agg(*marks(), upserted, *newest, *unusable_of_group())


def _newest(value: Value) -> Column:
    content = value.in_row(ROW)
    has_value = (F.col(KIND) == UPSERT) & content.isNotNull()
    pair = F.struct(F.col(AT).alias(AT), content.alias(VALUE))
    if orderable(value.type):
        return F.max(F.when(has_value, pair))
    return F.max_by(pair, F.when(has_value, F.struct(F.col(AT), ordered(content, value.type))))


def _write(cut: Cut, values: Sequence[Value], work: Work, facts: Facts, stack: ExitStack) -> None:
    """Write the batch into the target, in the one commit of its step."""
    if not facts.keys and facts.truncated is None:
        work.target.commit_nothing(cut.learned())
        return
    source, target = _living(cut, values), look_at(work, facts)
    rules = _Rules(values, work.layout, facts, cut.truncated)
    if target is None:
        _merge(source, rules, cut, work)
    else:
        _replace(target, source, rules, cut, stack)


@dataclass(frozen=True)
class _Rules:
    """Results for a row of the target and a change of its key, joined as ``target`` and ``change``."""

    values: Sequence[Value]
    layout: Layout
    facts: Facts
    truncated: Column | None

    @property
    def has_upsert(self) -> Column:
        """Whether the change has an upsert."""
        return column(CHANGE, "upserted").isNotNull()

    @property
    def lives(self) -> Column:
        return ~dead(target_at(), column(CHANGE, "barrier"), self.truncated)

    @property
    def updates(self) -> Column:
        return self.has_upsert | (self.lives & _some_dead(column(CHANGE, "barrier"), self.truncated))

    @property
    def joined(self) -> dict[str, Column]:
        """The row's new values from both sides."""
        barrier = column(CHANGE, "barrier")
        pairs = {
            value.path: _later(_of_change(value), _of_target(value, barrier, self.truncated), value)
            for value in self.values
        }
        last = F.greatest(column(CHANGE, "upserted"), F.when(self.lives, target_at()))
        return _set(self.layout, self.values, pairs, last)

    @property
    def alone(self) -> dict[str, Column]:
        """The values of a new row."""
        pairs = {value.path: _of_change(value) for value in self.values}
        return _set(self.layout, self.values, pairs, column(CHANGE, "upserted"), key_from=CHANGE)

    @property
    def without_change(self) -> dict[str, Column]:
        """The values of a row without a change, after a truncate."""
        nobody = F.lit(None).cast(self.layout.sequence)
        pairs = {value.path: _of_target(value, nobody, self.truncated) for value in self.values}
        return _set(self.layout, self.values, pairs, target_at(), key_from=TARGET)


def _replace(target: Opened, source: DataFrame, rules: _Rules, cut: Cut, stack: ExitStack) -> None:
    """Read the target's rows of the keys once, and combine them with the changes."""
    changes, stored = (
        source.select(KEY, F.struct("*").alias(CHANGE)),
        target.placed(F.struct("*").alias(TARGET)),
    )
    fate = F.when(rules.updates, UPSERT).when(~rules.lives, DELETE)
    met = stored.join(nearby(changes, rules.facts, BROADCAST_ROWS), same_key(rules.layout, rules.facts))
    combined = stack.enter_context(
        materialised(met.select(KEY, PLACE, fate.alias(FATE), _row(rules.joined).alias(ROW)))
    )
    new = (
        changes.where(rules.has_upsert)
        .join(nearby(combined.select(KEY), rules.facts), KEY, "left_anti")
        .select(_row(rules.alone).alias(ROW))
    )
    rows = combined.where(F.col(FATE) == UPSERT).select(ROW).unionByName(new)
    target.replace(combined.where(F.col(FATE).isNotNull()), rows.select(f"{ROW}.*"), cut.learned)


def _row(columns: dict[str, Column]) -> Column:
    return F.struct(*named(columns))


def _merge(source: DataFrame, rules: _Rules, cut: Cut, work: Work) -> None:
    """Write the batch by MERGE."""
    with merged_into(work, source, same_key(rules.layout, rules.facts), cut) as merge:
        builder = merge.whenMatchedUpdate(rules.updates, assigned(rules.joined))
        builder = builder.whenMatchedDelete(~rules.has_upsert & ~rules.lives)
        builder = builder.whenNotMatchedInsert(rules.has_upsert, assigned(rules.alone))
        if rules.facts.truncated is not None and rules.truncated is not None:
            builder = builder.whenNotMatchedBySourceDelete(rules.truncated > target_at())
            nobody = F.lit(None).cast(rules.layout.sequence)
            builder = builder.whenNotMatchedBySourceUpdate(
                _some_dead(nobody, rules.truncated), assigned(rules.without_change)
            )
        builder.execute()


def _living(cut: Cut, values: Sequence[Value]) -> DataFrame:
    """Remove upserts and values that a delete or a truncate ends, and keys without anything left."""
    barrier = F.col("barrier")
    living = cut.keys.select(
        KEY,
        "barrier",
        F.when(~dead(F.col("upserted"), barrier, cut.truncated), F.col("upserted")).alias("upserted"),
        *[
            F.when(
                ~dead(column(_column_of(value), AT), barrier, cut.truncated), F.col(_column_of(value))
            ).alias(_column_of(value))
            for value in values
        ],
    )
    return living.where(F.col("upserted").isNotNull() | barrier.isNotNull())


def _column_of(value: Value) -> str:
    return f"value_{value.number}"


def _of_change(value: Value) -> Column:
    return column(CHANGE, _column_of(value))


def _of_target(value: Value, barrier: Column, truncated: Column | None) -> Column:
    """Return a value of the target and its sequence; null if it has none, or it is ended."""
    at = column(TARGET, BOOKKEEPING, COLUMNS).getItem(value.name)
    return F.when(
        at.isNotNull() & ~dead(at, barrier, truncated),
        F.struct(at.alias(AT), value.in_row(TARGET).alias(VALUE)),
    )


def _later(one: Column, other: Column, value: Value) -> Column:
    def place(pair: Column) -> Column:
        return F.struct(pair.getField(AT), ordered(pair.getField(VALUE), value.type))

    return F.when(other.isNull() | (one.isNotNull() & (place(one) > place(other))), one).otherwise(other)


def _some_dead(barrier: Column, truncated: Column | None) -> Column:
    """Return whether a row of the target has a value that is ended."""
    return F.exists(
        F.map_values(column(TARGET, BOOKKEEPING, COLUMNS)), lambda at: dead(at, barrier, truncated)
    )


def _set(
    layout: Layout,
    values: Sequence[Value],
    pairs: dict[Path, Column],
    last: Column,
    *,
    key_from: str = TARGET,
) -> dict[str, Column]:
    """Return the new content of each column of the target: keys, combined values, and the bookkeeping."""
    key = {
        field.name: column(CHANGE, KEY, field.name) if key_from == CHANGE else column(TARGET, field.name)
        for field in layout.keys
    }
    contents = {path: pair.getField(VALUE) for path, pair in pairs.items()}
    columns = {
        field.name: one for field, one in zip(layout.values, together(layout.values, contents), strict=True)
    }
    entries = [
        F.struct(F.lit(value.name).alias("key"), pairs[value.path].getField(AT).alias("value"))
        for value in values
    ]
    present_entries = (
        F.filter(F.array(*entries), lambda entry: entry["value"].isNotNull()) if entries else None
    )
    sequences = (
        F.map_from_entries(present_entries)
        if present_entries is not None
        else F.create_map().cast(MapType(StringType(), layout.sequence))
    )
    bookkeeping = F.struct(last.alias(SEQUENCE), sequences.alias(COLUMNS))
    return {**key, **columns, BOOKKEEPING: bookkeeping}
