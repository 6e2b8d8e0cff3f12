"""What every part of a driver needs, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from streamkeeper.declare.model import Source, Table
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.watch import Watch


@dataclass(frozen=True)
class Job:
    """One driver's run of one flow, whose sources are opened."""

    spark: SparkSession
    settings: Settings
    home: FlowHome
    flow: Flow
    lease: Lease
    watch: Watch
    available_now: bool
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the pipeline file and of the modules beside it that were imported."""
    ties: dict[int, int] = field(default_factory=dict)
    """Upserts that the sequence did not order, by batch: from the sink to the numbers of the batch."""

    @property
    def table_path(self) -> str:
        """The path or URL of the table that the flow writes."""
        return self.settings.table_path(self.flow.declaration.target)

    @property
    def table(self) -> Table:
        """The declaration of the table that the flow writes."""
        table = self.flow.pipeline.table(self.flow.declaration.target)
        assert table is not None, f"{self.flow.declaration.target} was checked when the pipeline was declared"
        return table

    @property
    def shares_table(self) -> bool:
        """Whether another flow writes the table too."""
        target = self.flow.declaration.target
        return sum(flow.target == target for flow in self.flow.pipeline.flows) > 1

    @property
    def ends_by_itself(self) -> bool:
        """Whether the query ends when it has read all available data."""
        return self.available_now or self.flow.declaration.once

    @property
    def sources(self) -> tuple[Source, ...]:
        """The flow's sources, opened, in the order in which they are read."""
        return self.flow.pipeline.sources_of(self.flow.declaration)

    def frame(
        self, schemas: Mapping[str, str], closed: bool = False, checkpoint: str | None = None
    ) -> DataFrame:
        """Return the flow's DataFrame: see :func:`streamkeeper_jobs.stream.data_frame.flow_frame`.

        :param checkpoint: the name of the query's checkpoint in the state storage, if it is to run.
        """
        path = None if checkpoint is None else self.home.storage.path(checkpoint)
        return flow_frame(self.spark, self.flow, schemas, closed, path)
