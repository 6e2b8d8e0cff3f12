"""The DataFrame of a flow: its sources, through its views and its own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from streamkeeper.declare.model import AutoCdcFlow, View, Where
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import Flow
from streamkeeper_jobs.stream.readers import read_stream


def flow_frame(
    spark: SparkSession,
    flow: Flow,
    schemas: Mapping[str, str],
    closed: bool = False,
    checkpoint: str | None = None,
) -> DataFrame:
    """Return the streaming DataFrame whose rows a flow writes, or whose changes it applies.

    :param flow: with its sources opened.
    :param checkpoint: the path of the checkpoint for the query, if it is to run.
    :param closed: let no row of any source through, so that a run only advances positions and creates state.
    :raises DeclarationError: a function of the pipeline file raises, or returns no streaming DataFrame.
    """
    frames: dict[str, DataFrame] = {}
    for item in flow.pipeline.inputs(flow.declaration):
        if isinstance(item, View):
            frames[item.name] = _call(f"view {item.name}", item.function, item.sources, frames, item.where)
        else:
            stream = read_stream(spark, item, schemas, checkpoint)
            frames[item.name] = stream.where(lit(False)) if closed else stream
    declared = flow.declaration
    if isinstance(declared, AutoCdcFlow):
        result = frames[declared.source]
    else:
        result = _call(f"flow {declared.name}", declared.function, declared.sources, frames, declared.where)
    if not result.isStreaming:
        raise DeclarationError(
            f"{declared.where}: the flow {declared.name} gives a DataFrame that does not stream. "
            "Build it from the DataFrames that it is given."
        )
    return result


def _call(
    what: str,
    function: Callable[..., Any] | None,
    inputs: Sequence[str],
    frames: Mapping[str, DataFrame],
    where: Where,
) -> DataFrame:
    assert function is not None, "the driver imported the pipeline file, functions included"
    try:
        given = function(*(frames[name] for name in inputs))
    except Exception as error:
        raise DeclarationError(
            f"{where}: the function of {what} raises {type(error).__name__}: {error}. Correct it; until then"
            " the flow does not run."
        ) from error
    if not isinstance(given, DataFrame):
        raise DeclarationError(
            f"{where}: the function of {what} gives {type(given).__name__}. It must return a DataFrame."
        )
    return given
