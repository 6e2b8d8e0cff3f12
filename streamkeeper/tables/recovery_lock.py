"""Lock of a table: one recovery of it at a time.

Locks are numbered, as write locks are: the highest number counts until it is released. So a recovery that was
paused and given up meanwhile releases its own lock when it goes on, never that of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamkeeper.errors import TableLocked
from streamkeeper.flows.files import LockFiles, tables_folder
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import now
from streamkeeper.tables import owners


@dataclass(frozen=True)
class _Lock:
    """Content of a lock."""

    recovery: str
    at: str


def holder(storage: Storage, pipeline: str, table: str) -> str | None:
    """Return the id of the recovery that has the table's lock, or None."""
    return _newest(_files(storage, pipeline, table))[1]


def tables(storage: Storage, pipeline: str) -> list[str]:
    """Return the tables of a pipeline that have, or had, a lock."""
    return storage.names(tables_folder(storage, pipeline))


def take(storage: Storage, pipeline: str, table: str, recovery: str) -> None:
    """Take the table's lock for a recovery, which may have it already.

    :raises TableLocked: another recovery has it, or another pipeline owns the table.
    """
    owner = owners.first(storage, pipeline, table)
    if owner != pipeline:
        raise TableLocked(
            f"The table {table} belongs to the pipeline {owner}, not to {pipeline}, so {recovery} cannot"
            " start. Nothing was changed. Trigger the recovery for that pipeline."
        )
    locks = _files(storage, pipeline, table)
    while True:
        number, held_by = _newest(locks)
        if held_by == recovery:
            return
        check_free(storage, pipeline, table, recovery)
        content = to_json({"recovery": recovery, "at": now()})
        if held_by is None and storage.create(locks.lock(number + 1), content):
            return
        # Another recovery took it, or gave it back, just now: look again.


def check_free(storage: Storage, pipeline: str, table: str, recovery: str) -> None:
    """Check that no other recovery has the table's lock.

    :raises TableLocked: another recovery has it.
    """
    other = holder(storage, pipeline, table)
    if other not in (None, recovery):
        raise TableLocked(
            f"The recovery {other} has locked the table {table} of {pipeline}, so {recovery} cannot start."
            " Nothing was changed. Wait for it; if it was killed, run it again (its DAG run, or"
            f" streamkeeper recover {str(other).partition('-')[0]} --resume {other}), or give it up:"
            f" streamkeeper abandon {other}."
        )


def give_back(storage: Storage, pipeline: str, table: str, recovery: str) -> None:
    """Release the table's lock if this recovery has it."""
    locks = _files(storage, pipeline, table)
    number, held_by = _newest(locks)
    if held_by == recovery:
        storage.create(locks.released(number), b"{}\n")


def _files(storage: Storage, pipeline: str, table: str) -> LockFiles:
    return LockFiles(storage, pipeline, table, "recovery_lock")


def _newest(locks: LockFiles) -> tuple[int, str | None]:
    """Return the highest number of a lock, 0 if there is none, and the recovery that holds it; None if it was
    released.

    :raises StorageError: its file is damaged.
    """
    numbers = locks.numbers()
    if not numbers:
        return 0, None
    way = "Remove its folder if no recovery of the table runs."
    lock = read_record(locks.storage, locks.lock(numbers[-1]), _Lock, "a recovery's lock of a table", way)
    released = locks.storage.read(locks.released(numbers[-1])) is not None
    return numbers[-1], None if lock is None or released else lock.recovery
