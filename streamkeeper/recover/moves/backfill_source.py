"""The flow that a backfill runs: the same declaration with other sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import DELTA, AutoCdcFlow, Source, View
from streamkeeper.flows.backfill_flow import (
    _GLOB,
    _NO_FILE,
    BACKUP,
    CHUNK_FILES,
    CHUNK_RECORDS,
    FILES,
    KIND,
    SEQUENCE,
    TABLE,
    name_of,
)
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.sources.starts import starts_of
from streamkeeper.support.amounts import Amount

FILL = "fill"
"""Name of the step that drives the flow of a backfill."""


@dataclass(frozen=True)
class FillingIn:
    """What a backfill fills in: for a flow, as it was declared by its fingerprint. ``reads`` is None as part
    of a full refresh, which counts its rows as a copy, and ``backfill`` the request of that part.
    """

    flow: str
    fingerprint: str
    reads: Amount | None = None
    backup: Backup | None = None
    backfill: dict[str, Any] | None = None


@dataclass(frozen=True)
class Filled:
    """What the step ``fill`` did: ``batch`` is the last chunk, None where there was none; ``missing`` says
    which chunks the table lacks.
    """

    flow: str
    query_id: str
    done: bool
    batch: int | None
    missing: str | None


@dataclass(frozen=True)
class Backup:
    """A backup as a backfill reads it: paths or URLs of the copied target and, for AUTO CDC, of the deletes
    that it remembers, which the driver writes as a table; and of how many columns a sequence is made.
    """

    target: str
    tombstones: str | None = None
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


def derive(
    flow: Flow, request: BackfillRequest, recovery: str, filters: Filters, backup: Backup | None = None
) -> Flow:
    """Return the flow that a backfill is: with the target, views and semantics of the one it is for, and
    other sources.

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
    """Return the source that a backfill reads in place of one of the flow's, in chunks, under another name.

    :param source: opened or not, with its schema filled in.
    """
    raw = replace(_without_own_options(source), start="earliest")
    if request.read == FILES:
        raw = replace(raw, path=request.path)
    if request.read == TABLE:
        raw = Source(raw.name, DELTA, request.path, None, {}, source.location, table=request.table)
    if raw.kind.records:
        raw = replace(raw, start=request.from_offsets or "earliest")
    chunk = request.chunk or (CHUNK_RECORDS if raw.kind.records else CHUNK_FILES)
    return replace(raw, options={**raw.options, **starts_of(raw).chunks(chunk)})


def silent_source(source: Source) -> Source:
    """Return another source of the flow as a backfill reads it: renamed, without files or removals."""
    silent = _without_own_options(source)
    if not silent.reads_files:
        return silent
    options = {key: value for key, value in silent.options.items() if key.lower() != _GLOB.lower()}
    return replace(silent, options={**options, _GLOB: _NO_FILE})


def _without_own_options(source: Source) -> Source:
    """Return a source under a backfill's name, without the options of its stream alone."""
    plain = {key: value for key, value in source.options.items() if key.lower() not in _LEFT_OUT}
    return replace(source, name=source.name + _RAW, options=plain)


def _from_source(flow: Flow, request: BackfillRequest, filters: Filters) -> Flow:
    """Read one source from elsewhere, and nothing of the others: its rows, through the views."""
    sources: list[Source] = []
    views: list[View] = []
    for source in flow.sources:
        again = source.name == request.source
        raw = raw_source(source, request) if again else silent_source(source)
        sources.append(raw)
        views.append(
            View(source.name, (raw.name,), "", source.location, filters.only if again else filters.none)
        )
    return replace(
        flow, pipeline=replace(flow.pipeline, sources=tuple(sources), views=(*views, *flow.pipeline.views))
    )


def _from_backup(flow: Flow, request: BackfillRequest, filters: Filters, backup: Backup) -> Flow:
    """Read a backup's rows, past views and expectations: they are rows of the target."""
    declared = replace(flow.declaration, expectations=())
    options = {"maxFilesPerTrigger": str(request.chunk or CHUNK_FILES)}
    paths = {"backup__rows": backup.target, "backup__tombstones": backup.tombstones}
    sources = tuple(
        Source(name, DELTA, path, None, options, declared.location)
        for name, path in paths.items()
        if path is not None
    )
    names = tuple(source.name for source in sources)
    views: tuple[View, ...]
    if declared.spec is not None:
        views = (View("backup__changes", names, "", declared.location, filters.changes),)
        declared = AutoCdcFlow(
            declared.name,
            declared.target,
            "backup__changes",
            spec_of_backup(declared.spec, backup.parts),
            declared.trigger,
            declared.spark_conf,
            declared.location,
            declared.on_failure,
            declared.once,
            declared.on_change,
            declared.park_after,
        )
    else:
        views = ()
        declared = replace(declared, sources=names[:1], function=filters.only, initial_state=None)
    pipeline = replace(flow.pipeline, sources=sources, views=views)
    return Flow(pipeline, declared, flow.fingerprint)


@dataclass(frozen=True)
class SpecOfBackup(CdcSpec):
    """How changes become the rows that they became: a literal's rows have the sequence that it wrote."""

    parts_may_be_null: ClassVar[bool] = True


def spec_of_backup(spec: CdcSpec, parts: int) -> SpecOfBackup:
    """Return how a backup's changes are applied: each at the sequence that its row had.

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


_RAW = "__again"


_LEFT_OUT = frozenset(
    (
        "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger",
        "maxtriggerdelay", "latestfirst", "maxfileage", "cleansource", "sourcearchivedir",
    )
)  # fmt: skip
"""Options of a stream alone: a backfill has its own chunks, and skips, removes and moves no files."""


Frames = Callable[..., Any]
"""A function from DataFrames to a DataFrame, as a view has one."""
