"""Catalog of backups: the durable copies of tables, their content, and their retention.

{state}/{pipeline}/tables/<table>/backups/<id>.json          entry: immutable, written last, after the copy
                                                             was verified; it alone makes a backup
{state}/{pipeline}/tables/<table>/backups/<id>.removed.json  mark of a removal that has begun: from then on
                                                             the backup is not listed
{backups}/{pipeline}/<table>/<id>/target/                    copy of the table: a Delta table by itself
{backups}/{pipeline}/<table>/<id>/target.commit              commit that turns the copied files into a table
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import ledger
from streamkeeper.flows.files import kept_pipelines, tables_folder
from streamkeeper.manifest import names
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage, read_record, to_json
from streamkeeper.support.times import Moment
from streamkeeper.tables.flows_at_version import FlowAt

FORMAT = 1
TARGET = "target"
"""Name of the copied table in a backup's folder."""
COMMIT = f"{TARGET}.commit"
"""Name, in a backup's folder, of the commit that turns the copied files into a table."""
PIN, COPY, VERIFY, ENTER = "pin", "copy", "verify", "enter"
"""Steps that make a backup."""
NEWEST = "newest"
"""Value allowed in place of a backup's id."""

_ENTRY, _REMOVED = ".json", ".removed.json"


@dataclass(frozen=True)
class Checksum:
    """Checksum of a table's rows in any order: their number, and sum and XOR of a 64-bit hash of each."""

    rows: int
    sum: str
    xor: int


@dataclass(frozen=True)
class CopiedTable:
    """Table that is copied from ``path`` into ``folder``; ``flows`` were declared to write it."""

    pipeline: str
    table: str
    folder: str
    flows: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class Copying:
    """What a backup copies. Its steps hand on a list, in the same order."""

    copied: tuple[CopiedTable, ...]


@dataclass(frozen=True)
class CopiedVersion:
    """Version of a table that is copied to ``path``; ``bytes`` are those of its active files."""

    source: str
    path: str
    version: int
    table_id: str
    files: int
    bytes: int


@dataclass(frozen=True)
class PinnedTable(CopiedVersion):
    """Version of a table that is to be copied."""

    rows: int | None


@dataclass(frozen=True)
class Pinned:
    """What the step ``pin`` hands on of a table: the version to copy, and each flow's position in it."""

    table: PinnedTable
    flows: tuple[FlowAt, ...]


@dataclass(frozen=True)
class AllPinned:
    """What the step ``pin`` hands on."""

    pinned: tuple[Pinned, ...]


@dataclass(frozen=True)
class Verified:
    """What the step ``verify`` read in the copy of a table."""

    checksum: Checksum
    schema: str


@dataclass(frozen=True)
class AllVerified:
    """What the step ``verify`` hands on."""

    verified: tuple[Verified, ...]


@dataclass(frozen=True)
class TableBackup(CopiedVersion):
    """Copy of the table in a backup."""

    checksum: Checksum
    schema: str


@dataclass(frozen=True)
class Backup:
    """One complete backup. ``flows`` has the position of each flow that writes the table, as of the copy.

    ``kept_days`` and ``keep_last`` are its retention: it expires when it is older than the one and there are
    as many newer backups as the other.
    """

    id: str
    pipeline: str
    table: str
    at: Moment
    by: str
    copy: TableBackup
    flows: tuple[FlowAt, ...]
    kept_days: float | None = None
    keep_last: int | None = None
    reason: str = ""
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Bytes of its files, without their logs."""
        return self.copy.bytes

    def expires(self) -> datetime | None:
        """Return when its age expires; None without ``kept_days``, or beyond the calendar."""
        if self.kept_days is None:
            return None
        try:
            return datetime.fromisoformat(self.at) + timedelta(days=self.kept_days)
        except OverflowError:
            return None


@dataclass(frozen=True)
class Expired:
    """Backup that may be removed, and the reason."""

    pipeline: str
    table: str
    id: str
    reason: str
    bytes: int | None = field(default=None)


def folder(settings: Settings, pipeline: str, table: str, backup: str) -> str:
    """Return the folder or URL of a backup's copies."""
    name_history = names.read(open_storage(settings.state))
    return f"{settings.backups_path}/{name_history.folder(pipeline)}/{table}/{backup}"


def enter(storage: Storage, backup: Backup) -> Backup:
    """Write the entry that makes a backup complete; return the first entry written.

    :raises RecoveryError: the backup was removed meanwhile.
    """
    storage.create(_name(storage, backup.pipeline, backup.table, backup.id), to_json(asdict(backup)))
    entry = _read(storage, backup.pipeline, backup.table, backup.id)
    if entry is None:
        raise RecoveryError(
            f"The backup {backup.id} of {backup.table} was removed while it was made. Back the table up"
            " again."
        )
    return entry


def find(storage: Storage, pipeline: str, table: str, backup: str) -> Backup:
    """Return a backup of a table by its id, or the newest.

    :raises RequestError: there is none.
    """
    whole = listed(storage, pipeline, table)
    matches = whole[-1:] if backup == NEWEST else [entry for entry in whole if entry.id == backup]
    if not matches:
        newest_ids = ", ".join(entry.id for entry in whole[-5:]) or "none"
        raise RequestError(
            f"There is no backup {backup!r} of {pipeline}.{table}. The last ones are: {newest_ids}."
            " `streamkeeper backups` lists all."
        )
    return matches[0]


def listed(storage: Storage, pipeline: str, table: str) -> list[Backup]:
    """Return the complete backups of a table, oldest first.

    :raises StorageError: an entry is damaged, or was written by a newer Streamkeeper.
    """
    files = storage.names(_folder(storage, pipeline, table))
    ids = [
        name.removesuffix(_ENTRY) for name in files if name.endswith(_ENTRY) and not name.endswith(_REMOVED)
    ]
    entries = (
        _read(storage, pipeline, table, backup_id)
        for backup_id in ids
        if f"{backup_id}{_REMOVED}" not in files
    )
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: (entry.at, entry.id))


def every(storage: Storage) -> Iterator[Backup]:
    """Yield all complete backups, of declared and other pipelines, table by table."""
    for pipeline in kept_pipelines(storage):
        for table in storage.names(tables_folder(storage, pipeline)):
            yield from listed(storage, pipeline, table)


def expired(settings: Settings, now: datetime | None = None) -> list[Expired]:
    """Return the backups that may be removed: past their retention, or half removed already.

    The newest backup of a table is kept, and any that an open recovery needs.

    :param now: the current time by default.
    """
    storage, moment = open_storage(settings.state), now or datetime.now(timezone.utc)
    removable: list[Expired] = []
    for pipeline in kept_pipelines(storage):
        for table in storage.names(tables_folder(storage, pipeline)):
            removable += [
                Expired(pipeline, table, half, "its removal was begun")
                for half in _half_removed(storage, pipeline, table)
            ]
            whole = listed(storage, pipeline, table)
            for place, entry in enumerate(whole[:-1]):
                reason = _why_expired(entry, len(whole) - 1 - place, moment)
                if reason is not None and not needed_by(storage, entry):
                    removable.append(Expired(pipeline, table, entry.id, reason, entry.bytes))
    return removable


def remove(settings: Settings, pipeline: str, table: str, backup: str, *, unfinished: bool = False) -> None:
    """Remove a backup. It is not listed from the start on; a killed removal continues when it is run again.

    :param unfinished: the caller saw it without an entry.
    :raises RecoveryError: an open recovery needs it, or it got its entry meanwhile; nothing was removed.
    """
    storage = open_storage(settings.state)
    entry = _read(storage, pipeline, table, backup)
    if unfinished and entry is not None:
        raise RecoveryError(
            f"The backup {backup} of {pipeline}.{table} was completed after its removal was planned, so it"
            " was not removed."
        )
    users = needed_by(storage, entry) if entry is not None else []
    if users:
        raise RecoveryError(
            f"The backup {backup} of {pipeline}.{table} is needed by {', '.join(users)}, so it was not"
            f" removed. Wait for that recovery, or give it up (streamkeeper abandon {users[0]})."
        )
    storage.create(f"{_folder(storage, pipeline, table)}/{backup}{_REMOVED}", b"{}\n")
    place, _, copies = folder(settings, pipeline, table, backup).rpartition("/")
    open_storage(place).remove(copies)
    storage.remove(_name(storage, pipeline, table, backup))
    storage.remove(f"{_folder(storage, pipeline, table)}/{backup}{_REMOVED}")


@dataclass(frozen=True)
class LeftOver:
    """Copies without an entry.

    ``unfinished`` are the rest of backups whose recovery is over; :func:`remove` takes them. ``strange`` are
    the places of copies that the state folder does not know: those of another environment, or of a lost
    state. Only a person can decide whether they are of use, so they are kept.
    """

    unfinished: tuple[Expired, ...]
    strange: tuple[str, ...]


def left_over(settings: Settings) -> LeftOver:
    """Return the copies without an entry that no recovery is making."""
    state = open_storage(settings.state)
    unfinished, strange = [], []
    for pipeline, table, name in _without_entry(settings, state):
        # A backup of tables of several pipelines has its ledger in one of them.
        book = ledger.open(state, ledger.pipeline_of(state, name) or pipeline, name)
        if book.end() is not None:
            unfinished.append(
                Expired(pipeline, table, name, "it was never completed, and its recovery is over")
            )
        elif not book.events():
            strange.append(folder(settings, pipeline, table, name))
    return LeftOver(tuple(unfinished), tuple(strange))


def _without_entry(settings: Settings, state: Storage) -> Iterator[tuple[str, str, str]]:
    """Yield pipeline, table and name of each copy without an entry."""
    copies, name_history = open_storage(settings.backups_path), names.read(state)
    tables = [
        (name_history.pipeline_in(place), table) for place in copies.names() for table in copies.names(place)
    ]
    # Copies are listed before entries: a copy finished meanwhile has its entry by then.
    copy_names = [
        (pipeline, table, name)
        for pipeline, table in tables
        for name in copies.names(f"{name_history.folder(pipeline)}/{table}")
    ]
    entered = {
        (pipeline, table): (
            {entry.id for entry in listed(state, pipeline, table)}
            | set(_half_removed(state, pipeline, table))
        )
        for pipeline, table in tables
    }
    return (copy for copy in copy_names if copy[2] not in entered[copy[:2]])


def needed_by(storage: Storage, backup: Backup) -> list[str]:
    """Return the open recoveries whose plans name a backup."""
    ids = ledger.recoveries(storage, backup.pipeline)
    return [
        recovery
        for recovery in ids
        if recovery != backup.id
        and _names(storage, backup, recovery)
        and _is_open(storage, backup.pipeline, recovery)
    ]


def needed_generations(storage: Storage) -> dict[str, set[int]]:
    """Return the generations that restores may start from, by ``pipeline.flow``, which clean-up keeps."""
    generations_by_flow: dict[str, set[int]] = {}
    for backup in every(storage):
        for flow in backup.flows:
            if flow.generation is not None:
                generations_by_flow.setdefault(flow.flow, set()).add(flow.generation)
    return generations_by_flow


def to_value(backup: Backup) -> dict[str, Any]:
    """Return a backup as a JSON object."""
    return {**asdict(backup), "bytes": backup.bytes}


def _why_expired(entry: Backup, newer: int, moment: datetime) -> str | None:
    expires = entry.expires()
    if expires is None and (entry.kept_days is not None or entry.keep_last is None):
        return None
    if expires is not None and moment < expires:
        return None
    if entry.keep_last is not None and newer < entry.keep_last:
        return None
    reasons = [] if expires is None else [f"it is older than {entry.kept_days:g} days"]
    reasons += (
        [] if entry.keep_last is None else [f"{newer} newer ones are there, and {entry.keep_last} are kept"]
    )
    return "; ".join(reasons)


def _names(storage: Storage, backup: Backup, recovery: str) -> bool:
    """Return whether a recovery's plan contains the backup's id."""
    planned = ledger.open(storage, backup.pipeline, recovery).find("planned")
    return planned is not None and f'"{backup.id}"' in to_json(planned.evidence).decode()


def _is_open(storage: Storage, pipeline: str, recovery: str) -> bool:
    """Return whether a recovery was approved or begun, and is not over: a mere plan needs no backup."""
    names = set(ledger.open(storage, pipeline, recovery).names())
    begun = any(name.startswith("approved") or name.endswith(".started") for name in names)
    return begun and names.isdisjoint(ledger.OVER)


def _half_removed(storage: Storage, pipeline: str, table: str) -> list[str]:
    return [
        name.removesuffix(_REMOVED)
        for name in storage.names(_folder(storage, pipeline, table))
        if name.endswith(_REMOVED)
    ]


def _read(storage: Storage, pipeline: str, table: str, backup: str) -> Backup | None:
    name, way = _name(storage, pipeline, table, backup), "Restore it from a copy."
    entry = read_record(storage, name, Backup, "a backup's entry", way, format=FORMAT)
    if entry is None:
        return None
    name_history = names.read(storage)
    flows = tuple(replace(flow, flow=name_history.present(flow.flow)) for flow in entry.flows)
    return replace(entry, pipeline=pipeline, flows=flows)


def _folder(storage: Storage, pipeline: str, table: str) -> str:
    return f"{tables_folder(storage, pipeline)}/{table}/backups"


def _name(storage: Storage, pipeline: str, table: str, backup: str) -> str:
    return f"{_folder(storage, pipeline, table)}/{backup}{_ENTRY}"
