"""Columns by literal names, names quoted for SQL, and frames that are computed once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from streamkeeper_jobs.spark.jvm import classes

_MEASURED = "measured"
P = ParamSpec("P")
T = TypeVar("T")


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Keep what a function makes of its arguments, for later batches: columns, which know no frame.

    To make a column takes a call of the JVM for each of its parts, some 0.1 ms each.
    """
    return cast(Callable[P, T], lru_cache(maxsize=256)(make))


def column(*path: str) -> Column:
    """Return a column, or a field of a struct, by literal names."""
    return F.col(quoted(*path))


def named(values: Mapping[str, Column]) -> tuple[Column, ...]:
    """Return columns under their names."""
    return tuple(value.alias(name) for name, value in values.items())


def quoted(*path: str) -> str:
    """Return a column's path quoted for SQL."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


@contextmanager
def materialised(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute a frame once for all reads inside the block.

    A lost part fails the batch; it is never computed again with another result.
    """
    computed = frame.localCheckpoint(eager=True)
    try:
        yield computed
    finally:
        plan: Any = computed._jdf.queryExecution().analyzed()
        plan.rdd().unpersist(False)


@contextmanager
def measured(frame: DataFrame, *aggregates: Column) -> Iterator[tuple[DataFrame, Row]]:
    """Compute a frame once, as :func:`materialised` does, and aggregates over it without a further job."""
    observed = frame.observe(_MEASURED, *aggregates)
    with materialised(observed) as computed:
        # By the plan that was run, and not by an Observation: that one waits for an event, which a busy
        # listener bus may drop.
        metrics: Any = observed._jdf.queryExecution().observedMetrics()
        if metrics.contains(_MEASURED):
            java = classes(frame.sparkSession)
            pickled = java("org.apache.spark.sql.api.python.PythonSQLUtils").toPyRow(metrics.apply(_MEASURED))
            aggregated: Row | None = pickle.loads(pickled)
        else:  # a plan that turned out to be empty while it ran may have dropped them
            aggregated = computed.agg(*aggregates).first()
        assert aggregated is not None, "an aggregate without groups has one row"
        yield computed, aggregated
