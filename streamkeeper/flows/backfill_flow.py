"""Backfills: rows that are read once more, from elsewhere or from long ago, through a flow's own views into
its table, while it runs on.

A backfill is a flow of its own for as long as it takes: declared by :func:`derive` from the flow that it is
for, run once, with a lease, a checkpoint and a query id of its own. So its chunks are micro-batches, a
backfill that was killed goes on where it was, and each chunk is in the table once. Changes by key and
sequence (AUTO CDC) never overwrite newer rows, whatever their order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamkeeper.declare.model import AppendFlow, Source
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome, kept_flows
from streamkeeper.manifest.manifest import Flow
from streamkeeper.storage import Storage

if TYPE_CHECKING:
    pass

HISTORY, FILES, TABLE, BACKUP = "history", "files", "table", "backup"
READS = (HISTORY, FILES, TABLE, BACKUP)
"""What a backfill may read: what the flow's own source still has; other files like those of the source; a
Delta table with the source's columns; a backup of the flow's target, whose rows are the target's already and
go through no view.
"""

CHUNK_FILES, CHUNK_RECORDS = 100, 1_000_000
"""How much one chunk reads unless it is said: files of a files or Delta source, records of a Kafka source."""

_MARK = "__backfill_"
_GLOB, _NO_FILE = "pathGlobFilter", "_"
"""What lets a files source give no file: Spark hides names that begin with ``_``."""


def name_of(flow: str, recovery: str) -> str:
    """Give the name of a backfill's own flow: that of its flow, a mark that no one else uses, and the end of
    the recovery's id.
    """
    return f"{flow[:80]}{_MARK}{_mark_of(recovery)}"


def is_backfill(name: str) -> bool:
    """Say whether a flow's name is a backfill's."""
    return _MARK in name


def unfinished(storage: Storage, pipeline: str, table: str, but: str) -> list[FlowHome]:
    """Give where the backfills of a table are kept that have not come to their end, abandoned ones too: a
    chunk of theirs may come late.

    :param but: the id of a recovery whose own backfill is left out.
    """
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
    """Say whether a source is one that a backfill reads nothing of."""
    return source.option(_GLOB) == _NO_FILE


SEQUENCE, KIND = "backup__sequence", "backup__kind"
"""Columns of a backup's changes that are not stored: the parts of a row's sequence (``backup__sequence0``,
…), and what kind it is.
"""


def check_backup_fits(flow: Flow) -> None:
    """Make sure that a backup of a flow's target can be applied by the flow's semantics.

    :raises RequestError: its rows do not say which changes they come from.
    """
    declared = flow.declaration
    if isinstance(declared, AppendFlow):
        return
    why = None
    if declared.spec.scd_type == 2:
        why = "is of SCD type 2, whose rows are versions and not changes"
    elif declared.spec.ignore_null_updates:
        why = "ignores nulls, so that a row comes from several changes"
    if why is not None:
        raise RequestError(
            f"The table {declared.target} {why}: a backup of it cannot be filled in beside what is there. Put"
            " it back with restore_table, or backfill from the source."
        )
