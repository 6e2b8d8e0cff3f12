"""The sink of a flow: appends rows, replaces them, or applies changes.

No other part of the driver depends on the kind of the flow.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.declare.model import UPDATE, AppendFlow, AutoCdcFlow
from streamkeeper.flows.generations import Generation
from streamkeeper_jobs.sinks.append import AppendSink

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job


class Sink(Protocol):
    """The table of one flow, as its driver writes it."""

    def check(self, frame: DataFrame) -> None:
        """Check, before anything is changed, that the flow's rows can be written.

        :raises DeclarationError: the declaration does not fit their columns.
        :raises AnalysisException: Spark cannot run the query in its output mode.
        """
        ...

    def make(self, frame: DataFrame, generation: Generation) -> None:
        """Create the table, if it is absent and the first batch cannot create it.

        Called when a generation begins.

        :raises DeclarationError: the existing table does not fit.
        """
        ...

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Adapt the table to the flow's present columns, before the query of a begun generation starts.

        :raises DeclarationError: as :meth:`make`.
        """
        ...

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        """Start the query.

        :param checkpoint: path or URL.
        :param trigger: how often to look for data; None processes what is there and ends.
        """
        ...

    def own_failures(self) -> AbstractContextManager[None]:
        """Return a context that raises errors of the sink's own code unchanged, not as the query's."""
        ...


def sink_of(job: Job) -> Sink:
    """Return the sink of a driver's flow."""
    if job.flow.pipeline.sink_of(job.flow.declaration) is not None:
        from streamkeeper_jobs.sinks.each_batch import EachBatchSink

        return EachBatchSink(job)
    match job.flow.declaration:
        case AutoCdcFlow() as flow:
            from streamkeeper_jobs.sinks.auto_cdc import CdcSink  # an append flow does not need the engine

            return CdcSink(job, flow)
        case AppendFlow(mode=mode) as flow if mode == UPDATE:
            from streamkeeper_jobs.sinks.update import UpdateSink

            return UpdateSink(job, flow)
        case AppendFlow():
            return AppendSink(job)
