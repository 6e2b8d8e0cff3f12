"""``backup_table``: a durable copy of a table. Flows keep writing during the copy.

Versions that belong together are chosen, their files are copied, and the copies are compared with the chosen
versions. Only then they are listed as a backup. The table, its flows and their holds are not changed.
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
    Backup,
    CopiedVersion,
    Copying,
    Pinned,
    TableBackup,
    Verified,
)

RECOVERY = "backup_table"


def plan(settings: Settings, manifest: Manifest, request: BackupRequest, recovery_id: str) -> Plan:
    """Plan a backup.

    :raises RequestError: there is no table yet, or it is of a kind that is not whole with its files.
    """
    pipeline, table = declared_table(request.table, manifest, "The backup was not planned")
    path = settings.table_path(table.name)
    folder = backups.folder(settings, pipeline.name, table.name, recovery_id)
    notes: list[str] = []
    copies = (_copy(path, f"{folder}/{TARGET}", notes),)
    flows = tuple(flow.name for flow in pipeline.flows if flow.target == table.name)
    return replace(
        KIND.draft(request, recovery_id, pipeline.name, (table.name,)),
        copies=copies,
        details=asdict(Copying(folder, flows, path)),
        notes=(*notes, *_notes(request)),
    )


def copy(work: Work) -> dict[str, Any]:
    """Copy the files of what was pinned, then write the commit that makes them a table; what is there already
    is left.
    """
    table, folder = work.result(PIN, Pinned).table, work.plan.details_as(Copying).folder
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
    """Write the entry that makes the copies a backup."""
    pinned = work.result(PIN, Pinned)
    [table] = work.plan.tables
    request = work.plan.request  # of this recovery, or of one that backs the table up first
    verified = work.result(VERIFY, Verified)
    copied = {item.name: getattr(pinned.table, item.name) for item in fields(CopiedVersion)}
    entry = Backup(
        id=work.plan.recovery_id,
        pipeline=work.plan.pipeline,
        table=table,
        at=now(),
        by=work.plan.by,
        copy=TableBackup(**copied, checksum=verified.checksum, schema=verified.schema),
        flows=pinned.flows,
        kept_days=request.get("kept_days"),
        keep_last=request.get("keep_last"),
        reason=work.plan.reason,
    )
    return {"backup": backups.to_value(backups.enter(work.book.storage, entry))}


def is_entered(work: Work) -> bool:
    """Return whether the entry of the backup is written."""
    [table] = work.plan.tables
    return any(
        backup.id == work.plan.recovery_id
        for backup in backups.listed(work.book.storage, work.plan.pipeline, table)
    )


def _copy(path: str, destination: str, notes: list[str]) -> CopyPlan:
    version = delta_log.latest_version(path)
    if version is None:
        raise RequestError(
            f"There is no Delta table at {path} yet, so there is nothing to back up. Let a flow write it"
            " first."
        )
    summary = read_summary(path, version)
    if summary is None:
        notes.append(
            f"The log of the table has no summary of version {version}, so its size is known only in the"
            " step pin."
        )
        return CopyPlan(TARGET, path, destination, 0, None, 0)
    check_copyable(path, summary.protocol)
    return CopyPlan(TARGET, path, destination, summary.bytes, _rows(path, version), summary.files)


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
