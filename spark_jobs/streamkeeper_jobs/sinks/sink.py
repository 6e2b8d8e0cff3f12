"""How what a flow gives gets into its table: rows are appended, or changes applied. The rest of the driver
asks no flow for its kind.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.declare.model import AppendFlow, AutoCdcFlow
from streamkeeper.flows.generations import Generation
from streamkeeper_jobs.sinks.append import AppendSink

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job


class Sink(Protocol):
    """The table of one flow, as its driver writes it."""

    def app_ids(self, query_id: str) -> tuple[tuple[str, str], ...]:
        """Give every table (path or URL) and ``txnAppId`` that a generation of this query id commits under,
        in the order of a batch.

        The last is the flow's own table under the bare query id. It gets a commit with every batch, so it
        says where the flow stands.
        """
        ...

    def check(self, frame: DataFrame) -> None:
        """Make sure, before anything is touched, that what the flow gives can be written.

        :raises DeclarationError: what is declared does not fit its columns.
        :raises AnalysisException: Spark cannot run the query in append mode.
        """
        ...

    def make(self, frame: DataFrame, generation: Generation) -> None:
        """Make the table, where it is absent and its first batch cannot make it. Called when a generation
        begins.

        :raises DeclarationError: the table that is there does not fit.
        """
        ...

    def update(self, frame: DataFrame, generation: Generation) -> None:
        """Make the table fit what the flow gives now, before a query starts that goes on with a generation;
        as :meth:`make`.
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
        """Give a context that lets what failed in the sink's own code come out of the query as it was
        raised.
        """
        ...


def sink_of(job: Job) -> Sink:
    """Give the sink of a driver's flow."""
    match job.flow.declaration:
        case AutoCdcFlow() as flow:
            from streamkeeper_jobs.sinks.auto_cdc import CdcSink  # no flow that appends needs the engine

            return CdcSink(job, flow)
        case AppendFlow():
            return AppendSink(job)
