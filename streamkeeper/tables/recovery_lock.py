"""Lock of a table: one recovery of it at a time."""

from __future__ import annotations

from dataclasses import dataclass

from streamkeeper.errors import TableLocked
from streamkeeper.flows.files import table_lock, tables_folder
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
    way = "Remove it if no recovery of the table runs."
    name = table_lock(storage, pipeline, table)
    lock = read_record(storage, name, _Lock, "a recovery's lock of a table", way)
    return None if lock is None else lock.recovery


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
    while not storage.create(
        table_lock(storage, pipeline, table), to_json({"recovery": recovery, "at": now()})
    ):
        check_free(storage, pipeline, table, recovery)
        if holder(storage, pipeline, table) == recovery:
            return
        # It was given back just now: take it again, else two could believe that they have it.


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
    """Remove the table's lock if this recovery has it."""
    if holder(storage, pipeline, table) == recovery:
        storage.remove(table_lock(storage, pipeline, table))
