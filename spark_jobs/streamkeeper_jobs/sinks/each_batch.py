"""Gives each batch to a sink, a function or Kafka, and notes in a Delta log of the sink's own that it ended.

The log is that of a table without rows. So generations are fenced in it, and their positions found, as in a
table's. A driver that dies between the end of a write and the note gives the same batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from streamkeeper.declare.model import FILE_SINKS, KAFKA_SINK, Table
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import DeclarationError
from streamkeeper.flows.generations import Generation
from streamkeeper.manifest.environment import filled
from streamkeeper_jobs.sinks import file_sink, kafka_sink
from streamkeeper_jobs.sinks.file_sink import FileSink
from streamkeeper_jobs.sinks.sink import Sink
from streamkeeper_jobs.spark.delta_table import ensure_table, last_written
from streamkeeper_jobs.spark.delta_table import note as _note
from streamkeeper_jobs.spark.session import spark_url

NOTHING = StructType().add("nothing", "string")
"""Columns of the table without rows."""


@dataclass(frozen=True)
class Transaction:
    """What names one batch for good, also when it is given again: the query id of the generation, and the
    batch's number.
    """

    app_id: str
    version: int

    @property
    def options(self) -> dict[str, str]:
        """Options by which a write into a Delta table is done once."""
        return {"txnAppId": self.app_id, "txnVersion": str(self.version)}


class EachBatchSink(Sink):
    """The sink of an append flow whose target is not a table."""

    def check(self, frame: DataFrame) -> None:
        super().check(frame)
        check_rows(self._job.table, frame.schema)

    def make(self, frame: DataFrame, generation: Generation) -> None:
        check_is_log(self._job.spark, self._job.table_path, self._job.table)
        # Its options are those of what it writes, and not of its log.
        log = replace(self._job.table, properties={})
        ensure_table(self._job.spark, self._job.table_path, log, NOTHING, by_batch=False)
        self._begin_files(generation)

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Begin Spark's log of files where another sink was before; there are no columns to adapt."""
        check_is_log(self._job.spark, self._job.table_path, self._job.table)
        self._begin_files(generation)

    def _begin_files(self, generation: Generation) -> None:
        if self._job.table.sink in FILE_SINKS:
            FileSink(self._job, generation).begin()

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        path, write = self._job.table_path, self._write(generation)

        def give(rows: DataFrame, number: int) -> None:
            last = last_written(rows.sparkSession, path, generation.query_id)
            if last is not None and last >= number:
                # Spark fails a batch of a stateful query that has not committed its state.
                rows.write.format("noop").mode("overwrite").save()
                return
            more = write(rows, number)
            _note(rows.sparkSession, path, {generation.query_id: number, **more})

        return self._start_by_batch(self._writer(frame, checkpoint, trigger), generation, give)

    def _write(self, generation: Generation) -> Callable[[DataFrame, int], Mapping[str, int]]:
        """Return what writes a batch, by its number, and returns what else is to be noted of it."""
        job, table = self._job, self._job.table
        if table.sink in FILE_SINKS:
            return FileSink(job, generation).write
        if table.sink == KAFKA_SINK:
            options = filled(f"{table.location}: the sink {table.name}", table.properties, job.settings)
            flow, generation_number = job.flow.full_name, generation.number

            def to_kafka(rows: DataFrame, number: int) -> Mapping[str, int]:
                kafka_sink.write(rows, options, flow, generation_number, number)
                return {}

            return to_kafka
        function = table.function
        assert function is not None, "the driver imported the pipeline file, functions included"

        def to_function(rows: DataFrame, number: int) -> Mapping[str, int]:
            function(rows, number, Transaction(generation.query_id, number))
            return {}

        return to_function


def check_is_log(spark: SparkSession, path: str, table: Table) -> None:
    """Check that no table is where a sink keeps its log.

    :raises DeclarationError: there is one.
    """
    if not delta_log.exists(path):
        return
    columns = spark.read.format("delta").load(spark_url(path)).columns
    if columns != NOTHING.fieldNames():
        raise DeclarationError(
            f"{table.location}: the sink {table.name} has the name of a table that is there, with the columns"
            f" {', '.join(columns)}. Give the sink a name of its own, and reset its flow."
        )


def check_rows(table: Table, columns: StructType) -> None:
    """Check that rows can be written to a sink; a function takes any.

    :raises DeclarationError: they cannot.
    """
    if table.sink == KAFKA_SINK:
        kafka_sink.check_rows(table, columns)
    elif table.sink in FILE_SINKS:
        file_sink.check_rows(table, columns)
