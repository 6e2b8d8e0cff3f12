"""Names and places of a side table, the flows that write it, and their removal.

While it is built it is a table of its own, next to the one whose place it will take, written by flows of its
own: the declared ones under other names, with leases, locks and query ids of their own. Only their
checkpoints lie where they will stay, in the folders of the declared flows, since those go on in them
afterwards.

{warehouse}/<table>__rebuild_<mark>                     the table
{state}/{pipeline}/<flow>__rebuild_<mark>/              leases, heartbeats and generations of its flow
{state}/{pipeline}/<flow>/checkpoints/rebuild-<mark>-…  checkpoints of that flow
{state}/{pipeline}/tables/<table>__rebuild_<mark>/write_lock/ lock of those flows

The mark is the end of the recovery's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamkeeper.delta.copy_files import check_copyable
from streamkeeper.delta.summary import check_rows_may_go
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, leases, ledger
from streamkeeper.flows.files import FlowHome, LockFiles
from streamkeeper.flows.side_flow import _FOLDER, mark_of, name_of, side_home
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

RECOVERY = "rebuild_without_downtime"
BEHIND = 5
"""Batches that the last round of reading before the hold may find."""
_IDENTITY = "delta.identity.step"


@dataclass(frozen=True)
class SideTables:
    """Path of the table that is replaced, and of its side table."""

    path: str
    side: str


def check_replaceable(path: str, protocol: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Check that another table's files can be put in a table's place by one commit.

    :param protocol: as in the log, and ``metadata`` too.
    :raises RequestError: they cannot; nothing was changed.
    """
    check_copyable(path, protocol)
    check_rows_may_go(path, metadata)
    if _IDENTITY in metadata.get("schemaString", ""):
        raise RequestError(
            f"{path} has an identity column: a side table would give its numbers a second time."
            " Nothing was changed. Choose full_refresh."
        )


def left_over(settings: Settings, pipeline: str) -> Iterator[str]:
    """Return the recoveries of a pipeline that are over and have left a side table, or a part of one."""
    storage = open_storage(settings.state)
    for recovery in ledger.recoveries(storage, pipeline):
        book = ledger.open(storage, pipeline, recovery)
        planned = book.find("planned")
        if planned is None or planned.evidence.get("recovery") != RECOVERY or book.end() is None:
            continue
        if _remains(settings, plans.from_json(planned.evidence)):
            yield recovery


def _remains(settings: Settings, plan: Plan) -> bool:
    """Return whether anything is left of what a recovery built, but what the flows continue with."""
    storage = open_storage(settings.state)
    homes = [FlowHome(storage, plan.pipeline, flow.name) for flow in plan.flows]
    if any(
        storage.names(side_home(home, plan.recovery_id).root) or _checkpoints(home, plan.recovery_id)
        for home in homes
    ):
        return True
    return bool(open_storage(plan.details_as(SideTables).side).names())


def remove(settings: Settings, plan: Plan) -> dict[str, Any]:
    """Remove what a recovery built, but for the checkpoints that flows continue with; what is gone is gone.
    Nothing of a living driver's goes.

    :raises StorageError: something cannot be removed.
    """
    storage = open_storage(settings.state)
    homes = [FlowHome(storage, plan.pipeline, flow.name) for flow in plan.flows]
    for home in homes:
        side = side_home(home, plan.recovery_id)
        if leases.may_run(side):
            return {
                "left": f"{side.full_name} may still be driven; clean_up removes it once its driver is gone"
            }
    beside = plan.details_as(SideTables).side
    folder, _, name = beside.rstrip("/").rpartition("/")
    open_storage(folder).remove(name)
    for table in plan.tables:
        locks = LockFiles(storage, plan.pipeline, name_of(table, plan.recovery_id))
        storage.remove(locks.root.rpartition("/")[0])
    for home in homes:
        for name in _checkpoints(home, plan.recovery_id):
            storage.remove(name)
        storage.remove(side_home(home, plan.recovery_id).root)
    return {"removed": beside}


def _checkpoints(home: FlowHome, recovery_id: str) -> list[str]:
    """Return the checkpoints that a recovery made beside for a flow and no generation began with."""
    folder, mine = f"{home.root}/checkpoints", f"{_FOLDER}{mark_of(recovery_id)}-"
    names = [name for name in home.storage.names(folder) if name.startswith(mine)]
    if not names:
        return []
    starts = (generations.read_start(home, number) for number in home.generations())
    used = {start.checkpoint for start in starts if start is not None}
    return [f"{folder}/{name}" for name in names if f"{folder}/{name}" not in used]
