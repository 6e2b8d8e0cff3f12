"""What two declarations of a flow differ in, beside the query's plan and the code of its functions.

Whatever differs is noted, unless it is known to change no row. So is what comes to the language later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.driver import CATALOG
from streamkeeper.declare.model import (
    FILE_SINKS,
    AutoCdcFlow,
    Expectation,
    GivenState,
    Location,
    Source,
    Table,
    View,
)
from streamkeeper.declare.source_options import TOPICS
from streamkeeper.manifest.manifest import Flow

_LIMITS = (
    "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger",
    "maxtriggerdelay", "minpartitions", "maxrecordsperpartition", "maxcachedfiles",
    "discardcachedinputratio", "fetchoffset.numretries", "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
)  # fmt: skip
"""Options of sources that say how much and how fast, and not what is read."""
_RESOURCES = (
    PARTITIONS, CATALOG, "spark.sql.streaming.minBatchesToRetain", "spark.cores.max", "spark.driver.cores",
    "spark.driver.memory", "spark.driver.memoryOverhead", "spark.executor.cores",
    "spark.executor.instances", "spark.executor.memory", "spark.executor.memoryOverhead",
)  # fmt: skip
"""Settings that say where and how fast a query runs. What pins the number of partitions is told elsewhere."""
_NOT_OF_ROWS = (
    *("name", "location", "keys", "function", "code", "existing_rows"),
    *("registered_as", "column_comments", "asset_every"),
)
"""Fields of a table that say nothing of its rows."""
_SAME_ROWS = (
    "name",
    "location",
    "function",
    "code",
    "trigger",
    "on_failure",
    "park_after",
    "on_change",
    "spark_conf",
)
"""Fields of flows and views that change no row, or are compared elsewhere."""
_PLACES = ("format", "path", "table", "registered_as", "options")
"""Fields of sources that are compared elsewhere."""


def differences(before: Flow, now: Flow, pinned: Collection[str]) -> Iterator[str]:
    """Yield what is declared otherwise and may change rows, each as a sentence.

    :param pinned: settings that the checkpoint keeps, whatever is declared.
    """
    yield from _of_flow(before, now)
    yield from _of_settings(before.declaration.spark_conf, now.declaration.spark_conf, pinned)
    had = {item.name: item for item in before.pipeline.inputs(before.declaration)}
    for item in now.pipeline.inputs(now.declaration):
        old = had.get(item.name)
        if isinstance(item, Source) and isinstance(old, Source):
            yield from _of_source(old, item)
        elif isinstance(item, View) and isinstance(old, View):
            yield from _of_fields(f"The view {item.name}", old, item, _SAME_ROWS)
    old_table, table = (flow.pipeline.table(flow.declaration.target) for flow in (before, now))
    if isinstance(old_table, Table) and isinstance(table, Table) and (old_table.sink or table.sink):
        for difference in _of_fields("The sink", old_table, table, ("name", "location", "function", "code")):
            text = difference.replace("has properties", "has the options")
            yield f"{text} What was given so far stays there."
        if old_table.sink == table.sink and old_table.code != table.code:
            yield "The function of the sink changed: what it was given so far stays as it left it."
        return
    for difference in _of_fields("The table", old_table, table, _NOT_OF_ROWS):
        yield f"{difference} That is of a new table; the one that is there keeps its own."


def moved_files(before: Flow, now: Flow) -> str | None:
    """Return why a flow cannot go on with its sink of files: the entries of its generation are in the log of
    another folder. None if it can.
    """
    old, table = (flow.sink for flow in (before, now))
    if old is None or table is None or not {old.sink, table.sink} <= {*FILE_SINKS}:
        return None
    had, has = (one.properties["path"] for one in (old, table))
    if had == has:
        return None
    return (
        f"The sink {table.name} writes its files to {has}, and wrote them to {had}: the entries of this"
        " generation are in the log of that folder. Reset the flow: its next generation begins in the new"
        " one."
    )


def _of_flow(before: Flow, now: Flow) -> Iterator[str]:
    old, new = before.declaration, now.declaration
    if type(old) is not type(new):
        kinds = ["applied changes" if isinstance(one, AutoCdcFlow) else "appended rows" for one in (old, new)]
        yield f"The flow {kinds[0]}, and is of the other kind now: one table would hold rows of both."
        return
    yield from _of_fields("The flow", old, new, (*_SAME_ROWS, "spec", "expectations", "initial_state"))
    had, has = ([_checked(item) for item in flow.expectations] for flow in (old, new))
    names = [item[0] for item in (*had, *has) if (item in had) != (item in has)]
    if names:
        changed = ", ".join(repr(name) for name in dict.fromkeys(names))
        yield f"The flow has other expectations ({changed}): rows so far were checked by the old ones."
    old_state, new_state = (_without_line(flow.initial_state) for flow in (old, new))
    if old_state != new_state:
        yield (
            f"The flow has the initial state {new_state or 'none'}, and had {old_state or 'none'}: the state"
            " that runs keeps what it was given. A generation whose state is not copied begins with the new"
            " one."
        )
    if isinstance(old, AutoCdcFlow) and isinstance(new, AutoCdcFlow):
        for difference in _of_fields("The flow", old.spec, new.spec, ()):
            yield f"{difference} What was applied stays as it was applied."


def _without_line(state: GivenState | None) -> GivenState | None:
    return None if state is None else replace(state, location=Location("", 0))


def _checked(item: Expectation) -> tuple[str, str, str, str | None]:
    """Return what of an expectation decides about rows."""
    return item.name, item.condition, item.action, item.quarantine


def _of_settings(before: Mapping[str, str], now: Mapping[str, str], pinned: Collection[str]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name) and name not in pinned and name not in _RESOURCES:
            yield f"The setting {name} changed: rows and state so far are of the old one."


def _of_source(before: Source, now: Source) -> Iterator[str]:
    subject = f"The source {now.name}"
    for difference in _of_fields(subject, before, now, (*_PLACES, "name", "location", "start")):
        yield f"{difference} Rows so far were read by the old one."
    if before.start != now.start:
        yield f"{subject} has the start {now.start}, which only a first generation or a reset would use."
    # With latestFirst a limit also decides whether a file is too old to be read.
    limits = () if now.option("latestFirst").lower() == "true" else _LIMITS
    old, new = ({name.lower(): value for name, value in one.options.items()} for one in (before, now))
    for name in sorted({*old, *new} - {*limits, *(topics.lower() for topics in TOPICS)}):
        if old.get(name) != new.get(name):
            yield f"{subject} has another value of {name}: rows so far were read by the old one."


def _of_fields(subject: str, before: Any, now: Any, but: Collection[str]) -> Iterator[str]:
    for one in fields(now):
        was, value = getattr(before, one.name), getattr(now, one.name)
        if one.name not in but and was != value:
            yield f"{subject} has {one.name} {_value_text(value)}, and had {_value_text(was)}."


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return "nothing" if value in (None, {}) else str(value)
