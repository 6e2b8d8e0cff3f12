"""Delta commits that carry their step: repeated, they change nothing more; of a sealed generation, they
change nothing at all.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession

from streamkeeper_jobs.spark.columns import quoted
from streamkeeper_jobs.spark.delta_table import delta_log_of, set_transaction
from streamkeeper_jobs.spark.jvm import classes, python_list, scala_seq
from streamkeeper_jobs.spark.session import spark_url, with_settings

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


def carrying(session: SparkSession, app_id: str, version: int, **more: str) -> AbstractContextManager[None]:
    """Let the one commit inside the block carry (``app_id``, ``version``): Delta skips it where it was made
    before.
    """
    return with_settings(session, {_APP: app_id, _VERSION: str(version), **more})


def merging(session: SparkSession, app_id: str, version: int) -> AbstractContextManager[None]:
    """Let the one MERGE inside the block carry (``app_id``, ``version``). The session must be the calling
    query's own.

    Its source must be materialised already, so Delta need not do so again.
    """
    return carrying(session, app_id, version, **{_MATERIALIZE: "none"})


def assigned(values: dict[str, Column]) -> dict[str, str | Column]:
    """Give MERGE the values of columns by their names as they are."""
    return {quoted(name): value for name, value in values.items()}


def append(rows: DataFrame, path: str, app_id: str, version: int) -> None:
    """Append rows, perhaps none, in one commit of (``app_id``, ``version``)."""
    writer = (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", app_id)
        .option("txnVersion", str(version))
    )
    writer.save(spark_url(path))


def append_within(rows: DataFrame, transaction: Any, app_id: str, version: int) -> int:
    """Append rows, perhaps none, in the one commit of a transaction, which carries (``app_id``, ``version``);
    give the table's version.

    :param transaction: Delta's own, which was asked for the id's version: so a seal that comes after the look
        keeps it out.
    :raises DeltaConcurrentModificationException: another commit got in between; one of its kinds.
    """
    java = classes(rows.sparkSession)
    added, none = transaction.writeFiles(rows._jdf), java("scala.Option").empty()
    mode = java("org.apache.spark.sql.SaveMode").Append
    operation = java("org.apache.spark.sql.delta.DeltaOperations$Write")(mode, *[none] * 8)
    return int(
        transaction.commit(
            scala_seq(java, [set_transaction(java, app_id, version)]).appendedAll(added), operation
        )
    )


def files_read(session: SparkSession, transaction: Any, files: Any) -> DataFrame:
    """Read some files of a table as a transaction sees it."""
    none = classes(session)("scala.Option").empty()
    return DataFrame(
        transaction.deltaLog().createDataFrame(transaction.snapshot(), files, False, none), session
    )


def resolved(session: SparkSession, transaction: Any, condition: Column) -> Any:
    """Give a condition on a table's rows as Delta chooses files by it: with the table's columns, and what is
    constant worked out.
    """
    java = classes(session)
    analyzed: Any = (
        files_read(session, transaction, scala_seq(java, []))
        .where(condition)
        ._jdf.queryExecution()
        .analyzed()
    )
    return java("org.apache.spark.sql.catalyst.optimizer.ConstantFolding").apply(analyzed).condition()


def partitions_of(session: SparkSession, path: str) -> tuple[str, ...]:
    """Give the names of the columns that a Delta table is partitioned by, as its newest snapshot that is
    known here has it.
    """
    names = delta_log_of(session, path).unsafeVolatileSnapshot().metadata().partitionColumns()
    return tuple(str(name) for name in python_list(classes(session), names))


def table_at(session: SparkSession, path: str) -> DeltaTable:
    """Open the Delta table at a path or URL."""
    return DeltaTable.forPath(session, spark_url(path))
