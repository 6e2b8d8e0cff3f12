"""Backfills: rows read again, or from elsewhere, through a flow's own views into its table, while it runs.

A backfill is a flow of its own for as long as it takes: derived from the flow that it is for, run once, with
a lease, a checkpoint and a query id of its own. So its chunks are micro-batches, a killed backfill resumes
where it was, and each chunk is in the table once. Changes by key and sequence (AUTO CDC) never overwrite
newer rows, whatever their order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.declare.model import COMPLETE, Source
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome, kept_flows
from streamkeeper.manifest.manifest import Flow
from streamkeeper.storage import Storage

HISTORY, FILES, TABLE, BACKUP = "history", "files", "table", "backup"
READS = (HISTORY, FILES, TABLE, BACKUP)
"""Input of a backfill: data retained by the flow's own source; other files like those of the source; a Delta
table with the source's columns; or a backup of the flow's target. Rows of a backup are the target's already
and pass through no view.
"""

CHUNK_FILES, CHUNK_RECORDS = 100, 1_000_000
"""Default size of a chunk: files of a files or Delta source, records of a Kafka source."""

_MARK = "__backfill_"
_GLOB, _NO_FILE = "pathGlobFilter", "_"
"""Option and pattern that match no file: Spark hides names that begin with ``_``."""


def name_of(flow: str, recovery: str) -> str:
    """Return the name of a backfill's own flow: its flow's name, a reserved mark, the recovery id's end."""
    return f"{flow[:80]}{_MARK}{_mark_of(recovery)}"


def is_backfill(name: str) -> bool:
    """Return whether a flow's name is a backfill's."""
    return _MARK in name


def unfinished(storage: Storage, pipeline: str, table: str, but: str) -> list[FlowHome]:
    """Return the files of a table's unfinished backfills, abandoned ones too.

    :param but: the id of a recovery whose own backfill is left out.
    """
    # Abandoned backfills count: a chunk of theirs may still be written.
    homes = [
        home
        for home in kept_flows(storage, pipeline)
        if is_backfill(home.flow) and generations.finished(home) is None
    ]
    marks = (
        {_mark_of(recovery) for recovery in _recoveries_of(storage, pipeline, table) if recovery != but}
        if homes
        else set()
    )
    return [home for home in homes if home.flow.rpartition(_MARK)[2] in marks]


def _recoveries_of(storage: Storage, pipeline: str, table: str) -> Iterator[str]:
    for recovery in ledger.recoveries(storage, pipeline):
        planned = ledger.open(storage, pipeline, recovery).find("planned")
        if planned is not None and table in planned.evidence.get("tables", ()):
            yield recovery


def _mark_of(recovery: str) -> str:
    return recovery[-8:]


def is_silent(source: Source) -> bool:
    """Return whether a backfill reads nothing of a source."""
    return source.option(_GLOB) == _NO_FILE


SEQUENCE, KIND = "backup__sequence", "backup__kind"
"""Columns of a backup's changes that are not stored: the parts of a row's sequence, and its kind."""


def check_backup_fits(flow: Flow) -> None:
    """Check that the semantics of a flow allow a backfill from a backup of its target.

    :raises RequestError: the rows of the backup do not show which changes they come from.
    """
    declared = flow.declaration
    reason = None
    if declared.mode == COMPLETE:
        reason = "is replaced as a whole by each batch"
    elif declared.spec is None:
        return
    elif declared.spec.scd_type == 2:
        reason = "is of SCD type 2, whose rows are versions and not changes"
    elif declared.spec.ignore_null_updates:
        reason = "ignores nulls, so that a row comes from several changes"
    if reason is not None:
        raise RequestError(
            f"The table {declared.target} {reason}: a backup cannot be filled in beside existing rows."
            " Restore it with restore_table, or backfill from the source."
        )
