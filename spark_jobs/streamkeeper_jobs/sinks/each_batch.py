"""Calls a sink's function with each batch, and notes in a Delta log of the sink's own that it ended.

The log is that of a table without rows. So generations are sealed in it, and their positions found, as in a
table's. A driver that dies between the function's end and the note calls it again with the same batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from streamkeeper.flows.generations import Generation
from streamkeeper_jobs.sinks.expectations import OwnFailures, Quarantine, check, expected
from streamkeeper_jobs.spark.delta_table import delta_log_of, ensure_table, last_written, set_transaction
from streamkeeper_jobs.spark.jvm import classes, scala_object, scala_seq
from streamkeeper_jobs.spark.stateful_operators import check_mode
from streamkeeper_jobs.stream.query import writer_of

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job

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


class EachBatchSink:
    """The sink of an append flow whose target is a function."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._own = OwnFailures()

    def check(self, frame: DataFrame) -> None:
        check(frame, self._job.flow.declaration)
        check_mode(frame, self._job.flow.declaration.mode)

    def make(self, frame: DataFrame, generation: Generation) -> None:
        ensure_table(self._job.spark, self._job.table_path, self._job.table, NOTHING, by_batch=False)

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Do nothing: the function takes any columns."""

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        job, path = self._job, self._job.table_path
        function = job.table.function
        assert function is not None, "the driver imported the pipeline file, functions included"
        quarantine = Quarantine(job, generation)
        quarantine.make()

        def give(batch: DataFrame, number: int) -> None:
            with quarantine.passing(batch, number) as rows:
                last = last_written(batch.sparkSession, path, generation.query_id)
                if last is not None and last >= number:
                    # Spark fails a batch of a stateful query that has not committed its state.
                    rows.write.format("noop").mode("overwrite").save()
                    return
                function(rows, number, Transaction(generation.query_id, number))
                _note(batch.sparkSession, path, generation.query_id, number)

        flow = job.flow.declaration
        writer = writer_of(expected(frame, flow), job.flow.full_name, checkpoint, trigger, flow.mode)
        return writer.foreachBatch(self._own.kept(give)).start()

    def own_failures(self) -> AbstractContextManager[None]:
        return self._own.raised()


def _note(spark: SparkSession, path: str, query_id: str, number: int) -> None:
    """Commit (``query_id``, ``number``) alone; refused by Delta if the id was sealed meanwhile."""
    java = classes(spark)
    transaction = delta_log_of(spark, path).startTransaction()
    if int(transaction.txnVersion(query_id)) >= number:
        return
    operation = scala_object(java, "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate")
    transaction.commit(scala_seq(java, [set_transaction(java, query_id, number)]), operation)
