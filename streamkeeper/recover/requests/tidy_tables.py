"""The request of ``tidy_tables``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.recover.requests.form import (
    APPROVAL,
    PIPELINE,
    RUN,
    TABLE,
    Asking,
    Request,
    declared_names,
    form_field,
)

LEAST_HOURS = 168.0
"""Least hours of retention: Delta's own default. With less, VACUUM may take what a running query reads."""


@dataclass(frozen=True)
class TidyRequest(Request):
    """A tidying as requested; all values are checked against the manifest. ``tables`` are ``pipeline.table``.

    By default the form asks for no approval: no row changes.
    """

    refused = "No table was tidied"
    run = tuple(replace(field, default=False) if field.name == APPROVAL else field for field in RUN)

    pipeline: str = form_field(
        "string", "Pipeline", "The pipeline whose tables are compacted and vacuumed.", names=PIPELINE
    )
    tables: tuple[str, ...] = form_field(
        "array",
        "Tables",
        "Tables of the pipeline. None: all its tables.",
        [],
        many=True,
        names=TABLE,
    )
    retention_hours: float = form_field(
        "number",
        "Retention",
        "Hours of the table's history that stay readable: for running queries, time travel, rewind and"
        " restore. Less than a week breaks queries that run; a table property"
        " delta.deletedFileRetentionDuration and flows that read the table keep more.",
        LEAST_HOURS,
        least=LEAST_HOURS,
        unit="hours",
    )
    vacuum: bool = form_field(
        "boolean", "Vacuum", "Also remove files that no version within the retention needs.", True
    )

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Take all tables of the pipeline where none is named; refuse those of another."""
        pipeline = values["pipeline"]
        tables = declared_names(TABLE, asking.manifest)
        own = tuple(name for name in tables if name.startswith(f"{pipeline}."))
        if pipeline and (others := [name for name in values["tables"] if name not in own]):
            asking.wrong.append(
                f"tables names {', '.join(others)}, which {pipeline} has not. Allowed are"
                f" {', '.join(own) or 'none'}; tidy tables of another pipeline in a run of their own."
            )
        return {"tables": values["tables"] or own}
