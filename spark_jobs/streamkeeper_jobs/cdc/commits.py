"""Delta commits that carry their step: repeated, they change nothing more; of a sealed generation, they change nothing at all."""

from __future__ import annotations

from contextlib import AbstractContextManager

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession

from streamkeeper_jobs.cdc.expressions import quoted
from streamkeeper_jobs.session import spark_url, with_settings

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


def carrying(session: SparkSession, app_id: str, version: int, **more: str) -> AbstractContextManager[None]:
    """Let the one commit inside the block carry (``app_id``, ``version``): Delta skips it where it was made before."""
    return with_settings(session, {_APP: app_id, _VERSION: str(version), **more})


def merging(session: SparkSession, app_id: str, version: int) -> AbstractContextManager[None]:
    """Let the one MERGE inside the block carry (``app_id``, ``version``). The session must be the calling query's own.

    Its source must be materialised already, so Delta need not do so again.
    """
    return carrying(session, app_id, version, **{_MATERIALIZE: "none"})


def assigned(values: dict[str, Column]) -> dict[str, str | Column]:
    """Give MERGE the values of columns by their names as they are."""
    return {quoted(name): value for name, value in values.items()}


def append(rows: DataFrame, path: str, app_id: str, version: int) -> None:
    """Append rows, perhaps none, in one commit of (``app_id``, ``version``)."""
    writer = rows.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", str(version))
    writer.save(spark_url(path))


def table_at(session: SparkSession, path: str) -> DeltaTable:
    """Open the Delta table at a path or URL."""
    return DeltaTable.forPath(session, spark_url(path))
