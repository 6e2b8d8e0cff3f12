"""Removing what a plan of ``clean_up`` names. Flows run on meanwhile.

A checkpoint is marked as gone before its first file goes, so what a kill leaves of it counts as nothing; run again, the rest goes. While
the files of a flow go its table's lock is held, so that no recovery is planned upon them under its hold.
"""

from __future__ import annotations

import time
from typing import Any

from streamkeeper import backups, generations, leases, locks
from streamkeeper.errors import RecoveryError, TableLocked
from streamkeeper.home import FlowHome
from streamkeeper.leases import Life
from streamkeeper.manifest import read_manifest
from streamkeeper.recovery_kinds import Work

_SILENT_SECONDS = 86400.0


def remove(work: Work) -> dict[str, Any]:
    """Remove what the plan names, flow by flow; a flow whose table a recovery has locked is left for another day, and said so."""
    manifest = read_manifest(work.settings)
    targets = {flow.name: flow.declaration.target for flow in manifest.flows() if flow.pipeline.name == work.plan.pipeline}
    removed, left = 0, {}
    for item in work.plan.details["remove"]:
        work.check_stop()
        why = _remove(work, item, targets.get(item["flow"]))
        if why is not None:
            left[item["flow"]] = why
        else:
            removed += len(item["names"])
    return {"removed": removed, "left": left}


def remove_backups(work: Work) -> dict[str, Any]:
    """Remove the backups that the plan names; one that a recovery needs by now stays."""
    removed, left = [], {}
    for item in work.plan.details["backups"]:
        work.check_stop()
        try:
            backups.remove(work.settings, work.plan.pipeline, item["table"], item["id"])
            removed.append(item["id"])
        except RecoveryError as error:
            left[item["id"]] = str(error)
    return {"removed": removed, "left": left}


def _remove(work: Work, item: dict[str, Any], table: str | None) -> str | None:
    """Remove one thing that the plan names; say why not where it is left."""
    plan, home = work.plan, FlowHome(work.book.storage, work.plan.pipeline, item["flow"])
    number = item["generation"]
    if number is not None and _is_in_use(home, number):
        return f"generation {number} is in use again"
    if item.get("forget") and (table is not None or _runs(home)):
        return "it is declared again" if table is not None else "a driver of it may be alive"
    if table is None:
        _remove_all(work, home, item)
        return None
    try:
        locks.take(home.storage, home.pipeline, table, plan.recovery_id)
    except TableLocked as error:
        return str(error)
    try:
        _remove_all(work, home, item)
    finally:
        locks.give_back(home.storage, home.pipeline, table, plan.recovery_id)
    return None


def _remove_all(work: Work, home: FlowHome, item: dict[str, Any]) -> None:
    marked = home.generations() if item.get("forget") else [item["generation"]] if item["generation"] is not None else []
    for number in marked:
        generations.retire(home, number, work.plan.recovery_id)
    for name in item["names"]:
        home.storage.remove(name)


def _is_in_use(home: FlowHome, number: int) -> bool:
    """Say whether a generation that was to go is needed after all: a recovery may have decided one that begins from it since."""
    newest = home.generations()[-1]
    decided = generations.read(home, newest)
    return newest == number or (
        generations.read_start(home, newest) is None and decided is not None and number in (decided.previous, decided.start.generation)
    )


def _runs(home: FlowHome) -> bool:
    """Say whether a driver of a flow may be alive; one that cannot be seen from here is, if it beat within a day."""
    lease = leases.current(home)
    if lease is None:
        return False
    match leases.life(home, lease):
        case Life.LEFT | Life.DEAD:
            return False
        case Life.ALIVE:
            return True
        case Life.UNKNOWN:
            beat = home.storage.modified(home.heartbeat(lease.epoch))
            return beat is not None and time.time() - beat < _SILENT_SECONDS
