"""SCD type 1: the newest row of each key. One row a key out of the batch, one commit into the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from delta.tables import DeltaMergeBuilder
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper_jobs.cdc import remembered
from streamkeeper_jobs.cdc.columns import SEQUENCE, Layout
from streamkeeper_jobs.cdc.events import (
    AT,
    BROADCAST_KEYS,
    BROADCAST_ROWS,
    DELETE,
    DIFFERS,
    KEY,
    KIND,
    ROW,
    SEVERAL,
    TIED,
    TRUNCATE,
    UNUSABLE,
    UPSERT,
    Facts,
    Ties,
    Work,
    facts_of,
    nearby,
    unusable_of_group,
    within,
)
from streamkeeper_jobs.cdc.expressions import all_of, bounded, literal, orderable, ordered, struct_of
from streamkeeper_jobs.cdc.remembered import Learned
from streamkeeper_jobs.cdc.replace_rows import PLACE, Opened
from streamkeeper_jobs.spark.delta_commit import assigned, merging, table_at
from streamkeeper_jobs.spark.frames import column, materialised, measured, named, once

TARGET, CHANGE = "target", "change"
"""The two sides of a MERGE."""

A_TASK = 20_000
"""Rows that one task writes without being long about it: a small batch makes one file."""

FATE, GOES, EQUAL, STANDS = "fate", "goes", "equal", "stands"
"""Fate of a row of the target.

It is replaced or ended (``goes``); compared with an upsert of the same sequence (``equal``); or newer than
the batch (``stands``).
"""


@dataclass(frozen=True)
class Cut:
    """A batch's keys with all that ends rows of them.

    Column ``barrier`` is the last delete; the table's last truncate is kept beside it. ``learned`` returns
    what the target remembers once the batch is done; ``learns`` says whether that is more than before.
    """

    keys: DataFrame
    truncated: Column | None
    learned: Learned
    learns: bool


def apply_newest(changes: DataFrame, work: Work, one_row_a_key: bool = False) -> Ties:
    """Apply the changes of one batch to an SCD type 1 target; return its ties.

    :param one_row_a_key: refuse a batch with two rows of a key.
    """
    layout = work.layout
    with ExitStack() as stack:
        reduced = reduce(changes, layout, one_row_a_key)
        reduced, facts = stack.enter_context(facts_of(reduced, layout, _needed(), _ends(layout)))
        stored = _write(cut_off(reduced, _needed(), work, facts, stack), work, facts, stack)
        return replace(facts.ties, differing=facts.ties.differing + stored)


@once
def _needed() -> Column:
    """Return whether a key's ``deleted`` must be remembered.

    A delete before the key's newest upsert is not needed: a later arrival that is older than the delete is
    older than that upsert, too.
    """
    return F.col("deleted").isNotNull() & (
        F.col("latest").isNull() | (F.col("deleted") >= column("latest", AT))
    )


def reduce(changes: DataFrame, layout: Layout, one_row_a_key: bool = False) -> DataFrame:
    """Return one row for each key, with its highest sequences and its newest upsert.

    Columns: ``deleted`` and ``truncated``, the highest such sequences, and ``latest``: sequence and row of
    the newest upsert. Of several upserts at one sequence the larger row is taken, columns compared in order:
    the order of arrival is irrelevant. That one is ``tied`` if a delete has its sequence, and ``differs`` if
    another upsert has. With
    ``one_row_a_key`` also ``several``: the key as text, if it has several rows.
    """
    # Not brought together by key before: each task groups what it has read, so a key with many changes is
    # not one task's work.
    grouped = changes.withColumns(plain_key(layout, KEY)).groupBy(*plain_key(layout))
    return grouped.agg(*_aggregates(layout, one_row_a_key)).select(*_reduced(layout, one_row_a_key))


@once
def _aggregates(layout: Layout, one_row_a_key: bool) -> tuple[Column, ...]:
    candidate = F.when(F.col(KIND) == UPSERT, F.struct(AT, ROW))
    if orderable(layout.stored):
        latest = F.max(candidate)
    else:
        latest = F.max_by(
            F.struct(AT, ROW), F.when(F.col(KIND) == UPSERT, F.struct(AT, ordered(F.col(ROW), layout.stored)))
        )
    counted = [F.count(F.lit(1)).alias(SEVERAL)] if one_row_a_key else []
    return (*marks(), latest.alias("latest"), _differs(layout).alias(DIFFERS), *unusable_of_group(), *counted)


def _differs(layout: Layout) -> Column:
    """Return the aggregate whether the newest upserts of a key differ: the highest and the lowest hash at
    their sequence.
    """
    value = F.xxhash64(ordered(F.col(ROW), layout.stored))
    highest, lowest = (
        F.max(F.when(F.col(KIND) == UPSERT, F.struct(AT, one.alias("hash")))).getField("hash")
        for one in (value, F.bitwise_not(value))
    )
    return highest != F.bitwise_not(lowest)


@once
def _reduced(layout: Layout, one_row_a_key: bool) -> tuple[Column, ...]:
    whole = whole_key(layout)
    several = [F.when(F.col(SEVERAL) > 1, F.to_json(whole)).alias(SEVERAL)] if one_row_a_key else []
    names = ("deleted", "truncated", "latest", UNUSABLE, "rows_unusable")
    tied = F.col("deleted") == column("latest", AT)
    return (whole.alias(KEY), *map(F.col, names), tied.alias(TIED), F.col(DIFFERS), *several)


@once
def plain_key(layout: Layout, *side: str) -> dict[str, Column]:
    """Return the values of a key as columns, by the names that frames have them under.

    Sorted, grouped and joined by these, frames are quicker than by the struct ``key``.
    """
    return {f"key{number}": column(*side, field.name) for number, field in enumerate(layout.keys)}


@once
def whole_key(layout: Layout) -> Column:
    """Return the struct ``key`` from the columns of :func:`plain_key`."""
    return struct_of(layout.keys, [F.col(name) for name in plain_key(layout)])


def met(target: Opened, changes: DataFrame, layout: Layout, *columns: Column) -> DataFrame:
    """Return some columns of the target's rows, and their ``place``, joined with changes of their keys.

    :param changes: with the columns of :func:`plain_key`.
    """
    key = plain_key(layout)
    return target.placed(*named(key), *columns).join(changes, list(key))


@once
def _ends(layout: Layout) -> Column | None:
    """Return the sequence before which a remembered delete of a key is irrelevant.

    That is the sequence of the key's newest upsert, or else of its delete in the batch. None for sequences
    that runs have no bounds of.
    """
    return F.coalesce(column("latest", AT), F.col("deleted")) if bounded(layout.sequence) else None


@once
def marks() -> tuple[Column, Column]:
    """Return the two aggregates over a key's deletes and truncates."""
    return (
        F.max(F.when(F.col(KIND) == DELETE, F.col(AT))).alias("deleted"),
        F.max(F.when(F.col(KIND) == TRUNCATE, F.col(AT))).alias("truncated"),
    )


def cut_off(reduced: DataFrame, needed: Column, work: Work, facts: Facts, stack: ExitStack) -> Cut:
    """Begin to write what must be remembered of the batch, and join the deletes that are remembered.

    :param needed: whether a key's ``deleted`` must be remembered.
    """
    truncate = remembered.last_truncate(work, facts.truncated)
    deletes = reduced.where(needed).select(F.lit(DELETE).alias(KIND), KEY, F.col("deleted").alias(AT))
    learned = remembered.learn(deletes, facts.deletes, truncate, work, stack)
    keys = reduced.where(column(KEY, work.layout.keys[0].name).isNotNull())
    # With a truncate, deletes of keys that it has ended may be needed again: so none is skipped.
    since = facts.earliest if truncate is None else None
    truncated = None if truncate is None else literal(truncate, work.layout.sequence)
    learns = facts.deletes.rows > 0 or facts.truncated is not None
    barriers = remembered.barriers(keys, work, facts, since) if facts.keys else None
    if barriers is None:
        return Cut(keys.withColumn("barrier", F.col("deleted")), truncated, learned, learns)
    joined = keys.join(nearby(stack.enter_context(materialised(barriers)), facts), KEY, "left")
    return Cut(joined.withColumn("barrier", F.greatest("deleted", "barrier")), truncated, learned, learns)


def _write(cut: Cut, work: Work, facts: Facts, stack: ExitStack) -> int:
    """Write the batch into the target, in the one commit of its step; return how many stored rows have the
    sequence of the batch's upsert and other values, as far as that shows.
    """
    if not facts.keys and facts.truncated is None:
        work.target.commit_nothing(cut.learned())
        return 0
    target = look_at(work, facts)
    if target is None:
        return _merge(cut, work, facts)
    return _replace(target, cut, work.layout, facts, stack)


def look_at(work: Work, facts: Facts, since: Any = None) -> Opened | None:
    """Look at the target within the batch's range of keys; None if MERGE is needed.

    A truncate concerns all rows, so it needs MERGE. Of ``since`` see ``Target.looked_at``.
    """
    if facts.truncated is not None:
        return None
    first = work.layout.keys[0]
    bounds = within((first.name,), first, facts)
    return work.target.looked_at(bounds, first.name, facts.lowest, facts.highest, since)


def _replace(target: Opened, cut: Cut, layout: Layout, facts: Facts, stack: ExitStack) -> int:
    """Read the target's rows of the keys once; mark those that are replaced or end, and append newer ones.

    A batch that is newer than all of them replaces or ends each: they are not compared.
    """
    if facts.earliest is not None and target.all_below(facts.earliest, BOOKKEEPING, SEQUENCE):
        keys = cut.keys.select(*named(plain_key(layout, KEY)))
        search = partial(_all_of, target, keys, layout, facts)
        rows = _rows(cut.keys.where(_lives(cut)), layout, facts)
        if facts.keys <= BROADCAST_KEYS:
            target.replace_keys(layout.keys, keys, search, rows, cut.learned)
        else:
            target.replace(search(), rows, cut.learned)
        return 0
    living = _living(cut)
    upserts = living.where(F.col("latest").isNotNull())
    each = (F.count_if(F.col(FATE) == fate).alias(fate) for fate in (GOES, EQUAL, STANDS))
    fate_rows, numbers = stack.enter_context(
        measured(_fates(target, living, cut.truncated, layout, facts), *each)
    )
    fates = {fate for fate, number in numbers.asDict().items() if number}
    differing = 0
    if EQUAL in fates:
        broken = _ties_broken(target, living, fate_rows, layout, facts)
        fate_rows, ties = stack.enter_context(measured(broken, F.count_if(DIFFERS).alias(DIFFERS)))
        differing = ties[DIFFERS]
    if fates & {STANDS, EQUAL}:
        upserts = upserts.join(
            nearby(fate_rows.where(F.col(FATE) == STANDS).select(KEY), facts), KEY, "left_anti"
        )
    gone = fate_rows.where(F.col(FATE) == GOES) if fates & {GOES, EQUAL} else None
    target.replace(gone, _rows(upserts, layout, facts), cut.learned)
    return differing


def _all_of(target: Opened, keys: DataFrame, layout: Layout, facts: Facts) -> DataFrame:
    """Return the ``place`` of each row of some keys."""
    return met(target, nearby(keys, facts), layout).select(PLACE)


def _fates(
    target: Opened, living: DataFrame, truncated: Column | None, layout: Layout, facts: Facts
) -> DataFrame:
    """Return the fate of the target's rows of the keys: ``key``, ``place``, ``fate``.

    Only keys and sequences of the target are read.
    """
    key = plain_key(layout, KEY)
    changes = living.withColumns(key).select(*key, KEY, column("latest", AT).alias("change_at"), "barrier")
    stored_at, change_at = F.col("stored"), F.col("change_at")
    fate = (
        F.when(change_at.isNull(), F.when(dead(stored_at, F.col("barrier"), truncated), GOES))
        .when(change_at > stored_at, GOES)
        .when(change_at == stored_at, EQUAL)
        .otherwise(STANDS)
    )
    joined = met(target, nearby(changes, facts), layout, column(BOOKKEEPING, SEQUENCE).alias("stored"))
    return joined.select(KEY, PLACE, fate.alias(FATE)).where(F.col(FATE).isNotNull())


def _ties_broken(
    target: Opened, living: DataFrame, fate_rows: DataFrame, layout: Layout, facts: Facts
) -> DataFrame:
    """Decide on the rows with the same sequence as the batch's upsert: the larger one counts.

    Only these are read as whole rows.
    """
    tied = F.col(FATE) == EQUAL
    changes = living.join(nearby(fate_rows.where(tied).select(KEY), facts), KEY, "left_semi").select(
        KEY, column("latest", ROW).alias(ROW)
    )
    changes = nearby(changes.withColumns(plain_key(layout, KEY)), facts, BROADCAST_ROWS)
    change_row, stored = ordered(F.col(ROW), layout.stored), F.col("stored")
    broken = met(target, changes, layout, _row_of_target(layout).alias("stored")).select(
        KEY,
        PLACE,
        F.when(change_row > stored, GOES).otherwise(STANDS).alias(FATE),
        (change_row != stored).alias(DIFFERS),
    )
    return fate_rows.where(~tied).withColumn(DIFFERS, F.lit(False)).unionByName(broken)


def _merge(cut: Cut, work: Work, facts: Facts) -> int:
    """Write the batch by MERGE, which cannot carry what is to be remembered: that is committed before.

    MERGE does not say how many rows tied either: they are counted before, see :func:`_write`.
    """
    layout, source, at = work.layout, _living(cut), column(CHANGE, "latest", AT)
    differing = _stored_ties(source.where(F.col("latest").isNotNull()), work, facts) if facts.keys else 0
    larger = ordered(column(CHANGE, "latest", ROW), layout.stored) > _row_of_target(layout, TARGET)
    newer = (at > target_at()) | ((at == target_at()) & larger)
    has_upsert, values = column(CHANGE, "latest").isNotNull(), assigned(_stored(layout, CHANGE))
    with merged_into(work, source, same_key(layout, facts), cut) as merge:
        builder = merge.whenMatchedUpdate(has_upsert & newer, values)
        builder = builder.whenMatchedDelete(
            ~has_upsert & dead(target_at(), column(CHANGE, "barrier"), cut.truncated)
        )
        builder = builder.whenNotMatchedInsert(has_upsert, values)
        if facts.truncated is not None and cut.truncated is not None:
            builder = builder.whenNotMatchedBySourceDelete(cut.truncated > target_at())
        builder.execute()
    return differing


def _stored_ties(upserts: DataFrame, work: Work, facts: Facts) -> int:
    """Return how many rows of the target have the sequence of their key's upsert and other values.

    Whole rows are read only if some have the sequence, and nothing if statistics say that all are older.
    """
    layout, first, target = work.layout, work.layout.keys[0], work.target
    earliest = facts.earliest
    if earliest is not None and target.all_below(earliest, BOOKKEEPING, SEQUENCE, target.files):
        return 0
    table = table_at(upserts.sparkSession, target.path).toDF()
    rows = table.where(within((first.name,), first, facts))
    changes, key = upserts.withColumns(plain_key(layout, KEY)), plain_key(layout)

    def tied(most: int, stored_row: Column, change_row: Column) -> DataFrame:
        stored = rows.select(
            *named(key), column(BOOKKEEPING, SEQUENCE).alias("stored_at"), stored_row.alias("stored")
        )
        other = changes.select(*key, column("latest", AT).alias(AT), change_row.alias(ROW))
        return stored.join(nearby(other, facts, most), list(key)).where(F.col("stored_at") == F.col(AT))

    nothing = F.lit(None)
    if tied(BROADCAST_KEYS, nothing, nothing).isEmpty():
        return 0
    both = tied(BROADCAST_ROWS, _row_of_target(layout), ordered(column("latest", ROW), layout.stored))
    return both.where(F.col(ROW) != F.col("stored")).count()


@contextmanager
def merged_into(work: Work, source: DataFrame, same: Column, cut: Cut) -> Iterator[DeltaMergeBuilder]:
    """Yield a MERGE of a batch into its target, whose one commit has the step.

    What the batch remembers is committed before.
    """
    if cut.learns:
        work.target.commit_remembered(cut.learned())
    step = work.target.step
    assert step is not None, "it was opened for a batch"
    with merging(source.sparkSession, step.query_id, step.batch_id):
        target = table_at(source.sparkSession, work.target.path).alias(TARGET)
        yield target.merge(source.alias(CHANGE), same)


def same_key(layout: Layout, facts: Facts) -> Column:
    """Return the condition of the MERGE; without a truncate, it is limited to the batch's range of keys."""
    pairs = [column(TARGET, field.name) == column(CHANGE, KEY, field.name) for field in layout.keys]
    bounds = (
        [] if facts.truncated is not None else [within((TARGET, layout.keys[0].name), layout.keys[0], facts)]
    )
    return all_of([*pairs, *bounds])


@once
def target_at() -> Column:
    """Return the sequence of a row of the target."""
    return column(TARGET, BOOKKEEPING, SEQUENCE)


def dead(at: Column, barrier: Column, truncated: Column | None) -> Column:
    """Return whether a sequence is ended by a delete at it or later, or by a later truncate."""
    ended = F.coalesce(at <= barrier, F.lit(False))
    return ended if truncated is None else ended | (at < truncated)


def _living(cut: Cut) -> DataFrame:
    """Remove upserts that a delete or a truncate ends, and keys without anything left."""
    living = cut.keys.withColumn("latest", F.when(_lives(cut), F.col("latest")))
    return living.where(F.col("latest").isNotNull() | F.col("barrier").isNotNull()).select(
        KEY, "latest", "barrier"
    )


def _lives(cut: Cut) -> Column:
    """Return whether a key has an upsert that no delete and no truncate ends."""
    return F.col("latest").isNotNull() & ~dead(column("latest", AT), F.col("barrier"), cut.truncated)


def _stored(layout: Layout, *side: str) -> dict[str, Column]:
    """Return the target's columns, read from the newest upsert of a key."""
    stored = {field.name: column(*side, "latest", ROW, field.name) for field in layout.stored.fields}
    return {**stored, BOOKKEEPING: F.struct(column(*side, "latest", AT).alias(SEQUENCE))}


@once
def _values(layout: Layout) -> tuple[Column, ...]:
    return named(_stored(layout))


def _rows(upserts: DataFrame, layout: Layout, facts: Facts) -> DataFrame:
    """Return the target's rows of keys' newest upserts, in no more files than they need."""
    rows = upserts.select(*_values(layout))
    return rows.coalesce(1 + facts.keys // A_TASK)


def _row_of_target(layout: Layout, *side: str) -> Column:
    """Return the target's row as :func:`ordered` makes it comparable, column by column: of a struct made of
    columns each field would hold it whole.
    """
    fields = layout.stored.fields
    return F.struct(*[ordered(column(*side, one.name), one.dataType).alias(one.name) for one in fields])
