"""Applying one micro-batch: once under its step, under the writers' turn, and again as a whole where another
commit got in between.
"""

from __future__ import annotations

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper_jobs.cdc.columns import layout_of
from streamkeeper_jobs.cdc.events import Work, changes
from streamkeeper_jobs.cdc.scd1 import apply_newest
from streamkeeper_jobs.cdc.scd1_by_value import apply_by_value
from streamkeeper_jobs.cdc.scd2 import apply_history
from streamkeeper_jobs.cdc.steps import CdcTables, Step, Turn
from streamkeeper_jobs.spark.delta_commit import partitions_of, table_at
from streamkeeper_jobs.spark.delta_table import last_written
from streamkeeper_jobs.spark.log import say

TRIES = 5
"""How often a batch is tried that others' commits get in the way of: an OPTIMIZE, or a writer that takes no
turns.
"""

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""What a batch is tried again for. Not ``ConcurrentTransactionException``: somebody else writes, or has just
sealed, this generation.
"""


def apply_changes(batch: DataFrame, spec: CdcSpec, tables: CdcTables, step: Step, turn: Turn) -> None:
    """Apply one micro-batch to a target and its tombstones; repeated with the same step it changes nothing
    more.

    The batch must belong to a session that no other thread uses, as ``foreachBatch`` gives it: the step is
    handed to Delta through it. A batch of a sealed generation is left out, as Delta's own sink leaves it out.

    :raises ChangeRefused: some of its rows have no key or no sequence; nothing was written.
    :raises DeclarationError: the target was not prepared for this flow.
    """
    for left in reversed(range(TRIES)):
        try:
            with turn():
                _apply_once(batch, spec, tables, step)
            return
        except CONFLICTS as conflict:
            if not left:
                raise
            say(
                f"Batch {step.batch_id} met another commit ({type(conflict).__name__}) and is applied again,"
                " as a whole."
            )


def _apply_once(batch: DataFrame, spec: CdcSpec, tables: CdcTables, step: Step) -> None:
    session = batch.sparkSession
    written = last_written(session, tables.target, step.query_id)
    if written is not None and written >= step.batch_id:
        # Nothing of it is wanted. But Spark lets no batch of a stateful query pass that has not made its
        # state (STATE_STORE_COMMIT_…).
        batch.write.format("noop").mode("overwrite").save()
        return
    layout = layout_of(
        table_at(session, tables.target).toDF().schema, spec.keys, partitions_of(session, tables.target)
    )
    found, work = changes(batch, spec, layout), Work(layout, tables, step)
    if layout.history:
        apply_history(found, spec, work)
    elif layout.by_value:
        apply_by_value(found, work)
    else:
        apply_newest(found, work)
