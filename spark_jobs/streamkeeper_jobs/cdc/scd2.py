"""SCD type 2: the versions of each key, computed again from all changes of the batch's keys; or continued
from the open version of each, if the batch is newer than all that is known of its keys.

Mostly each change makes a version of its own: then the open versions end where these begin, and nothing is
sorted or sent by key but the batch. Changes that one version shows are told by a window over both.

A version that comes from one change is that change. A version of several changes shows only part of them:
these are remembered beside the rows, as deletes are. (With ``ignore_null_updates`` a version is filled from
earlier ones, so every change is remembered.)
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from streamkeeper.declare.cdc_spec import BOOKKEEPING, END_AT, START_AT, CdcSpec
from streamkeeper_jobs.cdc import remembered
from streamkeeper_jobs.cdc.columns import SEQUENCE, Layout
from streamkeeper_jobs.cdc.events import (
    AT,
    DELETE,
    DIFFERS,
    JOINS,
    KEY,
    KIND,
    ROW,
    TIED,
    UNUSABLE,
    UPSERT,
    Facts,
    Ties,
    Work,
    bounds_in,
    bounds_of,
    facts_of,
    nearby,
    unusable_of_group,
    within,
)
from streamkeeper_jobs.cdc.expressions import bounded, by_reference, literal, orderable, ordered
from streamkeeper_jobs.cdc.replace_rows import PLACE, Opened
from streamkeeper_jobs.cdc.scd1 import (
    A_TASK,
    CHANGE,
    TARGET,
    Cut,
    look_at,
    merged_into,
    met,
    plain_key,
    same_key,
    whole_key,
)
from streamkeeper_jobs.cdc.values import Value, merged, together, values_of
from streamkeeper_jobs.spark.delta_commit import assigned, table_at
from streamkeeper_jobs.spark.frames import column, materialised, measured, named, once

LATE = "late"
"""Whether a version is not older than all changes that the batch has of its key."""

NEXT, BEGINS, DIGEST = "next", "begins", "digest"
"""Columns of a change: the sequence of what follows; whether nothing of the batch comes before it; and a
number that rows have alike which one version may show.
"""

KNOWN, SHOWN, GUESSED = 3, 2, 1
"""Certainty of a change.

The change itself; what a version of several changes shows of its first and last; that a version ended
somehow. The lesser two count only if the change itself is forgotten.
"""


def apply_history(changes: DataFrame, spec: CdcSpec, work: Work) -> Ties:
    """Apply the changes of one batch to an SCD type 2 target; return its ties."""
    layout = work.layout
    with ExitStack() as stack:
        at = F.col(AT) if bounded(layout.sequence) else None
        deleted = F.col("deleted").isNotNull()
        reduced, facts = stack.enter_context(facts_of(reduce(changes, spec, layout), layout, deleted, at))
        if not facts.keys:
            work.target.commit_nothing(work.target.remembered)
            return Ties()
        if at is not None and not remembered.reaches(work, facts, facts.earliest):
            near = look_at(work, facts, facts.earliest)
            if near is not None and _continue(reduced, near, spec, work, facts, stack):
                return facts.ties
        target = look_at(work, facts)
        keys = nearby(reduced.select(KEY).distinct(), facts)
        present = stack.enter_context(materialised(_present(keys, target, work, facts)))
        all_changes = _all_changes(reduced, remembered.changes_of(keys, work, facts), present, spec)
        timeline = stack.enter_context(
            materialised(_timeline(_one_each(all_changes, spec, layout), spec, layout))
        )
        bounds = bounds_of(layout, F.lit(True), F.col(AT))
        hidden, aggregated = stack.enter_context(measured(_hidden(reduced, timeline, spec), *bounds))
        learned = remembered.learn(hidden, bounds_in(aggregated), None, work, stack)
        differing = stack.enter_context(materialised(_differing(_versions(timeline), present, layout)))
        if target is None:
            cut = Cut(differing, None, learned, aggregated["bounded"] > 0)
            _merge(differing, cut, work, facts)
        else:
            versions = _rows(differing.where(~F.col("obsolete")), layout, facts)
            target.replace(differing.where(F.col(PLACE).isNotNull()), versions, learned)
        return facts.ties


def reduce(changes: DataFrame, spec: CdcSpec, layout: Layout) -> DataFrame:
    """Return one row for each key and sequence, with the columns of :func:`plain_key`, ``next``, ``begins``
    and ``digest``.

    ``deleted`` is the sequence if one of its changes is a delete, which is ``tied`` if another is none; else
    ``row`` is the upsert's row, which ``differs`` if others are there. One that ``joins`` may be shown by one
    version with the change before it.
    """
    key = plain_key(layout, KEY)
    # Brought together by key alone: so they are sorted once, for the windows, too.
    grouped = changes.withColumns(key).repartition(*key).groupBy(*key, AT)
    single = grouped.agg(*_aggregates(spec, layout)).select(*key, *_reduced(layout))
    return single.select("*", *_neighbours(spec, layout))


@once
def _aggregates(spec: CdcSpec, layout: Layout) -> tuple[Column, ...]:
    deleted = F.max(F.when(F.col(KIND) == DELETE, F.col(AT)))
    if spec.ignore_null_updates:
        row = F.when(F.count(ROW) > 0, merged(layout.stored.fields, lambda value: value.in_row(ROW)))
    else:
        row = _largest_row(F.col(ROW), layout)
    return (
        deleted.alias("deleted"),
        row.alias(ROW),
        _differs(spec, layout).alias(DIFFERS),
        *unusable_of_group(),
    )


def _differs(spec: CdcSpec, layout: Layout) -> Column:
    """Return the aggregate whether rows of one key and sequence differ: those whose nulls are ignored are
    put together.
    """
    value = F.xxhash64(ordered(F.col(ROW), layout.stored))
    lowest, highest = (aggregate(F.when(F.col(KIND) == UPSERT, value)) for aggregate in (F.min, F.max))
    return F.lit(False) if spec.ignore_null_updates else lowest != highest


@once
def _reduced(layout: Layout) -> tuple[Column, ...]:
    return (
        whole_key(layout).alias(KEY),
        F.col(AT),
        F.col("deleted"),
        F.when(F.col("deleted").isNull(), F.col(ROW)).alias(ROW),
        (F.col("deleted").isNotNull() & F.col(ROW).isNotNull()).alias(TIED),
        F.col(DIFFERS),
        F.lit(None).cast(layout.sequence).alias("truncated"),
        F.col(UNUSABLE),
        F.col("rows_unusable"),
    )


@once
def _neighbours(spec: CdcSpec, layout: Layout) -> tuple[Column, ...]:
    by_at, upsert = _by_at(layout), F.col("deleted").isNull()
    digest = F.when(upsert, _digest(spec, layout))
    joins = upsert if spec.ignore_null_updates else upsert & (F.lag(digest).over(by_at) == digest)
    return (
        F.lead(AT).over(by_at).alias(NEXT),
        F.lag(AT).over(by_at).isNull().alias(BEGINS),
        digest.alias(DIGEST),
        joins.alias(JOINS),
    )


@once
def _digest(spec: CdcSpec, layout: Layout) -> Column:
    """Return a number that rows have alike if their tracked columns are equal.

    Delta has no columns of another collation, of which equal texts may differ in their bytes.
    """
    hashed = [field for field in layout.stored.fields if _tracks(spec, field.name)]
    values = [ordered(column(ROW, field.name), field.dataType) for field in hashed]
    return F.xxhash64(F.lit(0), *values)


def _near(reduced: DataFrame, target: Opened, layout: Layout, facts: Facts) -> DataFrame:
    """Return the versions of the batch's keys that have no end, with columns as :func:`_present` gives them,
    and of the key's ``first`` change its sequence and ``digest``.

    And those that are ``late``: not older than all that the batch has of their key.
    """
    # Most versions of a long history ended before all of the batch: they are left aside before the join.
    earliest = by_reference(literal(facts.earliest, layout.sequence), column(START_AT))
    near = replace(target, rows=target.rows.where(column(END_AT).isNull() | (column(END_AT) >= earliest)))
    first = reduced.where(BEGINS).select(*plain_key(layout), F.col(AT).alias("first"), DIGEST)
    late = F.greatest("last", "end") >= F.col("first")
    versions = met(near, nearby(first, facts), layout, *_of_version(layout)).withColumn(LATE, late)
    return versions.where(F.col("end").isNull() | F.col(LATE))


def _continue(  # noqa: PLR0917 - one caller
    reduced: DataFrame, target: Opened, spec: CdcSpec, work: Work, facts: Facts, stack: ExitStack
) -> bool:
    """Apply a batch that follows upon the open version of each of its keys, and return True.

    Each of these changes: it ends, or shows one change more. Return False, with nothing applied, if some
    version is late.
    """
    layout = work.layout
    key, (of_version, of_change) = plain_key(layout), _points(spec, layout)
    before = _near(reduced, target, layout, facts)
    if not facts.joins:
        same = F.count_if(F.col(DIGEST) == _digest(spec, layout)).alias(JOINS)
        before, aggregated = stack.enter_context(measured(before, F.count_if(LATE).alias(LATE), same))
        if aggregated[LATE]:
            return False
        if not aggregated[JOINS]:
            learned = remembered.learn(_deletes(reduced), facts.deletes, None, work, stack)
            target.replace(before, _rows(_each_its_own(before, reduced), layout, facts), learned)
            return True
    # Brought together by key, as the changes are already: so these are not sent again.
    both = before.repartition(*key).select(*of_version).unionByName(reduced.select(*of_change))
    must_be_remembered = F.col("new") if spec.ignore_null_updates else F.col("deletes") | _merged()
    bounds = bounds_of(layout, must_be_remembered, F.col(AT))
    timeline, aggregated = stack.enter_context(
        measured(_timeline(both, spec, layout), *bounds, F.count_if(LATE).alias(LATE))
    )
    if aggregated[LATE]:
        return False
    learned = remembered.learn(_hidden(reduced, timeline, spec), bounds_in(aggregated), None, work, stack)
    present = timeline.where(F.col(PLACE).isNotNull())
    target.replace(present, _rows(_versions(timeline), layout, facts), learned)
    return True


def _each_its_own(before: DataFrame, reduced: DataFrame) -> DataFrame:
    """Return versions as :func:`_versions` does, of changes that each make one.

    :param before: the version that each key had, which its ``first`` change ends.
    """
    ended = before.select(KEY, "start", F.col("first").alias("end"), "last", ROW)
    upserts = reduced.where(F.col("deleted").isNull())
    return ended.unionByName(
        upserts.select(KEY, F.col(AT).alias("start"), F.col(NEXT).alias("end"), F.col(AT).alias("last"), ROW)
    )


@once
def _points(spec: CdcSpec, layout: Layout) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Return the columns of a timeline's points: of an open version, and of a change."""
    key, no, yes = tuple(plain_key(layout)), F.lit(False), F.lit(True)
    single = F.lit(not spec.ignore_null_updates) & (F.col("last") == F.col("start"))
    names = (*key, KEY, AT, "start", "deletes", ROW, "fresh", "new", LATE, PLACE)

    def point(columns: dict[str, Column]) -> tuple[Column, ...]:
        return tuple(columns.get(name, F.col(name)).alias(name) for name in names)

    changes = {"deletes": F.col("deleted").isNotNull(), "fresh": yes, "new": yes, LATE: no}
    return (
        point({AT: F.col("last"), "deletes": no, "fresh": single, "new": no}),
        point({**changes, "start": F.col(AT), PLACE: F.lit(None)}),
    )


def _present(keys: DataFrame, target: Opened | None, work: Work, facts: Facts) -> DataFrame:
    """Return the target's versions of some keys.

    Columns: ``key``, ``start``, ``end``, ``last``, ``row``, ``place`` (null for MERGE).
    """
    columns = _of_version(work.layout)
    if target is not None:
        versions = target.placed(*columns)
    else:
        bounds = within((work.layout.keys[0].name,), work.layout.keys[0], facts)
        versions = (
            table_at(keys.sparkSession, work.target.path)
            .toDF()
            .where(bounds)
            .select(*columns, F.lit(None).alias(PLACE))
        )
    return versions.join(keys, KEY, "left_semi")


@once
def _of_version(layout: Layout) -> tuple[Column, ...]:
    return (
        F.struct(*[column(field.name).alias(field.name) for field in layout.keys]).alias(KEY),
        column(START_AT).alias("start"),
        column(END_AT).alias("end"),
        column(BOOKKEEPING, SEQUENCE).alias("last"),
        F.struct(*[column(field.name).alias(field.name) for field in layout.stored.fields]).alias(ROW),
    )


def _all_changes(
    reduced: DataFrame, remembered_changes: DataFrame | None, present: DataFrame, spec: CdcSpec
) -> DataFrame:
    """Return all known changes of the keys.

    Columns: ``key``, ``sequence``, ``deletes``, ``row``, ``sure``, ``fresh`` (not remembered yet).

    :param remembered_changes: the remembered changes, if there may be any.
    """

    def facts(frame: DataFrame, at: str, deletes: Column, sure: Column, *, fresh: bool) -> DataFrame:
        row, new = F.when(~deletes, F.col(ROW)), F.lit(fresh)
        return frame.select(
            KEY,
            F.col(at).alias(AT),
            deletes.alias("deletes"),
            row.alias(ROW),
            sure.alias("sure"),
            new.alias("fresh"),
        )

    upsert, shown = F.lit(False), F.lit(SHOWN)
    single = F.when(
        F.col("last") == F.col("start"), F.lit(SHOWN if spec.ignore_null_updates else KNOWN)
    ).otherwise(shown)
    parts = (
        facts(reduced, AT, F.col("deleted").isNotNull(), F.lit(KNOWN), fresh=True),
        *(
            [facts(remembered_changes, AT, F.col(KIND) == DELETE, F.lit(KNOWN), fresh=False)]
            if remembered_changes is not None
            else []
        ),
        facts(present, "start", upsert, single, fresh=True),
        facts(present.where(F.col("last") != F.col("start")), "last", upsert, shown, fresh=True),
        facts(present.where(F.col("end").isNotNull()), "end", F.lit(True), F.lit(GUESSED), fresh=False),
    )
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _one_each(all_changes: DataFrame, spec: CdcSpec, layout: Layout) -> DataFrame:
    """Return one change for each key and sequence, with the columns of :func:`plain_key`.

    The most certain one counts, a delete before an upsert, the larger row (or values).
    """
    deletes = F.max(F.struct("sure", "deletes")).getField("deletes")
    surest = F.max("sure")
    if spec.ignore_null_updates:

        def at_best(sure: int) -> Column:
            return merged(
                layout.stored.fields, lambda value: F.when(F.col("sure") == sure, value.in_row(ROW))
            )

        row = F.when(surest == KNOWN, at_best(KNOWN)).otherwise(at_best(SHOWN))
    else:
        row = F.when(
            surest == KNOWN, _largest_row(F.when(F.col("sure") == KNOWN, F.col(ROW)), layout)
        ).otherwise(_largest_row(F.when(F.col("sure") == SHOWN, F.col(ROW)), layout))
    fresh = F.max(F.col("fresh") & (F.col("sure") == KNOWN))
    key = plain_key(layout, KEY)
    single = (
        all_changes.withColumns(key)
        .repartition(*key)
        .groupBy(*key, AT)
        .agg(deletes.alias("deletes"), F.when(~deletes, row).alias(ROW), fresh.alias("fresh"))
    )
    return single.withColumns({KEY: whole_key(layout), "start": F.col(AT)})


@once
def _by_at(layout: Layout) -> WindowSpec:
    return Window.partitionBy(*plain_key(layout)).orderBy(AT)


def _timeline(single: DataFrame, spec: CdcSpec, layout: Layout) -> DataFrame:
    """Tell each key's versions.

    Upserts shown as one have the same ``start``; ``newest`` is the last of them, ``alone`` the only one.
    ``next`` is the sequence of what follows. A change's ``start`` is given as where a version begins that
    begins with it.
    """
    filled = _filled(single, layout) if spec.ignore_null_updates else single
    followed, version_columns = _timeline_columns(spec, layout)
    return filled.select("*", *followed).withColumns(version_columns)


@once
def _timeline_columns(spec: CdcSpec, layout: Layout) -> tuple[tuple[Column, Column], dict[str, Column]]:
    """Return the columns that tell versions, in two steps."""
    by_at = _by_at(layout)
    compared = [field for field in layout.stored.fields if _tracks(spec, field.name)]
    tracked = F.struct(
        *[ordered(column(ROW, field.name), field.dataType).alias(field.name) for field in compared]
    )
    before = F.lag(F.struct(F.col("deletes"), tracked.alias("tracked"))).over(by_at)
    goes_on = (
        ~F.col("deletes")
        & before.isNotNull()
        & ~before.getField("deletes")
        & before.getField("tracked").eqNullSafe(tracked)
    )
    start = F.last(F.when(~F.col("goes_on"), F.col("start")), ignorenulls=True).over(by_at)
    newest = ~F.coalesce(F.lead("goes_on").over(by_at), F.lit(False))
    alone = ~F.col("goes_on") & newest
    followed = (F.lead(AT).over(by_at).alias(NEXT), goes_on.alias("goes_on"))
    return followed, {"start": start, "newest": newest, "alone": alone}


def _filled(single: DataFrame, layout: Layout) -> DataFrame:
    """Fill each null value with the newest earlier one since the last delete."""
    deletes_before = F.sum(F.col("deletes").cast("int")).over(_by_at(layout))
    since = single.withColumn("deletes_before", deletes_before)
    earlier = (
        Window.partitionBy(*plain_key(layout), "deletes_before")
        .orderBy(AT)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )

    def fill(value: Value) -> Column:
        return F.last(value.in_row(ROW), ignorenulls=True).over(earlier)

    row = F.struct(
        *together(
            layout.stored.fields, {value.path: fill(value) for value in values_of(layout.stored.fields)}
        )
    )
    return since.withColumn(ROW, F.when(~F.col("deletes"), row)).drop("deletes_before")


def _hidden(reduced: DataFrame, timeline: DataFrame, spec: CdcSpec) -> DataFrame:
    """Return what the target will not show: what must be remembered."""
    if spec.ignore_null_updates:
        kind = F.when(F.col("deleted").isNotNull(), DELETE).otherwise(UPSERT).alias(KIND)
        return reduced.select(kind, KEY, AT, ROW)
    taken_together = timeline.where(_merged())
    return _deletes(reduced).unionByName(taken_together.select(F.lit(UPSERT).alias(KIND), KEY, AT, ROW))


def _deletes(reduced: DataFrame) -> DataFrame:
    deletes = reduced.where(F.col("deleted").isNotNull())
    return deletes.select(F.lit(DELETE).alias(KIND), KEY, AT, ROW)


@once
def _merged() -> Column:
    """Return whether a change of the timeline is shown with others as one, and not remembered yet."""
    return ~F.col("deletes") & F.col("fresh") & ~F.col("alone")


def _versions(timeline: DataFrame) -> DataFrame:
    """Return the versions that the target must have: ``key``, ``start``, ``end``, ``last``, ``row``."""
    newest = timeline.where(~F.col("deletes") & F.col("newest"))
    return newest.select(KEY, "start", F.col(NEXT).alias("end"), F.col(AT).alias("last"), ROW)


def _differing(expected: DataFrame, present: DataFrame, layout: Layout) -> DataFrame:
    """Return the versions that the target lacks, and those that must be removed: ``obsolete``."""

    def looks(side: str) -> Column:
        return F.struct(column(side, "end"), column(side, "last"), ordered(column(side, ROW), layout.stored))

    one, other = expected.alias("expected"), present.alias("present")
    same = (column("expected", KEY) == column("present", KEY)) & (
        column("expected", "start") == column("present", "start")
    )
    obsolete = column("expected", KEY).isNull()
    differs = obsolete | column("present", KEY).isNull() | ~looks("expected").eqNullSafe(looks("present"))
    return (
        one.join(other, same, "full_outer")
        .where(differs)
        .select(
            *[
                F.coalesce(column("expected", name), column("present", name)).alias(name)
                for name in (KEY, "start")
            ],
            *[column("expected", name).alias(name) for name in ("end", "last", ROW)],
            obsolete.alias("obsolete"),
            column("present", PLACE).alias(PLACE),
        )
    )


def _merge(differing: DataFrame, cut: Cut, work: Work, facts: Facts) -> None:
    """Write the differences into the target, in the one commit of its step."""
    layout = work.layout
    same = same_key(layout, facts) & (column(TARGET, START_AT) == column(CHANGE, "start"))
    obsolete = column(CHANGE, "obsolete")
    with merged_into(work, differing, same, cut) as builder:
        version = assigned(_stored(layout, CHANGE))
        builder.whenMatchedDelete(obsolete).whenMatchedUpdate(~obsolete, version).whenNotMatchedInsert(
            ~obsolete, version
        ).execute()


def _stored(layout: Layout, *side: str) -> dict[str, Column]:
    """Return the target's columns, read from a version."""
    return {
        **{field.name: column(*side, ROW, field.name) for field in layout.stored.fields},
        START_AT: column(*side, "start"),
        END_AT: column(*side, "end"),
        BOOKKEEPING: F.struct(column(*side, "last").alias(SEQUENCE)),
    }


@once
def _values(layout: Layout) -> tuple[Column, ...]:
    return named(_stored(layout))


def _rows(versions: DataFrame, layout: Layout, facts: Facts) -> DataFrame:
    """Return the target's rows of versions, in no more files than they need.

    Many versions that have ended are in files of their own: later batches, and readers of the present, leave
    these aside by their statistics.
    """
    rows = versions.select(*_values(layout))
    files = 1 + facts.keys // A_TASK
    if files == 1:
        return rows.coalesce(1)
    ended = column(END_AT).isNotNull()
    each = files // 2
    return rows.where(ended).coalesce(each).unionByName(rows.where(~ended).coalesce(each))


def _largest_row(row: Column, layout: Layout) -> Column:
    return F.max(row) if orderable(layout.stored) else F.max_by(row, ordered(row, layout.stored))


def _tracks(spec: CdcSpec, name: str) -> bool:
    if spec.track_history_column_list is not None:
        return name.lower() in {one.lower() for one in spec.track_history_column_list}
    return name.lower() not in {one.lower() for one in spec.track_history_except_column_list or ()}
