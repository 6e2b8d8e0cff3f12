"""Delta commits that carry their step: repeated, they change nothing more; of a sealed generation, they change nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession

from streamkeeper_jobs.cdc.expressions import quoted
from streamkeeper_jobs.session import spark_url

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


@contextmanager
def merging(session: SparkSession, app_id: str, version: int) -> Iterator[None]:
    """Let the one MERGE inside the block carry (``app_id``, ``version``). The session must be the calling query's own.

    Its source must be materialised already, so Delta need not do so again.
    """
    conf = {_APP: app_id, _VERSION: str(version), _MATERIALIZE: "none"}
    for name, value in conf.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            session.conf.unset(name)


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
