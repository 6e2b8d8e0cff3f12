"""The step ``tidy`` of streamkeeper.recover.kinds.tidy_tables: OPTIMIZE, under the write lock where they take
locks, then VACUUM.

Neither changes a row, and both may be repeated, or killed at any moment. Delta lets OPTIMIZE or a MERGE of
the same files through, never both; the lock spares a busy flow's batches, and the compaction, from losing
against one another for ever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError, StreamkeeperError, TableLocked
from streamkeeper.flows.files import LockFiles, clock_ahead
from streamkeeper.flows.leases import Process
from streamkeeper.recover.kinds.tidy_tables import (
    TableTidy,
    Tidying,
    left_alone,
    property_hours,
    recovery_at_work,
)
from streamkeeper.recover.plans.kind import Work
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.times import now
from streamkeeper.tables import running_vacuums
from streamkeeper.tables.write_lock import Holder, WriteLock, describe
from streamkeeper_jobs.sinks.write_lock import jvm_process
from streamkeeper_jobs.spark.delta_commit import table_at, table_properties
from streamkeeper_jobs.spark.log import say

LOCK_SECONDS = 900.0
"""How long a lock is waited for; a flow that has one for longer has a table that is tidied another day."""
_RETENTION = "delta.deletedFileRetentionDuration"
_NOBODY = "tables"
"""What stands for the flow of a lock that no flow has: no flow may be called so."""


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Tidy the tables of the plan, one after the other. Doing it again finds nothing more to put together.

    :raises RecoveryError: a table could not be tidied; the others were.
    """
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    for tidy in (tidy for tidy in work.plan.details_as(Tidying).tables if tidy.left_alone is None):
        for path in filter(delta_log.exists, [work.settings.table_path(tidy.table)]):
            work.check_stop()
            try:
                done.append(_tidy(spark, work.settings, tidy, path))
                say(json.dumps(done[-1]))
            except (StreamkeeperError, PySparkException, Py4JError) as error:
                problem = f"{path} could not be tidied: {type(error).__name__}: {error}"
                say(problem)
                failed.append(problem.splitlines()[0])
    if failed:
        raise RecoveryError("\n".join([*failed, f"The others ({len(done)}) were done."]))
    return {"tables": done, "left": left_alone(work.plan)}


def _tidy(spark: SparkSession, settings: Settings, tidy: TableTidy, path: str) -> dict[str, Any]:
    """Tidy one table; what a recovery works on is left for another day, which is looked at again right before
    each change.
    """
    state = open_storage(settings.state)
    table = table_at(spark, path)
    lock = write_lock_on(spark, settings, tidy.pipeline, tidy.table, "tidy_tables")
    with lock() if tidy.locked else nullcontext():
        if (at_work := recovery_at_work(state, tidy)) is not None:  # the lock may have been long in coming
            return {"path": path, "left_alone": at_work}
        compacted = table.optimize().executeCompaction().select("metrics.*").first()
    assert compacted is not None, "OPTIMIZE gives one row"
    added, removed = compacted["numFilesAdded"], compacted["numFilesRemoved"]
    evidence = {"path": path, "files_added": added, "files_removed": removed}
    return {**evidence, **_vacuum(spark, table, state, tidy)}


def _vacuum(spark: SparkSession, table: DeltaTable, state: Storage, tidy: TableTidy) -> dict[str, Any]:
    """Vacuum with the plan's retention, or the table's own where that is longer."""
    if tidy.retention_hours is None:
        return {"vacuumed": None}
    declared = table_properties(table).get(_RETENTION)
    own = property_hours(declared) if declared is not None else 0.0
    if own is None:
        return {
            "vacuumed": None,
            "why": f"the table's {_RETENTION} is {declared!r}, which is no number of hours, days or weeks",
        }
    hours = max(tidy.retention_hours, own)
    if (wrong := clock_ahead(state)) is not None:
        return {"vacuumed": None, "why": wrong}
    # Noted before the look: a recovery sees the note, or is seen.
    with running_vacuums.noted(state, tidy.pipeline, tidy.table, jvm_process(spark)):
        if (at_work := recovery_at_work(state, tidy)) is not None:
            return {"vacuumed": None, "why": at_work}
        table.vacuum(hours)
    return {"vacuumed": hours}


def write_lock_on(
    spark: SparkSession, settings: Settings, pipeline: str, table: str, who: str
) -> Callable[[], AbstractContextManager[None]]:
    """Return the way to the write lock on a table for one who is no flow; waiting for it ends after
    :data:`LOCK_SECONDS`.

    :param who: what is to be run again then, for the message.
    """
    me = Holder(_NOBODY, 0, 0, None, Process.current(), jvm_process(spark), now())
    locks = LockFiles(open_storage(settings.state), pipeline, table)
    deadline = time.monotonic() + LOCK_SECONDS

    def wait(seconds: float) -> None:
        if time.monotonic() >= deadline:
            raise TableLocked(
                f"The write lock on {table} was not free within {LOCK_SECONDS:g} s. Run {who} again."
            )
        time.sleep(seconds)

    return WriteLock(
        locks, me, settings.lease_term, check=lambda: None, shut_out=_leave_it, wait=wait, say=say
    )


def _leave_it(holder: Holder) -> None:
    """Tidying shuts no flow out: that is for a flow that must write."""
    raise TableLocked(
        f"{describe(holder)} holds the lock, is silent, and may still run. A flow that writes the table"
        " resolves this."
    )
