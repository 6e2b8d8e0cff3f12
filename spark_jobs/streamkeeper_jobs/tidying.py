"""Carrying out a plan of streamkeeper.tidying: OPTIMIZE, in the writers' turn where they take turns, then VACUUM.

Neither changes a row, and both may be repeated, or killed at any moment. Delta lets OPTIMIZE or a MERGE of the same files through, never
both; the turn spares a busy flow's batches, and the compaction, from losing against one another for ever.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper import delta_log
from streamkeeper.errors import StreamkeeperError
from streamkeeper.settings import Settings
from streamkeeper.tidying import TableTidy, property_hours
from streamkeeper_jobs.saying import say
from streamkeeper_jobs.session import spark_url
from streamkeeper_jobs.visiting import visitors_turn

_RETENTION = "delta.deletedFileRetentionDuration"


def tidy_all(spark: SparkSession, settings: Settings, tidies: tuple[TableTidy, ...]) -> bool:
    """Tidy one table after the other; give whether all went well. What fails is said, and costs no other table."""
    well = True
    for tidy in tidies:
        if tidy.left_alone is not None:
            say(tidy.describe())
            continue
        for path in tidy.paths:
            if not delta_log.exists(path):
                continue
            try:
                say(json.dumps(_tidy(spark, settings, tidy, path)))
            except (StreamkeeperError, PySparkException, Py4JError) as error:
                well = False
                say(f"{path} could not be tidied: {type(error).__name__}: {error}")
    return well


def _tidy(spark: SparkSession, settings: Settings, tidy: TableTidy, path: str) -> dict[str, Any]:
    table = DeltaTable.forPath(spark, spark_url(path))
    then = "Run tidy_tables again."
    turn = visitors_turn(spark, settings, tidy.pipeline, tidy.table, then) if tidy.turn else nullcontext
    with turn():
        compacted = table.optimize().executeCompaction().select("metrics.*").first()
    assert compacted is not None, "OPTIMIZE gives one row"
    found: dict[str, Any] = {"path": path, "files_added": compacted["numFilesAdded"], "files_removed": compacted["numFilesRemoved"]}
    return {**found, **_vacuum(table, tidy.retention_hours)}


def _vacuum(table: DeltaTable, hours: float | None) -> dict[str, Any]:
    """Vacuum with the plan's retention, or the table's own where that is longer."""
    if hours is None:
        return {"vacuumed": None}
    detail = table.detail().select("properties").first()
    declared = detail["properties"].get(_RETENTION) if detail is not None else None
    own = property_hours(declared) if declared is not None else 0.0
    if own is None:
        return {"vacuumed": None, "why": f"the table's {_RETENTION} is {declared!r}, which is no number of hours, days or weeks"}
    table.vacuum(max(hours, own))
    return {"vacuumed": max(hours, own)}
