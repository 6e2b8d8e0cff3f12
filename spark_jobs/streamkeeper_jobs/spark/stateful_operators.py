"""Stateful operators of a streaming query, found in its analyzed plan before it is started.

Spark keeps one folder of ``state/`` for each. The names are those that Spark writes into the operators'
metadata, so that they compare with a checkpoint's. Pinned by tests/spark/checkpoint/test_pins.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from streamkeeper_jobs.spark.jvm import classes, python_list

_NAMES = {
    "Deduplicate": "dedupe",
    "Distinct": "dedupe",
    "DeduplicateWithinWatermark": "dedupeWithinWatermark",
    "Aggregate": "stateStoreSave",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithStateExec",
    "TransformWithStateInPySpark": "transformWithStateInPySparkExec",
    "TransformWithStateInPandas": "transformWithStateInPandasExec",
    "GlobalLimit": "globalLimit",
}
"""Logical plan node → operator. A join is stateful if both of its sides stream."""


def stateful_operators(frame: DataFrame) -> tuple[str, ...]:
    """Return the stateful operators of a streaming DataFrame, in the plan's order, innermost first.

    Empty for a stateless query.
    """
    return tuple(_walk(frame._jdf.queryExecution().analyzed()))


def check_mode(frame: DataFrame, mode: str) -> None:
    """Check that Spark can run a streaming DataFrame in an output mode; else only a start would tell.

    :raises AnalysisException: it cannot; Spark's own message says why.
    """
    java = classes(frame.sparkSession)
    modes = java("org.apache.spark.sql.streaming.OutputMode")
    checker = java("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), getattr(modes, mode.capitalize())())


def keys_of_given_states(frame: DataFrame) -> tuple[tuple[list[str], list[str]], ...]:
    """Return, for each operator that begins with an initial state, the types of the columns that its rows
    and that state are grouped by.
    """
    return tuple(_keys(frame._jdf.queryExecution().analyzed()))


def heeds_processing_time(frame: DataFrame) -> bool:
    """Return whether a query has timers, timeouts or times to live by processing time."""
    return _heeds(frame._jdf.queryExecution().analyzed())


def heeds_batches(frame: DataFrame) -> bool:
    """Return whether a query's state may depend on where batches end.

    By a watermark, which moves at their ends, it leaves out late rows and forgets keys; a state of one's own
    may depend on anything.
    """
    return _heeds_batches(frame._jdf.queryExecution().analyzed())


def _heeds_batches(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    own = kind.startswith(("TransformWithState", "FlatMapGroups")) and "State" in kind
    return own or kind == "EventTimeWatermark" or any(map(_heeds_batches, python_list(node.children())))


def _heeds(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    if kind.startswith("TransformWithState"):
        time_mode = node.timeMode().toString()
    else:
        time_mode = node.timeout().toString() if kind.startswith("FlatMapGroups") and "State" in kind else ""
    return str(time_mode).startswith("ProcessingTime") or any(map(_heeds, python_list(node.children())))


def _keys(node: Any) -> Iterator[tuple[list[str], list[str]]]:
    for child in python_list(node.children()):
        yield from _keys(child)
    kind = node.getClass().getSimpleName()
    if kind.startswith("TransformWithState") and node.hasInitialState():
        yield _types(node.leftAttributes()), _types(node.rightAttributes())


def _types(attributes: Any) -> list[str]:
    return [attribute.dataType().sql() for attribute in python_list(attributes)]


def _walk(node: Any) -> Iterator[str]:
    if not node.isStreaming():
        return
    children = python_list(node.children())
    for child in children:
        yield from _walk(child)
    kind = node.getClass().getSimpleName()
    if kind == "Join" and all(child.isStreaming() for child in children):
        yield "symmetricHashJoin"
    elif kind in _NAMES:
        yield _NAMES[kind]
