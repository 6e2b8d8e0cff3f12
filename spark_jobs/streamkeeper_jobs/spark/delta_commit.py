"""Delta commits that carry their step.

Repeated, they change nothing more; after their generation is fenced, they change nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from streamkeeper_jobs.spark.delta_table import action_of, delta_log_of
from streamkeeper_jobs.spark.frames import quoted
from streamkeeper_jobs.spark.jvm import Classes, classes, python_list, scala_object, scala_seq
from streamkeeper_jobs.spark.session import spark_url, with_settings

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


def carrying(session: SparkSession, app_id: str, version: int, **more: str) -> AbstractContextManager[None]:
    """Make the one commit inside the block carry (``app_id``, ``version``): Delta skips it if it exists."""
    return with_settings(session, {_APP: app_id, _VERSION: str(version), **more})


def merging(session: SparkSession, app_id: str, version: int) -> AbstractContextManager[None]:
    """Make the one MERGE inside the block carry (``app_id``, ``version``).

    The session must be the calling query's own. The MERGE source must be materialised already, so that Delta
    need not do so again.
    """
    return carrying(session, app_id, version, **{_MATERIALIZE: "none"})


def assigned(values: dict[str, Column]) -> dict[str, str | Column]:
    """Return column values for MERGE, under literal names."""
    return {quoted(name): value for name, value in values.items()}


def files_written(rows: DataFrame, path: str, folder: str) -> tuple[tuple[str, int], ...]:
    """Write rows into files of a folder below a table; return the files' names below the table, with their
    bytes.

    They are written as Delta writes a table's own files: each once, under a name that no other try has. (By
    ``DataFrameWriter`` each is written aside and renamed twice. On an object store that is two copies, and 40
    requests more.)
    """
    session = rows.sparkSession
    java, native = classes(session), session._jsparkSession
    none, options = java("scala.Option").empty(), scala_object(java, "scala.collection.immutable.Map").empty()
    committer = java("org.apache.spark.sql.delta.files.DelayedCommitProtocol")(
        "delta", spark_url(path), none, java("scala.Option").apply(folder)
    )
    plan: Any = rows._jdf.queryExecution().executedPlan()
    output = java("org.apache.spark.sql.execution.datasources.FileFormatWriter$OutputSpec")
    scala_object(java, "org.apache.spark.sql.delta.files.DeltaFileFormatWriter").write(
        native,
        plan,
        java("org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat")(),
        committer,
        output(spark_url(path), options, plan.output()),
        native.sessionState().newHadoopConf(),
        scala_seq(java, []),
        none,
        scala_seq(java, []),
        options,
        0,
    )
    return tuple((str(file.path()), int(file.size())) for file in python_list(committer.addedStatuses()))


def files_named(
    session: SparkSession, path: str, schema: StructType, files: Iterable[tuple[str, int]]
) -> DataFrame:
    """Return the rows of Parquet files below a table, by their names and bytes, without asking the storage
    for either.
    """
    java, log = classes(session), delta_log_of(session, path)
    metadata = {"id": "", "format": {"provider": "parquet"}, "schemaString": schema.json()}
    snapshot = _described(java, log, action_of(java, {"metaData": metadata}))
    adds = (
        {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0} for name, size in files
    )
    return _rows_of(session, log, snapshot, scala_seq(java, (action_of(java, {"add": add}) for add in adds)))


def files_read(session: SparkSession, transaction: Any, files: Any) -> DataFrame:
    """Return the rows of some files of a table as a transaction sees it, with their numbers in ``_metadata``.

    Delta gives these numbers only of a table that may have deletion vectors, so it is told that this one may.
    """
    java, log = classes(session), transaction.deltaLog()
    vectors = scala_object(java, "org.apache.spark.sql.delta.DeletionVectorsTableFeature")
    snapshot, protocol = transaction.snapshot(), transaction.protocol()
    if not protocol.isFeatureSupported(vectors):
        content = {"minReaderVersion": 3, "minWriterVersion": 7}
        features = {"readerFeatures": [vectors.name()], "writerFeatures": [vectors.name()]}
        protocol = protocol.merge(scala_seq(java, [action_of(java, {"protocol": {**content, **features}})]))
        snapshot = _described(java, log, transaction.metadata(), protocol)
    return _rows_of(session, log, snapshot, files)


def _described(java: Classes, log: Any, metadata: Any, protocol: Any = None) -> Any:
    """Return a snapshot that only says how files are read: by other metadata, or another protocol."""
    option = java("scala.Option")
    return java("org.apache.spark.sql.delta.DummySnapshot")(
        log.logPath(), log, metadata, option.empty(), option.apply(protocol)
    )


def _rows_of(session: SparkSession, log: Any, snapshot: Any, files: Any) -> DataFrame:
    none = classes(session)("scala.Option").empty()
    return DataFrame(log.createDataFrame(snapshot, files, False, none), session)


def resolved(session: SparkSession, transaction: Any, condition: Column) -> Any:
    """Return a condition as Delta uses it to choose files: resolved to columns, constants folded."""
    java = classes(session)
    analyzed: Any = (
        files_read(session, transaction, scala_seq(java, []))
        .where(condition)
        ._jdf.queryExecution()
        .analyzed()
    )
    return java("org.apache.spark.sql.catalyst.optimizer.ConstantFolding").apply(analyzed).condition()


def table_at(session: SparkSession, path: str) -> DeltaTable:
    """Open the Delta table at a path or URL."""
    return DeltaTable.forPath(session, spark_url(path))


def table_properties(table: DeltaTable) -> dict[str, str]:
    """Return the properties of an opened table."""
    detail = table.detail().select("properties").first()
    return dict(detail["properties"]) if detail is not None else {}
