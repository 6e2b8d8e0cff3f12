"""Checks, before the flows of a rewind continue, that all files restored by RESTORE exist.

It uses the log and the storage alone; no row is read. Before RESTORE nothing referenced those files, and a
VACUUM that was running then may remove them even afterwards. All other files were referenced all the time,
and no VACUUM removes those.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from streamkeeper.errors import RecoveryError
from streamkeeper.recover.moves.put_back import versions_of
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import open_storage
from streamkeeper.tables import past_versions

_AT_ONCE, _IN_HAND = 16, 1000
"""Files that are checked in parallel, and files between two checks for an abandoned recovery."""


def verify_files(work: Work) -> dict[str, Any]:
    """Check that every file exists that the restore of tables brought back.

    :raises RecoveryError: one does not; the flows stay held.
    """
    plan, tables = shared_steps.plan_under_hold(work), {}
    for back in versions_of(plan):
        path = back.path
        version = past_versions.restored_by(path, plan.recovery_id, back.newest)
        if version is None:
            continue  # nothing was written since, so nothing was restored
        names = past_versions.files_brought_back(path, version)
        gone = _missing(work, path, names)
        if gone:
            raise RecoveryError(
                _missing_files_message(
                    plan,
                    f"{path} was restored to version {back.version}, by version {version}",
                    gone,
                    len(names),
                )
            )
        tables[path] = {"version": version, "files": len(names)}
    return {"tables": tables}


def _missing(work: Work, path: str, names: list[str]) -> list[str]:
    storage, gone = open_storage(path), []
    with ThreadPoolExecutor(_AT_ONCE, "streamkeeper-verify") as pool:
        for first in range(0, len(names), _IN_HAND):
            work.check_stop()
            some = names[first : first + _IN_HAND]
            gone += [
                name
                for name, moment in zip(some, pool.map(storage.modified, some), strict=True)
                if moment is None
            ]
    return gone


def _missing_files_message(plan: Plan, restored: str, gone: list[str], total: int) -> str:
    flows = " ".join(flow.flow for flow in plan.flows)
    return (
        f"{restored}, and {len(gone)} of the {total} files that this brought back are missing, such as"
        f" {gone[0]}: a VACUUM removed them meanwhile. The flows stay held and have read nothing. Restore"
        f" the files from a copy and run this step again; or hold the flows yourself (streamkeeper"
        f" hold {flows}), give this recovery up (streamkeeper abandon {plan.recovery_id}), restore a backup"
        " with restore_table, and release them."
    )
