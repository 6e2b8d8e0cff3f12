"""Checks, just before tables are restored or emptied, that nothing was written to them since the plan was
made under the hold.

Either undoes everything in the table. Rows written since the plan are in no accepted impact: rows of other
writers, or of flows that never read them again, as those that are only held or that continue after their last
batch. Late batches of flows that start elsewhere are read again, so they are allowed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.copy_files import FIRST_COMMIT, Progress, copy_files, files_of
from streamkeeper.delta.log import FENCE, LogCommit
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows.generations import AFTER_LAST
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.full_refresh import Emptying
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import past_versions
from streamkeeper.tables.backups import Checksum

_UPKEEP = frozenset(("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END"))
"""Operations that change neither a row nor what a table is."""
_LISTED = 5


@dataclass(frozen=True)
class VersionToRestore:
    """A table to restore to ``version``; ``newest`` was its version when that was planned under the hold."""

    path: str
    version: int
    newest: int


@dataclass(frozen=True)
class Rewinding:
    """What a rewind restores, and to what ``place`` it goes; None if the request has the positions."""

    put_back: tuple[VersionToRestore, ...] = ()
    place: str | None = None


@dataclass(frozen=True)
class TableToRestore:
    """A table to replace by a version of the table at ``source``: of a backup, or of the table itself.

    ``newest`` is the table's version when that was planned; None if there was no table. ``files``,
    ``checksum`` and ``schema`` are those of a backup.
    """

    path: str
    source: str
    from_version: int
    newest: int | None
    files: int | None = None
    checksum: Checksum | None = None
    schema: str | None = None

    @property
    def is_backup(self) -> bool:
        """Whether a backup replaces the table, and not one of its own versions."""
        return self.source != self.path


@dataclass(frozen=True)
class Restoring:
    """What a restore replaces: ``table``, by the backup ``backup_id``, or (None) by an earlier version."""

    table: TableToRestore | None = None
    backup_id: str | None = None
    words: str = ""


def versions_of(plan: Plan) -> tuple[VersionToRestore, ...]:
    """Return the versions that the plan of a rewind restores."""
    return plan.details_as(Rewinding).put_back


def table_of(plan: Plan) -> TableToRestore:
    """Return the table that the plan of a restore replaces."""
    table = plan.details_as(Restoring).table
    assert table is not None, "restore_table planned it"
    return table


def bring(work: Work, table: TableToRestore) -> dict[str, Any]:
    """Copy those files of a backup's table into the table's folder that are not there; say how many were
    ``found``.

    :raises RequestError: the backup was removed.
    :raises RecoveryError: a file of it is not there any more.
    """
    source, target = open_storage(table.source), open_storage(table.path)
    commit = source.read(FIRST_COMMIT)
    if commit is None:
        raise RequestError(
            f"{source.path(FIRST_COMMIT)} is gone: the backup was removed. Give this recovery up, and restore"
            " another."
        )
    return copy_table(work, (source, target), commit, table.files or 0)


def copy_table(work: Work, between: tuple[Storage, Storage], commit: bytes, files: int) -> dict[str, Any]:
    """Copy the files that the commit of a copy names from one storage into another; what is there already is
    left.

    :param files: how many these are, for the progress.
    :raises RecoveryError: a file is not there any more.
    """
    began = time.monotonic()
    progress = Progress(work.progress, work.check_stop, files)
    done = copy_files(*between, files_of(commit.decode().splitlines()), progress)
    return {**asdict(done), "seconds": round(time.monotonic() - began, 2)}


def check_unchanged(work: Work, plan: Plan, then: str) -> None:
    """Check that every table that a plan puts back or empties is as it was when planned.

    :param plan: made under the hold.
    :param then: what to do if one is not, for the message.
    :raises RecoveryError: someone wrote to a table since.
    """
    restored, emptied = plan.details_as(Restoring).table, plan.details_as(Emptying)
    backs: tuple[VersionToRestore | TableToRestore, ...] = (*versions_of(plan), *filter(None, [restored]))
    for back in backs:
        written_late(work, plan, back.path, back.newest, then)
    if emptied.path:
        written_late(work, plan, emptied.path, emptied.newest, then, rows_alone=True)


def before_decided(plan: Plan) -> str:
    """Return what to do about a table that someone wrote to, while nothing was changed."""
    return (
        f"Nothing was changed. Give this recovery up (streamkeeper abandon {plan.recovery_id}) and plan it"
        " again."
    )


def once_fenced(plan: Plan) -> str:
    """Return the way out if a table was not emptied although its flows' generations are fenced in it."""
    return f"It was not emptied, and the generations of its flows are over. {_anew(plan)}"


def once_decided(plan: Plan) -> str:
    """Return the way out if a table was not restored though generations that need it are decided."""
    return (
        "It was not restored. The flows' next generations are decided and must not start before the table is"
        f" restored. {_anew(plan)}"
    )


def _anew(plan: Plan) -> str:
    flows = " ".join(flow.flow for flow in plan.flows)
    return (
        f"Hold the flows (streamkeeper hold {flows}), give this recovery up (streamkeeper abandon"
        f" {plan.recovery_id}), plan it again, and release the flows once the new recovery holds them."
    )


def written_late(
    work: Work, plan: Plan, path: str, newest: int | None, then: str, *, rows_alone: bool = False
) -> tuple[int, ...]:
    """Look at what was written to a table after its version ``newest``, None if there was no table; give the
    versions of late batches of flows that read them again. A table that the recovery has changed already is
    not looked at.

    :param then: what to do if someone else wrote, for the message.
    :param rows_alone: whether what a table is, such as its properties, stays as it is.
    :raises RecoveryError: someone else wrote, or the table is another now.
    """
    version = delta_log.latest_version(path)
    if version is not None and newest is not None and version < newest:
        raise RecoveryError(
            f"{path} is at version {version}; it was at {newest} when the plan was made under the hold:"
            f" someone replaced it. {then}"
        )
    returning = dict(_writers(work, plan, returning=True))
    late, others = [], []
    for commit in delta_log.commits(path):
        if newest is not None and commit.version <= newest:
            break
        if (
            past_versions.changed_by(commit) == plan.recovery_id
            or past_versions.app_id(plan.recovery_id, past_versions.PUT_BACK) in commit.transactions
        ):
            return ()
        if _is_upkeep(commit) or (rows_alone and not commit.changes_data):
            continue
        if any(app in returning for app in commit.transactions):
            late.append(commit.version)
        else:
            others.append(commit)
    if others:
        names = {**dict(_writers(work, plan, returning=False)), **returning}
        descriptions = ", ".join(_describe(commit, names) for commit in reversed(others[-_LISTED:]))
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        raise RecoveryError(
            f"{path} was written to after the plan was made under the hold: {descriptions}{more}. The"
            f" recovery would undo that, which was not accepted. {then}"
        )
    return tuple(late)


def _writers(work: Work, plan: Plan, returning: bool) -> Iterator[tuple[str, str]]:
    """Return what flows that read late batches again, or those that do not, commit under, by flow."""
    for flow in plan.flows:
        again = flow.next_generation is not None and flow.start.mode != AFTER_LAST
        if again == returning:
            for writer in past_versions.writers_of(work.home(flow)):
                yield writer, flow.flow


def _is_upkeep(commit: LogCommit) -> bool:
    if commit.changes_data:
        return False
    fences = [version == FENCE for version in commit.transactions.values()]
    # What is remembered without a batch is of one whose MERGE has not followed yet, or was forgotten.
    remembers = commit.remembered is not None and not fences
    return commit.operation in _UPKEEP or remembers or bool(fences and all(fences))


def _describe(commit: LogCommit, names: dict[str, Any]) -> str:
    batches = [f"batch {batch} of {names[app]}" for app, batch in commit.transactions.items() if app in names]
    return f"version {commit.version} ({', '.join([commit.operation or 'unknown', *batches])})"
