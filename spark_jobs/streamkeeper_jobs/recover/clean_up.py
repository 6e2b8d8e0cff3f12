"""The step ``forget_deletes`` of ``clean_up``: removes old deletes and truncates of AUTO CDC tables.

Each table is cleaned under the write lock. The wait for the lock may be long, so whether a recovery works on
the table is checked after it. The table's lock is held until all is removed: no recovery begins meanwhile,
and what a recovery relies on stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.delta import remembered
from streamkeeper.errors import TableLocked
from streamkeeper.flows.files import clock_ahead
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.steps.clean_up import CleanUp, give_back_locks
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import recovery_lock, tombstone_retention
from streamkeeper_jobs.cdc.remembered import forget
from streamkeeper_jobs.cdc.table_schema import is_bound
from streamkeeper_jobs.recover.tidy_tables import write_lock_on
from streamkeeper_jobs.spark.delta_snapshot import domains_of
from streamkeeper_jobs.spark.delta_table import snapshot_at

STRAY_SECONDS = 86400.0
"""Age of a file that no version names, from which it belongs to no batch that may still be committed."""


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Remove old deletes of the plan's tables; skip a table that a recovery has locked.

    Running it again finds nothing more to remove.

    :raises TableLocked: a write lock was not released in time; earlier tables are already done.
    """
    forgotten: dict[str, int] = {}
    skipped: dict[str, str] = {}
    tombstones = work.plan.details_as(CleanUp).tombstones
    ages_count = bool(tombstones) and clock_ahead(work.book.storage) is None
    try:
        for item in tombstones:
            work.check_stop()
            table = item.table
            reason = _why_left(work, table)
            if reason is None:
                with (
                    write_lock_on(spark, work.settings, work.plan.pipeline, table, "clean_up")(),
                    _locked(work, table) as reason,
                ):
                    if reason is None:
                        before = datetime.fromisoformat(item.before)
                        path = work.settings.table_path(table)
                        if is_bound(spark, path):  # else its first start has not ended
                            forgotten[table] = forget(spark, path, before, nullcontext)
                            if ages_count:
                                _remove_strays(spark, path)
            if reason is not None:
                skipped[table] = reason
    finally:
        give_back_locks(work)  # also those of an earlier try that was killed
    return {"forgotten": forgotten, "left": skipped}


def _remove_strays(spark: SparkSession, path: str) -> None:
    """Remove files of remembered changes that no version names which the log can still show.

    Those of the last day stay: the log is read for longer than the lock may be this job's, and what a batch
    has written meanwhile may be named by its commit.
    """
    named, runs = set[str](), open_storage(f"{path}/{remembered.FOLDER}")
    run_names = runs.names()
    versions = delta_log.versions(path)
    oldest = domains_of(snapshot_at(spark, path, versions[-1])).get(remembered.DOMAIN) if versions else None
    changes = [commit.remembered for commit in delta_log.commits(path, at_once=4)]
    changes.append(remembered.of_actions([{"domainMetadata": oldest}] if oldest else []))
    for one in changes:
        named.update(name.split("/")[-2] for name, _ in (one.files if one else ()))
    for run in run_names:
        if run not in named and _is_old(runs, run):
            runs.remove(run)


def _is_old(runs: Storage, run: str) -> bool:
    written = (runs.modified(f"{run}/{name}") for name in runs.names(run))
    return time.time() - max((at for at in written if at is not None), default=0.0) > STRAY_SECONDS


def _why_left(work: Work, table: str) -> str | None:
    """Return why a table is skipped now; None if nothing prevents its cleaning.

    A flow may have gone back to an earlier position since the plan.
    """
    storage, pipeline = work.book.storage, work.plan.pipeline
    recovery = recovery_lock.holder(storage, pipeline, table)
    if recovery not in (None, work.plan.recovery_id):
        return f"the recovery {recovery} has locked it"
    writers = read_manifest(work.settings).writers(pipeline, table)
    retention = tombstone_retention.forgets(
        storage, writers, work.plan.request["tombstone_days"] * 86400, time.time()
    )
    return retention.reason if retention.before is None else None


@contextmanager
def _locked(work: Work, table: str) -> Iterator[str | None]:
    """Hold a table's lock; yield why it cannot be taken or why the table is skipped, else None."""
    storage, pipeline, recovery = work.book.storage, work.plan.pipeline, work.plan.recovery_id
    try:
        recovery_lock.take(storage, pipeline, table, recovery)
    except TableLocked as error:
        yield _why_left(work, table) or str(error)
        return
    try:
        yield _why_left(work, table)
    finally:
        recovery_lock.give_back(storage, pipeline, table, recovery)
