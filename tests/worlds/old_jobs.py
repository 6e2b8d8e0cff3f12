"""Plain Spark jobs, which know nothing of Streamkeeper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

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


def run_old_job(bed: Flowbed, query: Query = deduped, more: dict[str, str] | None = None) -> Path:
    """Run somebody's job over all that is there, as they would have written it, and give its checkpoint."""
    folder = bed.root / "old job" / "checkpoint"
    with confs(bed.spark, {**PLAIN, **(more or {})}):
        writer = (
            query(files_of(bed))
            .writeStream.format("delta")
            .option("checkpointLocation", str(folder))
            .trigger(availableNow=True)
        )
        writer.start(str(bed.table)).awaitTermination()
    return folder


def files_of(bed: Flowbed, folder: str = "events") -> DataFrame:
    return (
        bed.spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(bed.root / "data" / folder))
    )
