"""Replaces rows of a target in one commit: marks old ones by deletion vectors, and appends new ones.

The result is that of MERGE. But MERGE joins the target three times, once with all its columns and with a
shuffle; here the caller searches for rows once, and reads only the columns that it needs. This uses internals
of Delta, as ``docs/decisions/0019-one-look-at-the-target.md`` explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streamkeeper_jobs.cdc.steps import Step
from streamkeeper_jobs.spark.columns import column
from streamkeeper_jobs.spark.delta_commit import files_read, resolved
from streamkeeper_jobs.spark.delta_table import delta_log_of, set_transaction
from streamkeeper_jobs.spark.jvm import Classes, classes, python_list, scala_object, scala_seq

PLACE, FILE, INDEX = "place", "file", "index"
"""Position of a row in a target: a struct of its file, and of its number in the file."""

_VECTORS = "delta.enableDeletionVectors"
_MORE_THAN_ROWS = ("delta.enableChangeDataFeed", "delta.enableRowTracking")


@dataclass(frozen=True)
class Opened:
    """A target as one transaction sees it."""

    rows: DataFrame
    """The target's rows within the bounds, with their ``_metadata``."""
    step: Step
    _transaction: Any
    _files: Any

    def placed(self, *columns: Column) -> DataFrame:
        """Return some columns of its rows, and the position of each: ``place``."""
        place = F.struct(F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(INDEX))
        return self.rows.select(*columns, place.alias(PLACE))

    def replace(self, gone: DataFrame | None, rows: DataFrame) -> None:
        """Remove rows (column ``place``.

        None for none) and add others (the target's columns) in the step's commit.

        If the target has the step already, or its generation is sealed, nothing is written.

        :raises DeltaConcurrentModificationException: another commit came in between; one of its subclasses.
        """
        if self._transaction.txnVersion(self.step.query_id) >= self.step.batch_id:
            return
        java = classes(rows.sparkSession)
        added = self._transaction.writeFiles(self._laid_out(rows)._jdf)
        marked, count = self._mark(gone) if gone is not None else (scala_seq(java, []), 0)
        self._say_how_much(rows.sparkSession, added, count)
        step = set_transaction(java, self.step.query_id, self.step.batch_id)
        self._transaction.commit(scala_seq(java, [step]).appendedAll(added).appendedAll(marked), _merge(java))

    def _laid_out(self, rows: DataFrame) -> DataFrame:
        """Return the rows grouped by partition, as by MERGE: else each task would write a file into each."""
        java = classes(rows.sparkSession)
        names = [
            column(str(name)) for name in python_list(java, self._transaction.metadata().partitionColumns())
        ]
        return rows.repartition(*names) if names else rows

    def _mark(self, gone: DataFrame) -> tuple[Any, int]:
        """Write deletion vectors; return the actions that activate them, and how many rows they mark."""
        java = classes(gone.sparkSession)
        session = gone.sparkSession._jsparkSession
        found = java(
            "org.apache.spark.sql.delta.commands.DeletionVectorBitmapGenerator"
        ).buildRowIndexSetsForFilesMatchingCondition(
            session,
            self._transaction,
            True,
            gone._jdf,
            self._files,
            java("org.apache.spark.sql.catalyst.expressions.Literal").TrueLiteral(),
            java("scala.Option").apply(column(PLACE, FILE)._jc),
            java("scala.Option").apply(column(PLACE, INDEX)._jc),
        )
        vectors, snapshot = (
            java("org.apache.spark.sql.delta.commands.DMLWithDeletionVectorsHelper"),
            self._transaction.snapshot(),
        )
        by_name = vectors.generateCandidateFileMap(self._transaction.deltaLog().dataPath(), self._files)
        touched = vectors.findFilesWithMatchingRows(self._transaction, by_name, found)
        statistics = java("org.apache.spark.sql.delta.stats.StatsCollectionUtils")
        length = statistics.getDataSkippingStringPrefixLength(session, snapshot.metadata())
        done = vectors.processUnmodifiedData(session, touched, snapshot, length)
        return done._1(), int(done._2().apply("numModifiedRows"))

    def _say_how_much(self, session: SparkSession, added: Any, gone: int) -> None:
        """Set the metrics in the table's history: an updated row counts as one deleted and one inserted."""
        java = classes(session)
        files = python_list(java, added)
        written = sum(int(file.numLogicalRecords().get()) for file in files)
        numbers = {
            "numTargetRowsInserted": written,
            "numTargetRowsDeleted": gone,
            "numTargetFilesAdded": len(files),
        }
        metrics = java("java.util.HashMap")()
        for name, number in {**numbers, "operationNumSourceRows": written}.items():
            metric = java("org.apache.spark.sql.execution.metric.SQLMetrics").createMetric(
                session._jsparkSession.sparkContext(), name
            )
            metric.set(number)
            metrics.put(name, metric)
        to_map = scala_object(java, "scala.collection.immutable.Map")
        as_map = to_map.__getattr__("from")(java("scala.jdk.javaapi.CollectionConverters").asScala(metrics))
        self._transaction.registerSQLMetrics(session._jsparkSession, as_map)


def opened(session: SparkSession, path: str, step: Step, bounds: Column) -> Opened | None:
    """Open a target for the one commit of a step, limited to bounds on its columns; None if MERGE is needed.

    MERGE is needed if the table has no deletion vectors, or keeps more of a row than its columns: a change
    data feed, row tracking. (The positions of rows are in Spark's ``_metadata``, unless a column has that
    name.)
    """
    java = classes(session)
    transaction = delta_log_of(session, path).startTransaction()
    properties = java("scala.jdk.javaapi.CollectionConverters").asJava(transaction.metadata().configuration())
    taken = "_metadata" in list(transaction.metadata().schema().fieldNames())
    if (
        properties.get(_VECTORS) != "true"
        or any(properties.get(name) == "true" for name in _MORE_THAN_ROWS)
        or taken
    ):
        return None
    files = transaction.filterFiles(scala_seq(java, [resolved(session, transaction, bounds)]), True)
    return Opened(files_read(session, transaction, files).where(bounds), step, transaction, files)


def _merge(java: Classes) -> Any:
    """Return the operation that names the commit in the table's history."""
    none, nothing = java("scala.Option").empty(), scala_seq(java, [])
    return java("org.apache.spark.sql.delta.DeltaOperations$Merge")(
        none, none, none, none, nothing, nothing, nothing
    )
