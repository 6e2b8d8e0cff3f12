"""The requests of ``full_refresh``, ``rebuild_without_downtime`` and ``full_refresh_with_backup``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.errors import RequestError
from streamkeeper.flows.backfill_flow import BACKUP, check_backup_fits
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.backup_table import keep_last, kept_days
from streamkeeper.recover.requests.form import TABLE, Asking, form_field, schemas_inferred
from streamkeeper.recover.requests.rehearsal import Rehearsable

SOURCES = "sources"
FILLS = (SOURCES, BACKUP)
"""What an emptied table is filled from."""


def _table(description: str) -> Any:
    return form_field("string", "Table", description, names=TABLE)


def _writers(asking: Asking) -> list[Flow]:
    """Return the flows that write the table; add to ``asking.wrong`` if there are none."""
    if asking.table is None:
        return []
    pipeline, table = asking.table
    writers = asking.manifest.writers(pipeline.name, table.name)
    if not writers:
        asking.wrong.append(
            f"table is '{pipeline.name}.{table.name}', which no flow writes, so it would stay empty."
        )
    return writers


def filler(writers: list[Flow]) -> Flow:
    """Return the flow whose semantics apply to a backup's rows: one that keeps them by key, if any does."""
    return next((flow for flow in writers if flow.declaration.spec is not None), writers[0])


@dataclass(frozen=True)
class RefreshRequest(Rehearsable):
    """A full refresh as requested. ``table`` is ``pipeline.table``, found in the manifest."""

    refused = "The full refresh was not planned"

    table: str = _table(
        "The table to empty; every flow that writes it reads its sources again from the beginning."
    )
    infer_schemas: bool = schemas_inferred("Sources")

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that a flow writes the table."""
        _writers(asking)
        return {}


@dataclass(frozen=True)
class RebuildRequest(RefreshRequest):
    """A rebuild without downtime the table, as requested. ``table`` is ``pipeline.table``."""

    table: str = _table(
        "The table to rebuild; every flow that writes it reads its sources from the beginning, into a new"
        " table in a side table."
    )


@dataclass(frozen=True)
class WithBackupRequest(RefreshRequest):
    """A full refresh with backup: ``table`` is ``pipeline.table``, ``fill_from`` one of :data:`FILLS`."""

    table: str = _table("The table to back up, empty and fill again.")
    fill_from: str = form_field(
        "string",
        "Filled from",
        "sources: every flow reads its sources again from the beginning; the backup allows a restore."
        " backup: the rows are filled in from the backup, and each flow continues from its position; for"
        " tables whose history the sources no longer have.",
        SOURCES,
        enum=FILLS,
    )
    kept_days: float | None = kept_days()
    keep_last: int | None = keep_last()

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that a flow writes the table, and that a backup of it can be filled in, if requested."""
        writers = _writers(asking)
        if values["fill_from"] == BACKUP:
            if values["infer_schemas"]:
                asking.wrong.append(
                    "infer_schemas is given, but fill_from is backup: the flows continue unchanged. Leave"
                    " it off, or fill from sources."
                )
            try:
                if writers:
                    check_backup_fits(filler(writers))
            except RequestError as error:
                asking.wrong.append(str(error))
        return {}


@dataclass(frozen=True)
class Emptying:
    """What a full refresh empties: the table at ``path``, which had the version ``newest`` when that was
    planned. ``readers`` say which streams read it, ``others`` which rows of others are lost or return.
    """

    path: str = ""
    readers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    newest: int = 0
