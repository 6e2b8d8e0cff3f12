"""Appends a flow's rows through Delta's own streaming sink, or replaces the whole table by each batch."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.declare.model import COMPLETE, quarantine_of
from streamkeeper.delta import log as delta_log
from streamkeeper.flows.generations import ADOPTED, Generation
from streamkeeper_jobs.sinks.complete import check_may_be_replaced, make_replaceable
from streamkeeper_jobs.sinks.sink import Sink
from streamkeeper_jobs.spark.delta_table import ensure_table
from streamkeeper_jobs.spark.jvm import classes, scala_map, scala_seq
from streamkeeper_jobs.spark.session import spark_url


class AppendSink(Sink):
    """Sink of an append flow, and of a complete flow.

    Delta itself commits (query id, batch id) with each batch, and refuses columns that the table lacks.
    Where rows are set aside, the same sink gets the others of each batch.
    """

    def make(self, frame: DataFrame, generation: Generation) -> None:
        job = self._job
        if self._flow.mode == COMPLETE:
            make_replaceable(
                job.spark, job.table_path, job.table, frame.schema, generation.start.mode == ADOPTED
            )
            return
        alone = generation.number == 1 and generation.start.mode != ADOPTED and not job.shares_table
        ensure_table(job.spark, job.table_path, job.table, frame.schema, by_batch=alone)

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Check that a complete flow may replace the table, which a changed declaration may have made it.

        A batch that does not fit fails.
        """
        job = self._job
        if self._flow.mode == COMPLETE:
            check_may_be_replaced(job.spark, job.table_path, job.table)
        elif job.table.registered_as is not None:  # its first batch is no longer to create it
            ensure_table(job.spark, job.table_path, job.table, frame.schema, by_batch=False)

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        path, mode = self._job.table_path, self._flow.mode
        writer = self._writer(frame, checkpoint, trigger)
        # the first batch creates it; an existing table has its own
        by = [] if delta_log.exists(path) else list(self._job.table.partition_cols)
        if quarantine_of(self._flow) is None:
            writer = writer.format("delta")
            return (writer.partitionBy(*by) if by else writer).start(spark_url(path))

        def append(rows: DataFrame, number: int) -> None:
            _delta_sink(rows.sparkSession, spark_url(path), by, mode).addBatch(number, rows._jdf)

        return self._start_by_batch(writer, generation, append)


def _delta_sink(spark: SparkSession, url: str, partition_cols: list[str], mode: str) -> Any:
    """Return Delta's own streaming sink, made as Spark makes it; it takes the query's id from its thread."""
    java = classes(spark)
    return java("org.apache.spark.sql.delta.sources.DeltaDataSource")().createSink(
        spark._jsparkSession.sqlContext(),
        scala_map(java, {"path": url}),
        scala_seq(java, partition_cols),
        getattr(java("org.apache.spark.sql.streaming.OutputMode"), mode.capitalize())(),
    )
