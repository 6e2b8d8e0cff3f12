"""What drivers last knew of names in the session catalog, for whoever plans or lists without Spark.

{state}/tables/registered/<table>.json       the name that a table of the warehouse has
{state}/tables/named/<schema.table>.json     where a source's name led at the last start
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import now

_WAY = "Remove it: the next start of a driver writes it anew."


@dataclass(frozen=True)
class Registration:
    """A table's name in the session catalog, and the columns (:func:`columns_mark`) given with it."""

    name: str
    location: str
    columns: str
    at: str


@dataclass(frozen=True)
class NamedTable:
    """Where a name in the session catalog led: a path or URL, and the id of the Delta table there."""

    location: str
    table_id: str
    at: str


def columns_mark(schema: str) -> str:
    """Return 16 hex digits that change with a table's columns, given as the log's ``schemaString``."""
    return hashlib.sha256(schema.encode()).hexdigest()[:16]


def registration_of(storage: Storage, table: str) -> Registration | None:
    """Return the registration of a table of the warehouse; None if no driver registered it.

    :raises StorageError: its record is damaged.
    """
    return read_record(storage, _registered(table), Registration, "the registration of a table", _WAY)


def note_registration(storage: Storage, table: str, name: str, location: str, columns: str) -> None:
    """Note that a table has a name."""
    storage.overwrite(_registered(table), to_json(asdict(Registration(name, location, columns, now()))))


def named_table(storage: Storage, name: str) -> NamedTable | None:
    """Return where a name led at the last start of a driver; None if none looked it up.

    :raises StorageError: its record is damaged.
    """
    return read_record(storage, _named(name), NamedTable, "where a name of a table leads", _WAY)


def note_named_table(storage: Storage, name: str, location: str, table_id: str) -> None:
    """Note where a name leads."""
    storage.overwrite(_named(name), to_json(asdict(NamedTable(location, table_id, now()))))


def _registered(table: str) -> str:
    return f"tables/registered/{table}.json"


def _named(name: str) -> str:
    return f"tables/named/{name.lower()}.json"
