"""The request of ``backup_table``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkeeper.recover.requests.form import MOST_DAYS, TABLE, Request, form_field


def kept_days() -> Any:
    """Declare the retention of a backup by its age."""
    return form_field(
        "number",
        "Days kept",
        "Days after which clean_up may remove the backup. Empty: not because of its age. The newest backup"
        " of a table is always kept.",
        nullable=True,
        least=0,
        most=MOST_DAYS,
        unit="days",
        section="Retention",
    )


def keep_last() -> Any:
    """Declare the retention of a backup by the number of newer ones."""
    return form_field(
        "number",
        "Last ones kept",
        "clean_up may remove the backup once there are this many newer ones. Empty: not because of their"
        " number.",
        nullable=True,
        whole=True,
        least=1,
        section="Retention",
    )


@dataclass(frozen=True)
class BackupRequest(Request):
    """A backup as requested.

    ``table`` is ``pipeline.table``; the other two are its retention (streamkeeper.tables.backups).
    """

    refused = "The backup was not planned"

    table: str = form_field(
        "string", "Table", "The table to copy, together with its tombstones.", names=TABLE
    )
    kept_days: float | None = kept_days()
    keep_last: int | None = keep_last()
