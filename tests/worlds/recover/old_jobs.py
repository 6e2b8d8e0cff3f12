"""Plain Spark jobs, which know nothing of Streamkeeper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from streamkeeper.declare.model import AutoCdcFlow, View
from streamkeeper.manifest.environment import opened_flow
from tests.worlds.checkpoint_samples import confs
from tests.worlds.flow_world import SCHEMA, Flowbed

Query = Callable[[DataFrame], DataFrame]

PLAIN = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}
"""As Spark is without Streamkeeper's settings."""


def deduped(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["event_id"])


def run_old_job(
    bed: Flowbed,
    query: Query = deduped,
    more: dict[str, str] | None = None,
    data: str = "events",
    place: str = "checkpoint",
) -> Path:
    """Run somebody's job over all that is there, as they would have written it, and give its checkpoint."""
    return _run(bed, lambda: query(files_of(bed, data)), more, place=place)


def run_declared_job(bed: Flowbed) -> Path:
    """Run the query that the bed's flow declares, as a job without Streamkeeper would, over all that is
    there; give its checkpoint.

    The changes of a flow that is kept by key, and the rows of a sink, go to no table: such a job has a target
    of another kind.
    """
    flow = bed.flow()
    declared = flow.declaration
    writes = declared.spec is None and flow.pipeline.sink_of(declared) is None
    return _run(bed, lambda: declared_frame(bed), writes=writes, mode=declared.mode)


def _run(
    bed: Flowbed,
    frame: Callable[[], DataFrame],
    more: dict[str, str] | None = None,
    writes: bool = True,
    mode: str = "append",
    *,
    place: str = "checkpoint",
) -> Path:
    folder = bed.root / "old job" / place
    own = bed.flow().declaration.spark_conf
    with confs(bed.spark, {**PLAIN, **own, **(more or {})}):
        writer = frame().writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        writer = writer.outputMode(mode)
        if writes:
            writer.format("delta").start(str(bed.table)).awaitTermination()
        else:
            writer.foreachBatch(
                lambda rows, _: rows.write.format("noop").mode("overwrite").save()
            ).start().awaitTermination()
    return folder


def declared_frame(bed: Flowbed) -> DataFrame:
    """Return the DataFrame of the bed's flow, as a job without Streamkeeper would make it."""
    flow = opened_flow(bed.flow(), bed.settings)
    frames: dict[str, DataFrame] = {}
    for item in flow.pipeline.inputs(flow.declaration):
        if isinstance(item, View):
            assert item.function is not None
            frames[item.name] = item.function(*(frames[name] for name in item.sources))
        else:
            reader = bed.spark.readStream.format(item.format).options(**item.options)
            if item.schema is not None:
                reader = reader.schema(item.schema)
            if item.format == "kafka":
                reader = reader.option("startingOffsets", "earliest")
            frames[item.name] = reader.load() if item.path is None else reader.load(item.path)
    declared = flow.declaration
    if isinstance(declared, AutoCdcFlow):
        return frames[declared.source]
    assert declared.function is not None
    inputs = [frames[name] for name in declared.sources]
    given = declared.initial_state
    if given is not None:
        assert given.schema is not None
        rows = [tuple(row.values()) for row in given.rows]
        inputs.append(bed.spark.createDataFrame(rows, given.schema))
    made: DataFrame = declared.function(*inputs)
    return made


def files_of(bed: Flowbed, folder: str = "events") -> DataFrame:
    return (
        bed.spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(bed.root / "data" / folder))
    )
