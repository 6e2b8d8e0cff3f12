"""Removes what a plan of ``clean_up`` names. Flows run meanwhile.

A checkpoint is marked as removed before its first file is, so what a kill leaves of it counts as nothing; a
further run removes the rest. While files of a flow are removed, its table's lock is held, so that no recovery
is planned on them under its hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamkeeper.errors import RecoveryError, TableLocked
from streamkeeper.flows import generations, leases, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover.moves import side_table
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work
from streamkeeper.storage import Storage
from streamkeeper.support.times import Moment
from streamkeeper.tables import backups, recovery_lock


@dataclass(frozen=True)
class Removal:
    """Folders and files of one flow that go. ``generation`` is the one whose checkpoint they are, if any;
    ``forget`` says that nothing but the list of its generations stays.
    """

    flow: str
    generation: int | None
    names: tuple[str, ...]
    note: str
    forget: bool = False


@dataclass(frozen=True)
class BackupRemoval:
    """Backup of a table that goes; an unfinished one is a copy without an entry."""

    table: str
    id: str
    reason: str
    unfinished: bool


@dataclass(frozen=True)
class Forgetting:
    """Table that forgets the deletes and truncates received before a moment (ISO 8601)."""

    table: str
    before: Moment


@dataclass(frozen=True)
class CleanUp:
    """What a clean-up removes; ``side_tables`` are the recoveries whose side tables go."""

    remove: tuple[Removal, ...]
    backups: tuple[BackupRemoval, ...]
    tombstones: tuple[Forgetting, ...]
    side_tables: tuple[str, ...] = ()


def remove(work: Work) -> dict[str, Any]:
    """Remove what the plan names, flow by flow; skip and report flows whose table a recovery has locked."""
    manifest = read_manifest(work.settings)
    targets = {
        flow.name: flow.declaration.target
        for flow in manifest.flows()
        if flow.pipeline.name == work.plan.pipeline
    }
    removed, skipped = 0, {}
    for item in work.plan.details_as(CleanUp).remove:
        work.check_stop()
        reason = _remove(work, item, targets.get(item.flow))
        if reason is not None:
            skipped[item.flow] = reason
        else:
            removed += len(item.names)
    give_back_locks(work)  # those of an earlier try that was killed, of flows that are skipped now
    return {"removed": removed, "left": skipped}


def give_back_locks(work: Work) -> None:
    """Give back the locks that a clean-up takes temporarily: its plan names no table."""
    for table in recovery_lock.tables(work.book.storage, work.plan.pipeline):
        recovery_lock.give_back(work.book.storage, work.plan.pipeline, table, work.plan.recovery_id)


def remove_backups(work: Work) -> dict[str, Any]:
    """Remove the backups that the plan names, unless a recovery needs one by now."""
    removed, skipped = [], {}
    for item in work.plan.details_as(CleanUp).backups:
        work.check_stop()
        try:
            backups.remove(work.settings, work.plan.pipeline, item.table, item.id, unfinished=item.unfinished)
            removed.append(item.id)
        except RecoveryError as error:
            skipped[item.id] = str(error)
    return {"removed": removed, "left": skipped}


def remove_side_table(work: Work) -> dict[str, Any]:
    """Remove the side tables that finished recoveries left behind, but nothing of a living driver."""
    done = {}
    for recovery in work.plan.details_as(CleanUp).side_tables:
        work.check_stop()
        planned = ledger.open(work.book.storage, work.plan.pipeline, recovery).find("planned")
        assert planned is not None, "the plan found it"
        done[recovery] = side_table.remove(work.settings, plans.from_json(planned.evidence))
    return done


def _remove(work: Work, item: Removal, table: str | None) -> str | None:
    """Remove one thing that the plan names; return why it is skipped, or None."""
    plan, home = work.plan, FlowHome(work.book.storage, work.plan.pipeline, item.flow)
    if item.forget and (table is not None or leases.may_run(home)):
        return "it is declared again" if table is not None else "a driver of it may be alive"
    if table is None:
        return _remove_unneeded(work, home, item)
    try:
        recovery_lock.take(home.storage, home.pipeline, table, plan.recovery_id)
    except TableLocked as error:
        return str(error)
    try:
        return _remove_unneeded(work, home, item)
    finally:
        recovery_lock.give_back(home.storage, home.pipeline, table, plan.recovery_id)


def _remove_unneeded(work: Work, home: FlowHome, item: Removal) -> str | None:
    number = item.generation
    if number is not None and _is_in_use(home, number):
        return f"generation {number} is in use again"
    of_checkpoints = number is not None or item.forget
    for (flow, generation), recovery in needed(home.storage, home.pipeline) if of_checkpoints else ():
        if flow == home.full_name and (item.forget or generation == number):
            return f"the recovery {recovery} is not over and needs generation {generation}"
    only = [] if item.generation is None else [item.generation]
    for number in home.generations() if item.forget else only:
        generations.retire(home, number, work.plan.recovery_id)
    for name in item.names:
        home.storage.remove(name)
    return None


def needed(storage: Storage, pipeline: str) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield the generations, as (flow, number), in the plans of open recoveries, with the recovery."""
    for recovery in ledger.recoveries(storage, pipeline):
        book = ledger.open(storage, pipeline, recovery)
        if book.end() is not None:
            continue
        planned = book.find("planned")
        if planned is None or "flows" not in planned.evidence:
            continue
        for flow in plans.from_json(planned.evidence).flows:
            for number in (flow.generation, flow.previous, flow.start.generation):
                if number is not None:
                    yield (flow.flow, number), recovery


def _is_in_use(home: FlowHome, number: int) -> bool:
    """Return whether a generation is needed after all: a recovery may since have decided to start from it."""
    newest = home.generations()[-1]
    decided = generations.read(home, newest)
    return newest == number or (
        generations.read_start(home, newest) is None
        and decided is not None
        and number in (decided.previous, decided.start.generation)
    )
