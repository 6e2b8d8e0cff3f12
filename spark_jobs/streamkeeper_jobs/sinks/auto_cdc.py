"""Applies a flow's changes with the AUTO CDC engine, batch by batch, each under the write lock of its
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.declare.cdc_spec import (
    BEFORE_UPDATE,
    BOOKKEEPING,
    CHANGE_TYPE,
    COMMIT_VERSION,
    DELETED,
    CdcSpec,
)
from streamkeeper.declare.driver import heap_note
from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.errors import DeclarationError
from streamkeeper.flows.generations import Generation
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper_jobs.cdc import Step, apply_changes, check_spec, prepare
from streamkeeper_jobs.cdc.events import Ties
from streamkeeper_jobs.sinks.expectations import check
from streamkeeper_jobs.sinks.sequence_type import order_beside
from streamkeeper_jobs.sinks.sink import Sink
from streamkeeper_jobs.sinks.write_lock import write_lock
from streamkeeper_jobs.spark.frames import column
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.stateful_operators import check_mode

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job

_REPLACED = f"{BOOKKEEPING}_replaced"


class CdcSink(Sink):
    """A target, written by ``foreachBatch`` under the generation's query id.

    The lock is taken for every batch, even if only this flow writes the table: another flow of the table may
    be declared later, and start while this one still runs as it was declared (docs/decisions/0013).
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        assert self._flow.spec is not None, "its table is kept by key"
        self._spec = self._flow.spec

    def check(self, frame: DataFrame) -> None:
        check(frame, self._flow)
        with self._placed():
            check_spec(self.changes(frame, 0, 0).schema, self._spec)
        check_mode(frame, self._flow.mode)
        heap = classes(self._job.spark)("java.lang.Runtime").getRuntime().maxMemory()
        if note := heap_note(self._flow, len(frame.columns), heap):
            say(note)

    def changes(self, rows: DataFrame, generation: int, batch: int) -> DataFrame:
        """Return the rows of a batch as the changes that the engine applies.

        :raises DeclarationError: they are to be a change feed, and lack its columns.
        """
        return of_feed(rows, self._spec) if self._spec.change_feed else rows

    def make(self, frame: DataFrame, generation: Generation) -> None:
        self.update(frame, generation)

    def update(self, frame: DataFrame, generation: Generation) -> None:
        job = self._job
        order = order_beside(job, self._flow) if isinstance(self._flow, AutoCdcFlow) else None
        lock = write_lock(job, generation, writes=False)
        with self._placed():
            added = prepare(
                job.spark,
                self.changes(frame, 0, 0).schema,
                self._spec,
                job.table_path,
                job.table,
                lock,
                order,
            )
        if added:
            text = f"the table {self._flow.target} has new columns: {', '.join(added)}"
            number = generation.number
            events.note(job.home, Kind.SCHEMA_CHANGED, text, [number, *added], by="driver", generation=number)

    def start(
        self, frame: DataFrame, generation: Generation, checkpoint: str, trigger: str | None
    ) -> StreamingQuery:
        lock = write_lock(self._job, generation)

        def apply(rows: DataFrame, number: int) -> None:
            change_rows, step = (
                self.changes(rows, generation.number, number),
                Step(generation.query_id, number),
            )
            self._tell(
                apply_changes(change_rows, self._spec, self._job.table_path, step, lock), step, generation
            )

        return self._start_by_batch(self._writer(frame, checkpoint, trigger), generation, apply)

    def _tell(self, ties: Ties, step: Step, generation: Generation) -> None:
        """Note what the sequence did not order, for the numbers of the batch; as an event once of a
        generation and a kind, and of each batch in the driver's log.
        """
        if ties.number:
            self._job.ties[step.batch_id] = ties.number
        texts = {
            "deleted": (
                f"{ties.deleted} upserts of batch {step.batch_id} have the sequence of a delete of their key,"
                f" which wins: their rows are not in {self._flow.target}"
            ),
            "differing": (
                f"{ties.differing} keys have upserts of other values at one sequence in batch"
                f" {step.batch_id}, or in it and in {self._flow.target}: the larger row counts, whichever is"
                " newer"
            ),
        }
        number = generation.number
        for name in (name for name in texts if getattr(ties, name)):
            text = f"{texts[name]}. Let sequence_by tell which came first"
            say(f"{self._job.flow.full_name}: {text}.")
            events.note(self._job.home, Kind.TIED, text, [number, name], by="driver", generation=number)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Add the place of the declaration to the engine's refusals.

        The original error is dropped as cause: a chain is reported by its last error, which lacks the place.
        """
        try:
            yield
        except DeclarationError as error:
            raise DeclarationError(
                f"{self._flow.location}: the flow {self._flow.name} cannot run. {error}"
            ) from None


def of_feed(rows: DataFrame, spec: CdcSpec) -> DataFrame:
    """Return rows of a Delta table's change feed as changes: what an update replaced is dropped.

    It counts as deleted where the update gave the row another key, or a view lets the new row not through.
    Both rows of an update are in one batch (source: DeltaSourceCDCSupport). The bookkeeping of a table that
    AUTO CDC writes itself is dropped, too.

    :raises DeclarationError: the rows lack the feed's columns.
    """
    lacking = {CHANGE_TYPE, COMMIT_VERSION} - set(rows.columns)
    if lacking:
        raise DeclarationError(
            f"It has change_feed=True, and its view leaves out the feed's {' and '.join(sorted(lacking))}, by"
            " which changes are ordered. Let the view keep them: they are not stored."
        )
    kind = F.col(CHANGE_TYPE)
    before, rows = kind == BEFORE_UPDATE, rows.drop(BOOKKEEPING)
    if spec.scd_type == 2:  # with type 1 what replaces the row wins anyway, without being looked for
        of_key = Window.partitionBy(COMMIT_VERSION, *(column(name) for name in spec.keys))
        replaced = F.max(~kind.isin(DELETED, BEFORE_UPDATE)).over(of_key)
        rows = rows.withColumn(_REPLACED, replaced).where(~(before & F.col(_REPLACED))).drop(_REPLACED)
    return rows.withColumn(CHANGE_TYPE, F.when(before, DELETED).otherwise(kind))
