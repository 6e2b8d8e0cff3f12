"""Output of ``streamkeeper tables`` and ``backups``."""

from __future__ import annotations

from dataclasses import asdict

from streamkeeper.cli.output import Grid, settings_in_use, show
from streamkeeper.errors import RequestError
from streamkeeper.health import tables
from streamkeeper.health.tables import TableRow
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import size_in_words
from streamkeeper.tables import backups
from streamkeeper.tables.backups import Backup

_HEADING = ("backup", "table", "at", "version", "rows", "size", "kept", "flows")
_OF_TABLES = ("table", "owner", "flows", "rows", "size", "name", "state of the name", "path")
_DASH = "–"


def show_tables(as_json: bool) -> None:
    """Print a row for each declared table; one that a sink stands for has none."""
    settings = settings_in_use()
    rows = list(tables.listed(settings, read_manifest(settings)))
    show([asdict(row) for row in rows], as_json, Grid(_OF_TABLES, [_table_row(row) for row in rows]))


def _table_row(row: TableRow) -> list[str]:
    size = row.size
    return [
        row.table,
        row.pipeline,
        ", ".join(flow.partition(".")[2] for flow in row.flows) or _DASH,
        _DASH if size.rows is None else f"{size.rows:,}",
        _DASH if size.bytes is None else size_in_words(size.bytes),
        row.registered_as or _DASH,
        row.name_state or _DASH,
        row.path,
    ]


def show_backups(table: str | None, as_json: bool) -> None:
    """Print every complete backup, table by table, oldest first.

    :param table: only those of ``pipeline.table``.
    :raises RequestError: the table has none.
    """
    listed = list(backups.every(open_storage(settings_in_use().state)))
    if table is not None:
        tables = sorted({f"{item.pipeline}.{item.table}" for item in listed})
        listed = [item for item in listed if table in (item.table, f"{item.pipeline}.{item.table}")]
        if not listed:
            raise RequestError(
                f"There is no backup of {table!r}. There are backups of: {', '.join(tables) or 'no table'}."
            )
    show(
        [backups.to_value(item) for item in listed], as_json, Grid(_HEADING, [_row(item) for item in listed])
    )


def _row(item: Backup) -> list[str]:
    target = item.copy
    stood = (
        f"{flow.flow.partition('.')[2]}: {_position(flow.generation, flow.batch)}" for flow in item.flows
    )
    return [
        item.id,
        f"{item.pipeline}.{item.table}",
        item.at,
        str(target.version),
        f"{target.checksum.rows:,}",
        size_in_words(item.bytes),
        _retention(item),
        "; ".join(stood) or _DASH,
    ]


def _position(generation: int | None, batch: int | None) -> str:
    return "nothing yet" if generation is None else f"generation {generation}, batch {batch}"


def _retention(item: Backup) -> str:
    terms = [] if item.kept_days is None else [f"{item.kept_days:g} d"]
    terms += [] if item.keep_last is None else [f"last {item.keep_last}"]
    return ", ".join(terms) or "for good"
