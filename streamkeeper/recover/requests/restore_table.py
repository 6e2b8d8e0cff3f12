"""The request of ``restore_table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.flows.generations import InitialState
from streamkeeper.recover.requests.form import TABLE, Asking, form_field, state_then
from streamkeeper.recover.requests.rehearsal import Rehearsable
from streamkeeper.tables.backups import NEWEST


@dataclass(frozen=True)
class RestoreRequest(Rehearsable):
    """A restore of ``table`` to a ``backup``, by its id or ``newest``, or to a ``version`` of the table."""

    refused = "The restore was not planned"

    table: str = form_field(
        "string", "Table", "The table to replace, together with its tombstones.", names=TABLE
    )
    backup: str | None = form_field(
        "string",
        "Backup",
        "The id of the backup to restore, as streamkeeper backups lists it, or newest. Empty: a version is"
        " restored.",
        nullable=True,
    )
    version: int | None = form_field(
        "number",
        "Version",
        "Or: a version of the table itself whose files VACUUM has not removed.",
        nullable=True,
        whole=True,
        least=0,
    )
    state: InitialState = state_then()

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that a backup or a version is named, and not both."""
        backup, version = values["backup"] or None, values["version"]
        if (backup is None) == (version is None):
            choice = (
                "neither a backup nor a version"
                if backup is None
                else f"both a backup ({backup!r}) and a version ({version!r})"
            )
            asking.wrong.append(
                f"{choice} is given. Give one: a backup's id or {NEWEST!r}, or a version's number."
            )
        return {"backup": backup}
