"""Appends a flow's rows through Delta's own streaming sink."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.delta import log as delta_log
from streamkeeper.flows.generations import ADOPTED, Generation
from streamkeeper_jobs.spark.delta_table import ensure_table
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.spark.stateful_operators import check_appends
from streamkeeper_jobs.stream.query import writer_of

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job


class AppendSink:
    """Sink of an append flow.

    Delta itself commits (query id, batch id) with each batch, and refuses columns that the table lacks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def check(self, frame: DataFrame) -> None:
        check_appends(frame)

    def make(self, frame: DataFrame, generation: Generation) -> None:
        job = self._job
        alone = generation.number == 1 and generation.start.mode != ADOPTED and not job.shares_table
        ensure_table(job.spark, job.table_path, job.table, frame.schema, by_batch=alone)

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Do nothing: a batch that does not fit fails."""

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        path, partition_cols = self._job.table_path, self._job.table.partition_cols
        writer = writer_of(frame, self._job.flow.full_name, checkpoint, trigger).format("delta")
        if partition_cols and not delta_log.exists(
            path
        ):  # the first batch creates it; an existing table has its own
            writer = writer.partitionBy(*partition_cols)
        return writer.start(spark_url(path))

    def own_failures(self) -> AbstractContextManager[None]:
        return nullcontext()
