"""SCD type 1: the newest row of each key. One row a key out of the batch, one MERGE into the target."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streamkeeper.cdc import BOOKKEEPING
from streamkeeper_jobs.cdc import tombstones
from streamkeeper_jobs.cdc.columns import SEQUENCE, Layout
from streamkeeper_jobs.cdc.commits import append, merging, table_at
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
    facts_of,
    materialised,
    nearby,
    unusable_of_group,
    within,
)
from streamkeeper_jobs.cdc.expressions import all_of, column, orderable, ordered, quoted

TARGET, CHANGE = "target", "change"
"""The two sides of a MERGE."""


@dataclass(frozen=True)
class Cut:
    """A batch's keys with all that ends rows of them: column ``barrier``, the last delete; and the table's last truncate."""

    keys: DataFrame
    truncated: Column | None


def apply_newest(changes: DataFrame, work: Work) -> None:
    """Apply the changes of one batch to an SCD type 1 target, its tombstones first."""
    with ExitStack() as kept:
        reduced = kept.enter_context(materialised(reduce(changes, work.layout)))
        facts = facts_of(reduced, work.layout)
        cut = cut_off(reduced, _deaths(reduced, facts), work, facts, kept)
        if cut is not None:
            merge(cut, work, facts)


def reduce(changes: DataFrame, layout: Layout) -> DataFrame:
    """Give one row a key: ``deleted`` and ``truncated``, the highest such sequences, and ``latest``: sequence and row of its newest upsert.

    Of several upserts at one sequence the one with the larger row is taken, columns compared in order: no order of arrival plays a part.
    """
    candidate = F.when(F.col(KIND) == UPSERT, F.struct(AT, ROW))
    if orderable(layout.stored):
        latest = F.max(candidate)
    else:
        latest = F.max_by(F.struct(AT, ROW), F.when(F.col(KIND) == UPSERT, F.struct(AT, ordered(F.col(ROW), layout.stored))))
    return changes.groupBy(KEY).agg(*marks(), latest.alias("latest"), *unusable_of_group())


def marks() -> tuple[Column, Column]:
    """Give the two aggregates over a key's deletes and truncates."""
    return (
        F.max(F.when(F.col(KIND) == DELETE, F.col(AT))).alias("deleted"),
        F.max(F.when(F.col(KIND) == TRUNCATE, F.col(AT))).alias("truncated"),
    )


def cut_off(reduced: DataFrame, deaths: DataFrame, work: Work, facts: Facts, kept: ExitStack) -> Cut | None:
    """Remember the batch's deletes and truncates, and join the deletes that are remembered from earlier.

    None where the generation is sealed: nothing may be written any more.
    """
    stored = tombstones.read(reduced.sparkSession, work.tables)
    if (facts.deletes or facts.truncated is not None) and not tombstones.remember(deaths, work):
        return None
    keys = reduced.where(column(KEY, work.layout.keys[0].name).isNotNull())
    truncated = tombstones.later(facts.truncated, tombstones.last_truncate(stored, work.layout), work.layout)
    if not (stored.deletes and facts.keys):
        return Cut(keys.withColumn("barrier", F.col("deleted")), truncated)
    earlier = kept.enter_context(materialised(tombstones.barriers(stored.rows, keys, work.layout, facts)))
    joined = keys.join(nearby(earlier, facts), KEY, "left")
    return Cut(joined.withColumn("barrier", F.greatest("deleted", "barrier")), truncated)


def merge(cut: Cut, work: Work, facts: Facts) -> None:
    """Write the batch into the target, in the one commit of its step."""
    if not facts.keys and facts.truncated is None:
        commit_nothing(cut.keys.sparkSession, work)
        return
    layout, source, at = work.layout, _living(cut), column(CHANGE, "latest", AT)
    larger = ordered(column(CHANGE, "latest", ROW), layout.stored) > ordered(_row_of_target(layout), layout.stored)
    newer = (at > target_at()) | ((at == target_at()) & larger)
    there = column(CHANGE, "latest").isNotNull()
    with merging(source.sparkSession, work.step.query_id, work.step.batch_id):
        builder = table_at(source.sparkSession, work.tables.target).alias(TARGET).merge(source.alias(CHANGE), same_key(layout, facts))
        builder = builder.whenMatchedUpdate(there & newer, _values(layout))
        builder = builder.whenMatchedDelete(~there & dead(target_at(), column(CHANGE, "barrier"), cut.truncated))
        builder = builder.whenNotMatchedInsert(there, _values(layout))
        if facts.truncated is not None and cut.truncated is not None:
            builder = builder.whenNotMatchedBySourceDelete(cut.truncated > target_at())
        builder.execute()


def commit_nothing(session: SparkSession, work: Work) -> None:
    """Commit a batch that changes nothing: its step belongs in the target all the same."""
    nothing = session.createDataFrame([], table_at(session, work.tables.target).toDF().schema)
    append(nothing, work.tables.target, work.step.query_id, work.step.batch_id)


def same_key(layout: Layout, facts: Facts) -> Column:
    """Give the condition of the MERGE. A batch without a truncate never looks outside of its own range of keys."""
    pairs = [column(TARGET, field.name) == column(CHANGE, KEY, field.name) for field in layout.keys]
    bounds = [] if facts.truncated is not None else [within((TARGET, layout.keys[0].name), layout.keys[0], facts)]
    return all_of([*pairs, *bounds])


def target_at() -> Column:
    """Give the sequence that a row of the target comes from."""
    return column(TARGET, BOOKKEEPING, SEQUENCE)


def dead(at: Column, barrier: Column, truncated: Column | None) -> Column:
    """Say whether something of a sequence is ended by a delete at the same or a later one, or by a truncate at a later one."""
    ended = F.coalesce(at <= barrier, F.lit(False))
    return ended if truncated is None else ended | (at < truncated)


def _deaths(reduced: DataFrame, facts: Facts) -> DataFrame:
    """Give the batch's deletes, one a key, and its last truncate, as tombstones.

    A delete before the key's newest upsert is not needed: who comes later and is older than it is older than that upsert, too.
    """
    needed = F.col("deleted").isNotNull() & (F.col("latest").isNull() | (F.col("deleted") >= column("latest", AT)))
    deletes = reduced.where(needed).select(F.lit(DELETE).alias(KIND), KEY, F.col("deleted").alias(AT))
    return with_last_truncate(deletes, reduced, facts)


def with_last_truncate(deletes: DataFrame, reduced: DataFrame, facts: Facts) -> DataFrame:
    """Give a batch's tombstones: its deletes, and its last truncate if it has one."""
    if facts.truncated is None:
        return deletes
    last = reduced.agg(F.max("truncated").alias(AT)).where(F.col(AT).isNotNull())
    nobody = F.lit(None).cast(reduced.schema[KEY].dataType)
    return deletes.unionByName(last.select(F.lit(TRUNCATE).alias(KIND), nobody.alias(KEY), AT))


def _living(cut: Cut) -> DataFrame:
    """Take away the upserts that a delete or a truncate ends, and the keys that nothing is left to say of."""
    ended = dead(column("latest", AT), F.col("barrier"), cut.truncated)
    living = cut.keys.withColumn("latest", F.when(~ended, F.col("latest")))
    return living.where(F.col("latest").isNotNull() | F.col("barrier").isNotNull()).select(KEY, "latest", "barrier")


def _values(layout: Layout) -> dict[str, str | Column]:
    """Give what each column of the target is set to."""
    stored: dict[str, str | Column] = {quoted(field.name): column(CHANGE, "latest", ROW, field.name) for field in layout.stored.fields}
    return {**stored, quoted(BOOKKEEPING): F.struct(column(CHANGE, "latest", AT).alias(SEQUENCE))}


def _row_of_target(layout: Layout) -> Column:
    return F.struct(*[column(TARGET, field.name).alias(field.name) for field in layout.stored.fields])
