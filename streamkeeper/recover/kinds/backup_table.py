"""``backup_table``: a durable copy of a table, or of several. Flows keep writing during the copy.

A version of each table is chosen, its files are copied, and the copy is compared with the chosen version.
Only then it is listed as a backup. The tables, their flows and their holds are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.copy_files import FIRST_COMMIT, check_copyable
from streamkeeper.delta.summary import read_summary
from streamkeeper.errors import NotAskable, RecoveryError, RequestError, SourceError
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.moves.put_back import copy_table
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import CopyPlan, Plan
from streamkeeper.recover.plans.several import plan_each
from streamkeeper.recover.requests.backup_table import BackupRequest
from streamkeeper.recover.requests.form import declared_table
from streamkeeper.settings import Settings
from streamkeeper.sources.delta.statistics import rows_of
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now
from streamkeeper.tables import backups
from streamkeeper.tables.backups import (
    COMMIT,
    COPY,
    ENTER,
    PIN,
    TARGET,
    VERIFY,
    AllPinned,
    AllVerified,
    Backup,
    CopiedTable,
    CopiedVersion,
    Copying,
    Pinned,
    PinnedTable,
    TableBackup,
    Verified,
)

RECOVERY = "backup_table"


def plan(settings: Settings, manifest: Manifest, request: BackupRequest, recovery_id: str) -> Plan:
    """Plan a backup of one table or several.

    :raises RequestError: there is no table yet, or it is of a kind that is not whole with its files. Of
        several tables, each of these is named.
    """
    declared = {name: declared_table(name, manifest, request.refused) for name in request.tables}
    chosen, notes = dict[str, CopiedTable](), list[str]()
    for name, (pipeline, table) in declared.items():
        path = settings.table_path(table.name)
        if request.if_there and delta_log.latest_version(path) is None:
            notes.append(f"There is no table at {path} yet: {name} is not backed up.")
            continue
        folder = backups.folder(settings, pipeline.name, table.name, recovery_id)
        flows = tuple(flow.name for flow in pipeline.flows if flow.target == table.name)
        chosen[name] = CopiedTable(pipeline.name, table.name, folder, flows, path)
    if not chosen:
        raise RequestError("None of these tables is there yet, so there is nothing to back up.")
    copies = plan_each(chosen, _copy, request.refused)
    owners = {copied.table: copied.pipeline for copied in chosen.values()}
    return replace(
        KIND.draft(request, recovery_id, next(iter(owners.values())), tuple(owners)),
        copies=tuple(copies),
        details=asdict(Copying(tuple(chosen.values()))),
        notes=(*notes, *(note for copy in copies for note in _size_unknown(copy)), *_notes(request)),
        owners=owners,
    )


def copy(work: Work) -> dict[str, Any]:
    """Copy the pinned files, then write the commit that makes them a table; existing files are left."""
    pinned = work.result(PIN, AllPinned).pinned
    return {
        "copied": [
            _copy_one(work, item.table, copied.folder)
            for item, copied in zip(pinned, work.plan.details_as(Copying).copied, strict=True)
        ]
    }


def _copy_one(work: Work, table: PinnedTable, folder: str) -> dict[str, Any]:
    commit = open_storage(folder).read(COMMIT)
    if commit is None:
        raise RecoveryError(
            f"The copied log of {table.source} is missing from {folder}: someone removed the folder during"
            " the copy. Give this backup up and back up the table again."
        )
    target = open_storage(table.path)
    progress = copy_table(work, (open_storage(table.source), target), commit, table.files)
    target.create(FIRST_COMMIT, commit)
    return progress


def enter(work: Work) -> dict[str, Any]:
    """Write the entries that make the copies backups."""
    copied = work.plan.details_as(Copying).copied
    pinned, verified = work.result(PIN, AllPinned).pinned, work.result(VERIFY, AllVerified).verified
    entries = [_entry(work, *one) for one in zip(copied, pinned, verified, strict=True)]
    return {"backups": [backups.to_value(backups.enter(work.book.storage, entry)) for entry in entries]}


def _entry(work: Work, copied: CopiedTable, pinned: Pinned, verified: Verified) -> Backup:
    request = work.plan.request  # of this recovery, or of one that backs the table up first
    version = {item.name: getattr(pinned.table, item.name) for item in fields(CopiedVersion)}
    return Backup(
        id=work.plan.recovery_id,
        pipeline=copied.pipeline,
        table=copied.table,
        at=now(),
        by=work.plan.by,
        copy=TableBackup(**version, checksum=verified.checksum, schema=verified.schema),
        flows=pinned.flows,
        kept_days=request.get("kept_days"),
        keep_last=request.get("keep_last"),
        reason=work.plan.reason,
    )


def is_entered(work: Work) -> bool:
    """Return whether the entry of a table's backup is written."""
    return any(
        backup.id == work.plan.recovery_id
        for copied in work.plan.details_as(Copying).copied
        for backup in backups.listed(work.book.storage, copied.pipeline, copied.table)
    )


def _copy(copied: CopiedTable) -> CopyPlan:
    path, label, destination = copied.path, f"{copied.pipeline}.{copied.table}", f"{copied.folder}/{TARGET}"
    version = delta_log.latest_version(path)
    if version is None:
        raise RequestError(
            f"There is no Delta table at {path} yet, so there is nothing to back up. Let a flow write it"
            " first."
        )
    summary = read_summary(path, version)
    if summary is None:
        return CopyPlan(label, path, destination, 0, None, 0)
    check_copyable(path, summary.protocol)
    return CopyPlan(label, path, destination, summary.bytes, _rows(path, version), summary.files)


def _size_unknown(copy: CopyPlan) -> Iterator[str]:
    if not copy.files and copy.rows is None:
        yield (
            f"The log of {copy.label} has no summary of its newest version, so its size is known only in the"
            " step pin."
        )


def _rows(path: str, version: int) -> int | None:
    """Count rows by statistics; None where that cannot be asked or some file has none."""
    try:
        return rows_of(path, version)
    except (NotAskable, SourceError):
        return None


def _notes(request: BackupRequest) -> Iterator[str]:
    yield "Flows keep running. Rows that they write after the version is chosen are not in the backup."
    yield "One version is copied, without earlier versions and without the change data feed."
    if request.kept_days is None and request.keep_last is None:
        yield "It is kept until someone removes it."


KIND = Kind(
    name=RECOVERY,
    description=(
        "Copies a table as it is now to a folder that VACUUM and DROP do not affect; flows keep running."
    ),
    request=BackupRequest,
    plan=plan,
    steps=(
        StepKind(PIN, "choose the version that is copied", "streamkeeper_jobs.recover.backup_table:pin"),
        StepKind(COPY, "copy their files; flows keep running", copy),
        StepKind(
            VERIFY,
            "compare rows and checksums of the copies with the chosen versions",
            "streamkeeper_jobs.recover.backup_table:verify",
        ),
        StepKind(
            ENTER,
            "enter the copies in the list of backups, for restore_table",
            enter,
            changes=True,
            changed=is_entered,
        ),
    ),
)
