"""The request of ``tidy_tables``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.recover.requests.form import TABLE, Asking, FormField, Request, asked

LEAST_HOURS = 168.0
"""Least retention in hours: a week, Delta's own default. Running queries need no older files."""


@dataclass(frozen=True)
class TidyRequest(Request):
    """A tidying as requested; every value was checked against the manifest.

    ``tables`` are ``pipeline.table``.
    """

    refused = "No table was tidied"
    run = ()

    tables: tuple[str, ...] = asked(
        "array", "Tables", "The tables to tidy. None: all.", [], many=True, names=TABLE
    )
    retention_hours: float = asked(
        "number",
        "Retention",
        "Hours of the table's past that stay readable: for running queries, time travel, rewind and restore."
        " Less than a week breaks queries that run; a table property delta.deletedFileRetentionDuration and"
        " flows that read the table keep more.",
        LEAST_HOURS,
        least=LEAST_HOURS,
        unit="hours",
    )
    vacuum: bool = asked(
        "boolean", "Vacuum", "Also remove files that no version within the retention needs.", True
    )
    dry_run: bool = asked("boolean", "Only plan", "Say what would be done, and end.", False)

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Take all tables if none is named."""
        tables: FormField = cls.form(asking.manifest)[0]
        return {"tables": values["tables"] or tables.enum}
