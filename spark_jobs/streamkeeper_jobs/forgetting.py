"""The step ``forget_deletes`` of a clean-up: AUTO CDC tables forget old deletes and truncates, each in the writers' turn on its table."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper import locks
from streamkeeper.recovery_kinds import Work
from streamkeeper_jobs.cdc.steps import CdcTables
from streamkeeper_jobs.cdc.tombstones import forget
from streamkeeper_jobs.tidying import turn_on


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Let the tables of the plan forget; one that a recovery has locked is left for another day. Doing it again finds nothing more.

    :raises TableLocked: a writer's turn did not end in time; tables before it have forgotten already.
    """
    forgotten: dict[str, int] = {}
    left: dict[str, str] = {}
    for item in work.plan.details["tombstones"]:
        work.check_stop()
        table = item["table"]
        recovery = locks.holder(work.book.storage, work.plan.pipeline, table)
        if recovery is not None:
            left[table] = f"the recovery {recovery} works on it"
            continue
        tables = CdcTables(work.settings.table_path(table), work.settings.tombstones_path(table))
        turn = turn_on(spark, work.settings, work.plan.pipeline, table, "clean_up")
        forgotten[table] = forget(spark, tables, datetime.fromisoformat(item["before"]), turn)
    return {"forgotten": forgotten, "left": left}
