"""The request of ``backup_table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.recover.requests.form import (
    MOST_DAYS,
    TABLE,
    Asking,
    FormField,
    Request,
    chosen_tables,
    form_field,
    form_fields,
    of_pipeline_or_all,
)

_FURTHER = "Further tables"


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

    ``tables`` are ``pipeline.table`` each. ``if_there`` says that those are left out which no flow has made
    yet. The other two are the retention (streamkeeper.tables.backups).
    """

    refused = "The backup was not planned"

    tables: tuple[str, ...] = form_fields(
        FormField(
            "table",
            "string",
            "Table",
            "The table to copy, together with its tombstones. Several: below, under Further tables.",
            nullable=True,
            names=TABLE,
        ),
        FormField(
            "tables",
            "array",
            "Further tables",
            "Other tables to copy too, in the same backup.",
            [],
            many=True,
            names=TABLE,
            section=_FURTHER,
        ),
        *(replace(part, section=_FURTHER) for part in of_pipeline_or_all("copy", "tables")),
    )
    kept_days: float | None = kept_days()
    keep_last: int | None = keep_last()
    if_there: bool = False

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Return the full names of the tables."""
        return {
            "tables": chosen_tables(values, asking),
            "if_there": bool(values["all"] or values["pipeline"]),
        }
