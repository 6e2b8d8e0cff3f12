"""Output of ``streamkeeper backups``."""

from __future__ import annotations

from streamkeeper.cli.output import Grid, settings_in_use, show
from streamkeeper.errors import RequestError
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import size_in_words
from streamkeeper.tables import backups
from streamkeeper.tables.backups import Backup

_HEADING = ("backup", "table", "at", "version", "rows", "size", "kept", "flows")


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
        "; ".join(stood) or "–",
    ]


def _position(generation: int | None, batch: int | None) -> str:
    return "nothing yet" if generation is None else f"generation {generation}, batch {batch}"


def _retention(item: Backup) -> str:
    terms = [] if item.kept_days is None else [f"{item.kept_days:g} d"]
    terms += [] if item.keep_last is None else [f"last {item.keep_last}"]
    return ", ".join(terms) or "for good"
