"""The Spark step of ``rewind``: fences every writer of the table, then restores it with Delta's RESTORE,
once.

RESTORE undoes everything the table holds by then, so writes since the plan are checked just before it
(streamkeeper.recover.moves.put_back). A completed restore is found by the recovery's mark in the commit, so
a step that was killed continues. RESTORE reverts no transaction: batches that it undoes are never written
again under their old query ids. That is why each flow begins a new generation afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.delta import remembered
from streamkeeper.errors import RecoveryError
from streamkeeper.flows import backfill_flow, generations
from streamkeeper.recover.moves import put_back as put_backs
from streamkeeper.recover.moves.put_back import VersionToRestore
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.tables import past_versions, running_vacuums
from streamkeeper_jobs.generation.fence_earlier import not_fenced, write_end
from streamkeeper_jobs.spark.delta_commit import table_at
from streamkeeper_jobs.spark.delta_snapshot import JsonObject, domains_of
from streamkeeper_jobs.spark.delta_table import action_of, commit, delta_log_of, shut_out, snapshot_at
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import with_settings

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def fence_flows(spark: SparkSession, work: Work, plan: Plan) -> None:
    """Fence the earlier generations of a plan's flows, as the driver of their next generation would.

    Doing it again changes nothing. Abandoned backfills of the table are fenced too: a batch of theirs may be
    in progress in a process that was not waited for.

    :param plan: has one table. Of each flow with a next generation, all generations before it are fenced.
    """
    (table,) = plan.tables
    path = work.settings.table_path(table)
    following = [
        (work.home(flow), flow.next_generation) for flow in plan.flows if flow.next_generation is not None
    ]
    shut = [(home, number) for home, before in following for number in not_fenced(home, before, None)]
    for home in backfill_flow.unfinished(work.book.storage, plan.pipeline, table, but=plan.recovery_id):
        # Its process may be about to decide its first generation.
        shut += [(home, number) for number in home.generations() or [1]]
    for home, number in shut:
        write_end(home, number)
        if delta_log.exists(path):
            shut_out(spark, path, generations.query_id_of(home, number), work.check_stop)


def put_back(
    spark: SparkSession, work: Work, plan: Plan, backs: Iterable[VersionToRestore]
) -> Iterator[dict[str, Any]]:
    """Restore tables one after the other and yield the evidence of each.

    Skips a table that this recovery has restored. Waits for a running VACUUM, which could remove files that
    are restored.

    :param plan: made under the hold.
    :raises RecoveryError: files that a version needs are gone, which is checked for all tables before the
        first is changed; or something was written to a table since the plan was made.
    """
    versions, recovery = list(backs), plan.recovery_id
    # A running VACUUM could remove files that RESTORE brings back.
    for table in plan.tables:
        running_vacuums.wait_until_gone(work.book.storage, plan.pipeline, table, work.check_stop, say)
    restored_versions = {
        back.path: past_versions.restored_by(back.path, recovery, back.newest) for back in versions
    }
    for back in versions:
        lacking = (
            past_versions.lacking_files(back.path, back.version)
            if restored_versions[back.path] is None
            else []
        )
        if lacking:
            raise RecoveryError(
                f"{back.path} cannot be restored to version {back.version}: VACUUM removed {lacking[0]} and"
                " perhaps more. No table was restored. Reset the flow and keep its table"
                " (reset_checkpoint), or restore a backup with restore_table."
            )
    for back in versions:
        evidence: dict[str, Any] = {"path": back.path, "version": back.version, "from_version": back.newest}
        if restored_versions[back.path] is not None:
            put_remembered_back(spark, back.path, back.version)
            yield {
                **evidence,
                "put_back_at": restored_versions[back.path],
                "note": "was restored before this try",
            }
            continue
        late = put_backs.written_late(work, plan, back.path, back.newest, put_backs.once_decided(plan))
        if back.version == back.newest and not late:
            yield {**evidence, "put_back_at": None, "note": "nothing was written since then"}
        else:
            yield {**evidence, **_restore(spark, back, recovery)}


def _restore(spark: SparkSession, back: VersionToRestore, recovery: str) -> dict[str, Any]:
    with with_settings(spark, {_METADATA: past_versions.mark(recovery)}):
        metrics = table_at(spark, back.path).restoreToVersion(back.version).first()
    put_remembered_back(spark, back.path, back.version)
    at = past_versions.restored_by(back.path, recovery, back.newest)
    if at is None:
        raise RecoveryError(
            f"RESTORE of {back.path} to version {back.version} left no commit in its log. Run this step"
            " again."
        )
    return {"put_back_at": at, **({} if metrics is None else metrics.asDict())}


def put_remembered_back(spark: SparkSession, path: str, version: int) -> None:
    """Restore the remembered deletes of a restored version.

    RESTORE leaves the domain as it is. Killed between the two, the table is refused by its flows until the
    step was run again.
    """
    java, transaction = classes(spark), delta_log_of(spark, path).startTransaction()
    present, newest = domains_of(transaction.snapshot()), int(transaction.snapshot().version())
    if remembered.DOMAIN not in present:
        return
    restored_domain = domains_of(snapshot_at(spark, path, version)).get(remembered.DOMAIN)
    if restored_domain is None:  # before the first start had ended; the next one does that again
        action: JsonObject = {"domainMetadata": {**present[remembered.DOMAIN], "removed": True}}
    else:
        action = remembered.moved(
            {"domainMetadata": restored_domain}, str(transaction.metadata().id()), newest
        )
    commit(java, transaction, [action_of(java, action)])


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Do the step ``put_back`` of a rewind; do nothing if the target is kept."""
    plan = shared_steps.plan_under_hold(work)
    backs = put_backs.versions_of(plan)
    if not backs:
        return {"tables": [], "note": "the target is kept as it is"}
    put_backs.check_unchanged(work, plan, put_backs.once_decided(plan))
    fence_flows(spark, work, plan)
    return {"tables": list(put_back(spark, work, plan, backs))}
