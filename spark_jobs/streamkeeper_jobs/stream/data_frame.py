"""The DataFrame of a flow: its sources, through its views and its own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from streamkeeper.declare.model import AutoCdcFlow, GivenState, Location, Source, View
from streamkeeper.errors import DeclarationError, SourceError
from streamkeeper.manifest.manifest import Flow
from streamkeeper_jobs.stream.given_state import check_handed_on, given_frame
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
    :raises DeclarationError: a function of the pipeline file raises, or returns no streaming DataFrame; or
        an initial state cannot be read, or is not what the query begins with.
    :raises SourceError: what a function asks, such as a schema registry, does not answer.
    """

    def read(source: Source) -> DataFrame:
        stream = read_stream(spark, source, schemas, checkpoint)
        return stream.where(lit(False)) if closed else stream

    declared = flow.declaration
    result = frames_of(flow, read, partial(given_frame, spark))[declared.name]
    if not result.isStreaming:
        raise DeclarationError(
            f"{declared.location}: the flow {declared.name} gives a DataFrame that does not stream. "
            "Build it from the DataFrames that it is given."
        )
    check_handed_on(result, flow)
    return result


def frames_of(
    flow: Flow, read: Callable[[Source], DataFrame], give: Callable[[GivenState], DataFrame]
) -> dict[str, DataFrame]:
    """Return the DataFrame of each source and view that a flow reads, and its own under its name.

    :param read: opens a source.
    :param give: returns the rows of an initial state.
    :raises DeclarationError: a function of the pipeline file raises, or returns no DataFrame.
    """
    frames: dict[str, DataFrame] = {}
    declared = flow.declaration
    for item in flow.pipeline.inputs(declared):
        if isinstance(item, View):
            inputs = [frames[name] for name in item.sources]
            frames[item.name] = _call(f"view {item.name}", item.function, inputs, item.location)
        else:
            frames[item.name] = read(item)
    if isinstance(declared, AutoCdcFlow):
        return {**frames, declared.name: frames[declared.source]}
    inputs = [frames[name] for name in declared.sources]
    if declared.initial_state is not None:
        inputs.append(give(declared.initial_state))
    result = _call(f"flow {declared.name}", declared.function, inputs, declared.location)
    return {**frames, declared.name: result}


def _call(
    label: str, function: Callable[..., Any] | None, inputs: Sequence[DataFrame], location: Location
) -> DataFrame:
    assert function is not None, "the driver imported the pipeline file, functions included"
    try:
        frame = function(*inputs)
    except SourceError:  # it may answer later, and the file is not at fault
        raise
    except Exception as error:
        # What Spark says after its first line is the plan.
        reason = str(error).partition("\n")[0].rstrip(";") if isinstance(error, PySparkException) else error
        raise DeclarationError(
            f"{location}: the function of {label} raises {type(error).__name__}: {reason}. Correct it; until"
            " then the flow does not run."
        ) from error
    if not isinstance(frame, DataFrame):
        raise DeclarationError(
            f"{location}: the function of {label} gives {type(frame).__name__}. It must return a DataFrame."
        )
    return frame
