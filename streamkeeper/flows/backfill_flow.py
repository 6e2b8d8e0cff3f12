"""Backfills: rows that are read once more, from elsewhere or from long ago, through a flow's own views into
its table, while it runs on.

A backfill is a flow of its own for as long as it takes: declared by :func:`derive` from the flow that it is
for, run once, with a lease, a checkpoint and a query id of its own. So its chunks are micro-batches, a
backfill that was killed goes on where it was, and each chunk is in the table once. Changes by key and
sequence (AUTO CDC) never overwrite newer rows, whatever their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import DELTA, KAFKA, AppendFlow, AutoCdcFlow, Source, View
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome, kept_flows
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.storage import Storage

if TYPE_CHECKING:
    from streamkeeper.recover.requests.backfill import BackfillRequest

HISTORY, FILES, TABLE, BACKUP = "history", "files", "table", "backup"
READS = (HISTORY, FILES, TABLE, BACKUP)
"""What a backfill may read: what the flow's own source still has; other files like those of the source; a
Delta table with the source's columns; a backup of the flow's target, whose rows are the target's already and
go through no view.
"""

CHUNK_FILES, CHUNK_RECORDS = 100, 1_000_000
"""How much one chunk reads unless it is said: files of a files or Delta source, records of a Kafka source."""

_MARK = "__backfill_"
_RAW = "__again"
_LEFT_OUT = frozenset(
    (
        "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay",
        "latestfirst", "maxfileage", "cleansource", "sourcearchivedir",
    )
)  # fmt: skip
"""Options of a source that are its stream's alone: a backfill has chunks of its own, and neither skips,
removes nor moves old files.
"""
_GLOB, _NO_FILE = "pathGlobFilter", "_"
"""What lets a files source give no file: Spark hides names that begin with ``_``."""

Frames = Callable[..., Any]
"""A function from DataFrames to a DataFrame, as a view has one."""


@dataclass(frozen=True)
class Backup:
    """A backup as a backfill reads it: paths or URLs of the copied target and of its tombstones, None where
    it has none; and of how many columns a sequence is made.
    """

    target: str
    tombstones: str | None
    parts: int = 1


@dataclass(frozen=True)
class Filters:
    """How a backfill's frames are made, by whoever has Spark: ``only`` chooses rows of the source that comes
    again, ``none`` leaves out all rows of another source, ``changes`` makes changes of a backup's rows and
    tombstones.
    """

    only: Frames
    none: Frames
    changes: Frames


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


def derive(
    flow: Flow, request: BackfillRequest, recovery: str, filters: Filters, backup: Backup | None = None
) -> Flow:
    """Give the flow that a backfill is: with the target, views and semantics of the one it is for, and other
    sources.

    :param flow: imported, with its functions; schemas that it does not declare filled in.
    :param backup: what is read where a backup is.
    """
    name = name_of(flow.name, recovery)
    if request.read == BACKUP:
        assert backup is not None, "a request for a backup was checked to have one"
        changed = _from_backup(flow, request, filters, backup)
    else:
        changed = _from_source(flow, request, filters)
    declared = replace(changed.declaration, name=name, once=True)
    flows = tuple(other for other in flow.pipeline.flows if other.name != name)
    pipeline = replace(changed.pipeline, flows=(*flows, declared), shared_driver=False)
    return Flow(pipeline, declared, fingerprint(pipeline, declared))


def raw_source(source: Source, request: BackfillRequest) -> Source:
    """Give the source that a backfill reads in place of one of the flow's, in chunks, under another name.

    :param source: opened or not, with its schema filled in.
    """
    kept = replace(_without_own_options(source), start="earliest")
    if request.read == FILES:
        kept = replace(kept, path=request.path)
    if request.read == TABLE:
        kept = Source(kept.name, DELTA, request.path, None, {}, source.where, table=request.table)
    if kept.format == KAFKA:
        limit = {"maxOffsetsPerTrigger": str(request.chunk or CHUNK_RECORDS)}
        return replace(kept, options={**kept.options, **limit}, start=request.from_offsets or "earliest")
    age = {} if kept.format == DELTA else {"maxFileAge": "36500d"}
    return replace(
        kept, options={**kept.options, **age, "maxFilesPerTrigger": str(request.chunk or CHUNK_FILES)}
    )


def silent_source(source: Source) -> Source:
    """Give one of the flow's other sources as a backfill reads it, under another name: nothing of it is
    removed, and no file is listed.
    """
    kept = _without_own_options(source)
    if not kept.reads_files:
        return kept
    options = {key: value for key, value in kept.options.items() if key.lower() != _GLOB.lower()}
    return replace(kept, options={**options, _GLOB: _NO_FILE})


def is_silent(source: Source) -> bool:
    """Say whether a source is one that a backfill reads nothing of."""
    return source.option(_GLOB) == _NO_FILE


def _without_own_options(source: Source) -> Source:
    """Give a source under the name that a backfill reads it by, without the options that are its stream's
    alone.
    """
    plain = {key: value for key, value in source.options.items() if key.lower() not in _LEFT_OUT}
    return replace(source, name=source.name + _RAW, options=plain)


def _from_source(flow: Flow, request: BackfillRequest, filters: Filters) -> Flow:
    """Read one source from elsewhere, and nothing of the others: what the views make of its rows is what
    comes.
    """
    sources: list[Source] = []
    views: list[View] = []
    for source in flow.pipeline.sources_of(flow.declaration):
        again = source.name == request.source
        raw = raw_source(source, request) if again else silent_source(source)
        sources.append(raw)
        views.append(
            View(source.name, (raw.name,), "", source.where, filters.only if again else filters.none)
        )
    return replace(
        flow, pipeline=replace(flow.pipeline, sources=tuple(sources), views=(*views, *flow.pipeline.views))
    )


def _from_backup(flow: Flow, request: BackfillRequest, filters: Filters, backup: Backup) -> Flow:
    """Read a backup's rows, past the views: they are rows of the target."""
    declared = flow.declaration
    options = {"maxFilesPerTrigger": str(request.chunk or CHUNK_FILES)}
    paths = {"backup__rows": backup.target, "backup__tombstones": backup.tombstones}
    sources = tuple(
        Source(name, DELTA, path, None, options, declared.where)
        for name, path in paths.items()
        if path is not None
    )
    names = tuple(source.name for source in sources)
    if isinstance(declared, AutoCdcFlow):
        views: tuple[View, ...] = (View("backup__changes", names, "", declared.where, filters.changes),)
        declared = replace(
            declared, source="backup__changes", spec=spec_of_backup(declared.spec, backup.parts)
        )
    else:
        views = ()
        declared = replace(declared, sources=names[:1], function=filters.only)
    pipeline = replace(flow.pipeline, sources=sources, views=views)
    return Flow(pipeline, declared, flow.fingerprint)


SEQUENCE, KIND = "backup__sequence", "backup__kind"
"""Columns of a backup's changes that are not stored: the parts of a row's sequence (``backup__sequence0``,
…), and what kind it is.
"""


@dataclass(frozen=True)
class SpecOfBackup(CdcSpec):
    """How changes become rows that became rows once: what a flow with a literal wrote has the sequence that
    it wrote, nulls in it.
    """

    parts_may_be_null: ClassVar[bool] = True


def spec_of_backup(spec: CdcSpec, parts: int) -> SpecOfBackup:
    """Give how a backup's changes are applied: each at the sequence that its row had.

    :param parts: how many columns a sequence has.
    """
    sequence = tuple(f"{SEQUENCE}{number}" for number in range(parts))
    return SpecOfBackup(
        keys=spec.keys,
        sequence_by=sequence,
        apply_as_deletes=f"{KIND} = 'delete'",
        apply_as_truncates=f"{KIND} = 'truncate'",
        except_column_list=(*sequence, KIND),
        scd_type=spec.scd_type,
    )


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
