"""The Spark steps of ``rebuild_without_downtime``: build a table next to the old one, then replace the old
one.

The new table and the checkpoints of the flows that write it agree at any moment: Delta's log knows their
batches. So their position need not be that of the old flows. Both are put in place together: the files by one
commit, which carries the batches of the new queries, and the checkpoints by generations that begin in them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import replace
from itertools import chain
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.delta import remembered
from streamkeeper.delta.copy_files import FIRST_COMMIT, Progress, copy_files, files_of
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations, holds
from streamkeeper.flows.generations import SIDE_TABLE, StartAt
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.moves import put_back as put_backs
from streamkeeper.recover.moves import side_table
from streamkeeper.recover.moves.side_table import SideTables
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now
from streamkeeper.tables.backups import TARGET
from streamkeeper.tables.past_versions import PUT_IN_PLACE, app_id
from streamkeeper_jobs.recover.backup_table import make_table
from streamkeeper_jobs.recover.restore_table import replace_table
from streamkeeper_jobs.recover.rewind import fence_flows
from streamkeeper_jobs.recover.side_table import (
    Builder,
    builders,
    last_commit,
    read_what_is_there,
    stop_for_good,
)
from streamkeeper_jobs.spark.delta_snapshot import JsonObject, Snapshot, read_snapshot
from streamkeeper_jobs.spark.log import say

_DEFINITION = "streamkeeper.definition"
"""Name under which the first commit of a side table records the definition that it was made from."""


def build(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Do the step ``build``: read all available data in rounds, until a round reads no more than is allowed.

    An interrupted step continues.

    :raises RecoveryError: a flow could not be completed; the table is unchanged, and this may be run again.
    :raises RequestError: the table cannot be replaced.
    """
    shared_steps.check_go(work)
    plan = work.plan
    path = plan.details_as(SideTables).path
    if delta_log.exists(path):
        snapshot = read_snapshot(spark, path)
        side_table.check_replaceable(path, snapshot.protocol, snapshot.metadata)
        _define(snapshot, plan)
    flows = builders(work, plan)
    for builder in flows:
        holds.release(builder.side, holds.recovery(plan.recovery_id))
    rounds = batches = 0
    while True:
        work.check_stop()
        rounds += 1
        read = read_what_is_there(spark, work, flows)
        batches += read
        work.progress(round=rounds, batches=read)
        if read <= side_table.BEHIND:
            break
    return {"rounds": rounds, "batches": batches, "left_in_last_round": read, "files": _bring(spark, work)}


def put_in_place(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Do the step ``put_in_place``.

    Until a generation is decided, the old flows can continue after everything that this step changes.

    :raises PlanRefused: the impact was not accepted.
    :raises RecoveryError: the table's definition has changed, something was written to it since the plan was
        made under the hold, or a flow could not be completed.
    """
    shared_steps.check_go(work)
    plan = shared_steps.plan_under_hold(work)
    flows = builders(work, plan)
    begun = [builder for builder in flows if _is_decided(builder, plan)]
    if not begun:
        for builder in flows:
            holds.release(builder.side, holds.recovery(plan.recovery_id))
        batches = read_what_is_there(spark, work, flows)
        work.progress(batches=batches)
        _check_definition(spark, plan)
        put_backs.check_unchanged(work, plan, put_backs.before_decided(plan))
    stop_for_good(work, flows)
    brought = _bring(spark, work)
    fence_flows(spark, work, plan)
    standing = {
        builder.flow.full_name: _begin(builder, plan)
        for builder in flows
        if Observed(builder.side).begun is not None
    }
    replaced = _replace(spark, plan)
    for builder in flows:
        if Observed(builder.side).begun is None:  # its sources are still empty
            generations.decide(builder.home, shared_steps.generation_of(plan, builder.plan, builder.home))
    return {"table": replaced, "files": brought, "flows": standing}


def _define(snapshot: Snapshot, plan: Plan) -> None:
    """Create the side table, without rows, with the definition of the present table, unless it exists."""
    tables = plan.details_as(SideTables)
    nothing = [action for action in (remembered.emptied(action) for action in snapshot.others) if action]
    empty = replace(
        snapshot,
        adds=(),
        others=(*(action for action in snapshot.others if _is_definition(action)), *nothing),
    )
    parameters = {
        "source": tables.path,
        "sourceVersion": str(snapshot.version),
        _DEFINITION: _digest(snapshot),
    }
    table_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{plan.recovery_id}/{TARGET}"))
    make_table(tables.side, empty, parameters, table_id=table_id)


def _is_definition(action: JsonObject) -> bool:
    """Return whether an action is part of the definition, such as clustering: not of writes or row ids."""
    own = ("delta.rowTracking", remembered.DOMAIN)
    return "domainMetadata" in action and action["domainMetadata"]["domain"] not in own


def _digest(snapshot: Snapshot) -> str:
    """Return a digest of a table's definition."""
    own = {name: content for name, content in snapshot.metadata.items() if name not in ("id", "createdTime")}
    domains = [action for action in snapshot.others if _is_definition(action)]
    text = json.dumps([snapshot.protocol, own, sorted(map(json.dumps, domains))], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_definition(spark: SparkSession, plan: Plan) -> None:
    """Check that the present table still has the definition that the side table was made from.

    :raises RecoveryError: it was changed; nothing was touched.
    """
    tables = plan.details_as(SideTables)
    first = open_storage(tables.side).read(FIRST_COMMIT)
    info = json.loads(first.splitlines()[0]).get("commitInfo", {}) if first else {}
    made_by = info.get("operationParameters", {}).get(_DEFINITION)
    if made_by is not None and made_by != _digest(read_snapshot(spark, tables.path)):
        raise RecoveryError(
            f"The columns, properties or constraints of {tables.path} were changed while the side table was"
            " built, so those changes would be lost. Nothing was changed. Give this recovery up"
            f" (streamkeeper abandon {plan.recovery_id}), and plan again."
        )


def _bring(spark: SparkSession, work: Work) -> int:
    """Copy the files of the side table into the table's folder, yet unreferenced; return their number."""
    tables = work.plan.details_as(SideTables)
    if not delta_log.exists(tables.side):
        raise RecoveryError(
            f"There is no table at {tables.side}: its sources had no rows yet, or someone removed it. The"
            " old table was not changed."
        )
    built = read_snapshot(spark, tables.side)
    actions = chain(built.others, ({"add": add} for add in built.adds))
    files = list(files_of(json.dumps(action) for action in actions))
    progress = Progress(work.progress, work.check_stop, len(files))
    copy_files(open_storage(tables.side), open_storage(tables.path), files, progress, share=True)
    return len(files)


def _is_decided(builder: Builder, plan: Plan) -> bool:
    assert builder.plan.next_generation is not None, "every flow of the plan has one"
    decided = generations.read(builder.home, builder.plan.next_generation)
    return decided is not None and decided.recovery == plan.recovery_id


def _begin(builder: Builder, plan: Plan) -> dict[str, Any]:
    """Write the next generation of a flow, begun in the checkpoint that built the side table.

    Between the two files it is a generation that no driver can begin; its start mode says so.
    """
    begun, number = Observed(builder.side).begun, builder.plan.next_generation
    assert begun is not None and number is not None, "asked for flows that have begun beside"
    beside, start = begun
    decided = shared_steps.generation_of(plan, replace(builder.plan, start=StartAt(SIDE_TABLE)), builder.home)
    generations.decide(builder.home, replace(decided, query_id=beside.query_id, schemas=start.schemas))
    epochs = builder.home.epochs()
    evidence = {
        **start.evidence,
        "rebuild": plan.recovery_id,
        "fenced": [earlier for earlier in builder.home.generations() if earlier < number],
    }
    generations.begin(
        builder.home,
        replace(start, number=number, epoch=(epochs[-1] if epochs else 0) + 1, at=now(), evidence=evidence),
    )
    last = last_commit(builder.side)
    if builder.flow.declaration.once and generations.finished(builder.side) is not None:
        generations.finish(builder.home, number, last if last >= 0 else None)
    return {"generation": number, "query_id": beside.query_id, "checkpoint": start.checkpoint, "batch": last}


def _replace(spark: SparkSession, plan: Plan) -> dict[str, Any]:
    """Replace the table, in one commit that carries the batches of the queries that will continue with it."""
    tables, writer = plan.details_as(SideTables), app_id(plan.recovery_id, PUT_IN_PLACE)
    path, beside = tables.path, tables.side
    built, before = read_snapshot(spark, beside), delta_log.latest_version(path)
    wrote = [action for action in built.others if "txn" in action and int(action["txn"]["version"]) < FENCE]
    if before is None:
        parameters = {"source": beside, "sourceVersion": str(built.version), "recovery": plan.recovery_id}
        make_table(path, built, parameters)
        numbers: JsonObject = {}
    else:
        numbers = replace_table(spark, path, built, writer, wrote)
    version = delta_log.latest_version(path)
    say(f"{path} was replaced by the side table, in version {version}.")
    replaced = {"path": path, "version_before": before, "version": version}
    return {**replaced, "rows": built.rows, **numbers}
