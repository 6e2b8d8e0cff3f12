"""The Spark step of ``full_refresh``: fences the writers of a table, then empties it by one commit."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError
from streamkeeper.recover.moves import put_back as put_backs
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.requests.full_refresh import Emptying
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.tables.past_versions import EMPTIED, app_id, is_emptied
from streamkeeper_jobs.cdc.table_schema import empty, is_bound
from streamkeeper_jobs.recover.rewind import fence_flows
from streamkeeper_jobs.spark.delta_commit import carrying, table_at, table_properties


def empty_tables(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Check that the table may be emptied, fence its writers, and delete its rows.

    :raises PlanRefused: the impact was not accepted.
    :raises RecoveryError: it takes appends only, or something was written to it since the plan was made
        under the hold; it was not emptied.
    """
    shared_steps.check_go(work)
    plan = shared_steps.plan_under_hold(work)
    path = plan.details_as(Emptying).path
    _check_may_be_emptied(spark, path)
    put_backs.check_unchanged(work, plan, put_backs.before_decided(plan))
    before = delta_log.latest_version(path)
    fence_flows(spark, work, plan)
    # Again: until the fence, a driver that was taken for gone may have ended its batch.
    put_backs.check_unchanged(work, plan, put_backs.once_fenced(plan))
    return {"path": path, **_empty(spark, path, plan.recovery_id, before)}


def _check_may_be_emptied(spark: SparkSession, path: str) -> None:
    if table_properties(table_at(spark, path)).get("delta.appendOnly") == "true":
        raise RecoveryError(
            f"{path} has the property delta.appendOnly, so no row of it can be removed. Nothing was changed."
            " Unset the property, and run this step again."
        )


def _empty(spark: SparkSession, path: str, recovery_id: str, before: int | None) -> dict[str, Any]:
    if is_emptied(path, recovery_id):
        return {"note": "was emptied before this try"}
    if is_bound(spark, path):
        empty(spark, path, app_id(recovery_id, EMPTIED))
    else:
        with carrying(spark, app_id(recovery_id, EMPTIED), 0):
            table_at(spark, path).delete()
    return {"version_before": before, "version": delta_log.latest_version(path)}
