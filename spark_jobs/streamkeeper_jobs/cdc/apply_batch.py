"""Applies one micro-batch: once under its step, under the write lock; again as a whole after a conflict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame, SparkSession

from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper_jobs.cdc.columns import layout_of
from streamkeeper_jobs.cdc.events import Ties, Work, changes
from streamkeeper_jobs.cdc.replace_rows import opened
from streamkeeper_jobs.cdc.scd1 import apply_newest
from streamkeeper_jobs.cdc.scd1_by_value import apply_by_value
from streamkeeper_jobs.cdc.scd2 import apply_history
from streamkeeper_jobs.cdc.steps import Step, WriteLocked
from streamkeeper_jobs.spark.delta_table import last_written
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import with_settings, without_call_sites

ADAPTIVE = "spark.sql.adaptive.enabled"
MANY = 32
"""Partitions of shuffles above which adaptive execution is of use."""

LISTED, MOST_LISTED = "spark.databricks.delta.allFilesInCrc.thresholdNumFiles", "500"
"""Files of a table up to which the checksum of a version lists them: the setting, and its value for batches,
which is some 500 KB. Delta's default is 50. A batch asks for no file that its version's checksum lists.
"""

TRIES = 5
"""Tries of a batch that conflicts with other commits: an OPTIMIZE, or a writer that takes no lock."""

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Conflicts after which a batch is tried again.

``ConcurrentTransactionException`` says that the target remembers something else by now, or that another
driver writes, or has just fenced, this generation. Then it is not tried again.
"""


def apply_changes(batch: DataFrame, spec: CdcSpec, path: str, step: Step, lock: WriteLocked) -> Ties:
    """Apply one micro-batch to the target at a path or URL; return the ties of its upserts (none are counted
    with ``ignore_null_updates`` in SCD type 1, and none again of a step that the target has).

    Repeated with the same step it changes nothing more.

    The batch must belong to a session that no other thread uses, as that of ``foreachBatch`` does: the step
    is passed to Delta through it. A batch of a fenced generation is skipped, as by Delta's own sink.

    :raises ChangeRefused: some of its rows have no key or no sequence; nothing was written.
    :raises DeclarationError: the target was not prepared for this flow, or somebody restored or copied it.
    """
    session = batch.sparkSession
    listed = {LISTED: MOST_LISTED} if session.conf.get(LISTED, None) is None else {}
    for remaining_tries in reversed(range(TRIES)):
        try:
            with lock(), planned_at_once(session), with_settings(session, listed), without_call_sites():
                return _apply_once(batch, spec, path, step)
        except CONFLICTS as conflict:
            of_step = isinstance(conflict, ConcurrentTransactionException)
            if not remaining_tries or (of_step and _has_step(batch, path, step)):
                raise
            say(
                f"Batch {step.batch_id} met another commit ({type(conflict).__name__}) and is applied again,"
                " as a whole."
            )
    raise AssertionError("the last try returns or raises")


@contextmanager
def planned_at_once(session: SparkSession) -> Iterator[None]:
    """Plan each query of a batch as a whole where shuffles have few partitions anyway, as on one machine.

    Adaptive execution makes a Spark job of each shuffle and of each broadcast, to join small partitions
    together: here it finds none.
    """
    if int(session.conf.get(PARTITIONS) or 0) > MANY or session.conf.get(ADAPTIVE) != "true":
        yield
        return
    session.conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        session.conf.set(ADAPTIVE, "true")


def _has_step(batch: DataFrame, path: str, step: Step) -> bool:
    last = last_written(batch.sparkSession, path, step.query_id)
    return last is not None and last >= step.batch_id


def _apply_once(batch: DataFrame, spec: CdcSpec, path: str, step: Step) -> Ties:
    target = opened(batch.sparkSession, path, step)
    if target.has_step:
        # The rows are not needed, but Spark fails a batch of a stateful query that has not committed its
        # state (STATE_STORE_COMMIT_…).
        batch.write.format("noop").mode("overwrite").save()
        return Ties()
    layout = layout_of(target.schema, spec.keys, target.partitions)
    change_rows, work = changes(batch, spec, layout), Work(layout, target)
    if layout.history:
        return apply_history(change_rows, spec, work)
    if layout.by_value:
        apply_by_value(change_rows, work)
        return Ties()
    return apply_newest(change_rows, work, spec.one_row_a_key)
