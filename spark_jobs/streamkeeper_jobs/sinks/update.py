"""The table of an update flow: its rows replace those of the same key by the AUTO CDC engine.

The sequence of a row is generation and batch. So a later batch wins, and a later generation wins over all
batches of an earlier one (docs/decisions/0058).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streamkeeper.declare.cdc_spec import BATCH, BOOKKEEPING, GENERATION
from streamkeeper.declare.model import AppendFlow
from streamkeeper.errors import DeclarationError, SinkDisagrees
from streamkeeper.flows.generations import Generation
from streamkeeper.flows.side_flow import is_side_flow
from streamkeeper_jobs.cdc.columns import SEQUENCE, field_of
from streamkeeper_jobs.cdc.expressions import by_reference
from streamkeeper_jobs.sinks.auto_cdc import CdcSink
from streamkeeper_jobs.spark.delta_commit import table_at
from streamkeeper_jobs.spark.frames import column
from streamkeeper_jobs.spark.stateful_operators import stateful_operators

_SIDE_TABLE = -1_000_000
"""Added to a generation's number where it builds a table beside its flow's: all of the flow's own win."""
_DEDUPE = frozenset({"dedupe", "dedupeWithinWatermark"})


class UpdateSink(CdcSink):
    """The sink of an update flow."""

    def check(self, frame: DataFrame) -> None:
        assert isinstance(self._flow, AppendFlow), "an update flow has a function"
        check_updates(frame, self._flow)
        super().check(frame)

    def make(self, frame: DataFrame, generation: Generation) -> None:
        """Create the table, if it is absent.

        :raises SinkDisagrees: it has rows that those of this generation would not replace.
        """
        super().make(frame, generation)
        job, number = self._job, self._rank(generation.number)
        rows = table_at(job.spark, job.table_path).toDF()
        newest = rows.agg(F.max(column(BOOKKEEPING, SEQUENCE, GENERATION))).first()
        if newest is not None and newest[0] is not None and newest[0] >= number:
            raise SinkDisagrees(
                f"The table at {job.table_path} has rows of generation {newest[0]}, and {job.flow.full_name}"
                f" begins generation {number}: those rows are another flow's, or of a newer state folder, and"
                " no row of this generation would replace them. Nothing of it was written. Rename the flow"
                " with streamkeeper rename, restore the newer state folder, or empty the table"
                " (full_refresh)."
            )

    def changes(self, rows: DataFrame, generation: int, batch: int) -> DataFrame:
        assert isinstance(self._flow, AppendFlow), "an update flow has a function"
        number = by_reference(F.lit(batch).cast("bigint"), column(self._flow.keys[0]))
        return as_changes(rows, self._rank(generation), number)

    def _rank(self, generation: int) -> int:
        return generation + (_SIDE_TABLE if is_side_flow(self._flow.name) else 0)


def as_changes(rows: DataFrame, generation: int, batch: Column) -> DataFrame:
    """Return rows with their sequence.

    :param batch: the batch's number, a BIGINT.
    """
    return rows.withColumns({GENERATION: F.lit(generation).cast("int"), BATCH: batch})


def check_updates(frame: DataFrame, flow: AppendFlow) -> None:
    """Check that a query updates rows by keys of its own.

    :raises DeclarationError: it has no state that would, it lacks a key, or a column has a name of the
        sequence.
    """
    subject = f"{flow.location}: the update flow {flow.name}"
    try:
        for name in flow.keys:
            field_of(frame.schema, name, "keys")
    except DeclarationError as error:
        raise DeclarationError(f"{subject} cannot run. {error}") from None
    taken = {GENERATION.lower(), BATCH.lower()} & {name.lower() for name in frame.columns}
    if taken:
        raise DeclarationError(
            f"{subject} gives the column {min(taken)}, a name that Streamkeeper keeps for itself. Rename it."
        )
    if _DEDUPE.issuperset(stateful_operators(frame)):
        raise DeclarationError(
            f"{subject} has a query that updates nothing: it has no aggregation and no state of its own, so"
            " two rows of a key in one batch would have no order. Aggregate by the keys, append"
            " (dp.append_flow), or apply the rows as changes with a sequence of theirs"
            " (dp.create_auto_cdc_flow)."
        )
