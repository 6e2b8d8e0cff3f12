"""The sink of a flow: appends rows, replaces them, or applies changes.

No other part of the driver depends on the kind of the flow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streamkeeper.declare.model import UPDATE, AppendFlow, AutoCdcFlow
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.generations import Generation
from streamkeeper_jobs.sinks.expectations import Quarantine, check, expected
from streamkeeper_jobs.spark.stateful_operators import check_mode
from streamkeeper_jobs.stream.query import writer_of
from streamkeeper_jobs.stream.watch import Stopped

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job


class Sink(ABC):
    """The table of one flow, as its driver writes it."""

    def __init__(self, job: Job) -> None:
        self._job, self._flow = job, job.flow.declaration
        self._failed: Exception | None = None

    def check(self, frame: DataFrame) -> None:
        """Check, before anything is changed, that the flow's rows can be written.

        :raises DeclarationError: the declaration does not fit their columns.
        :raises AnalysisException: Spark cannot run the query in its output mode.
        """
        check(frame, self._flow)
        check_mode(frame, self._flow.mode)

    @abstractmethod
    def make(self, frame: DataFrame, generation: Generation) -> None:
        """Create the table, if it is absent and the first batch cannot create it.

        Called when a generation begins.

        :raises DeclarationError: the existing table does not fit.
        """

    @abstractmethod
    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Adapt the table to the flow's present columns, before the query of a begun generation starts.

        :raises DeclarationError: as :meth:`make`.
        """

    @abstractmethod
    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        """Start the query.

        :param checkpoint: path or URL.
        :param trigger: how often to look for data; None processes what is there and ends.
        """

    @contextmanager
    def own_failures(self) -> Iterator[None]:
        """Raise what failed in the sink's own code as it was raised: it is classified by class and causes,
        and Spark keeps only its text.

        :raises StreamkeeperError: it is of another kind, as what a function of a pipeline file raises. A
            ``ConnectionError`` of that would pass for the end of Spark's process, which has just answered.
        """
        try:
            yield
            return
        except StreamingQueryException:
            failed = self._failed
            if failed is None:
                raise
        # Not from Spark's error, which is below it no cause but an echo.
        if isinstance(failed, (PySparkException, Py4JError, StreamkeeperError, Stopped)):
            raise failed
        name = self._job.table.name
        raise StreamkeeperError(
            f"A batch was not written to {name}: {type(failed).__name__}: {failed}"
        ) from failed

    def _writer(self, frame: DataFrame, checkpoint: str, trigger: str | None) -> DataStreamWriter:
        name = self._job.flow.full_name
        return writer_of(expected(frame, self._flow), name, checkpoint, trigger, self._flow.mode)

    def _start_by_batch(
        self, writer: DataStreamWriter, generation: Generation, give: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Start a query that gives each batch to a function, by its number, without rows that are set aside.

        What the function raises is kept for :meth:`own_failures`.
        """
        quarantine = Quarantine(self._job, generation)
        quarantine.make()

        def write_batch(batch: DataFrame, number: int) -> None:
            try:
                with quarantine.passing(batch, number) as rows:
                    give(rows, number)
            except Exception as error:
                self._failed = error
                raise

        return writer.foreachBatch(write_batch).start()


def sink_of(job: Job) -> Sink:
    """Return the sink of a driver's flow; no flow loads what only others need, such as the engine."""
    if job.flow.pipeline.sink_of(job.flow.declaration) is not None:
        from streamkeeper_jobs.sinks.each_batch import EachBatchSink

        return EachBatchSink(job)
    match job.flow.declaration:
        case AutoCdcFlow():
            from streamkeeper_jobs.sinks.auto_cdc import CdcSink

            return CdcSink(job)
        case AppendFlow(mode=mode) if mode == UPDATE:
            from streamkeeper_jobs.sinks.update import UpdateSink

            return UpdateSink(job)
        case AppendFlow():
            from streamkeeper_jobs.sinks.append import AppendSink

            return AppendSink(job)
