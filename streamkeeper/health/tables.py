"""Tables of all pipelines: place, owner, flows, size, and whether the session catalog has their name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from streamkeeper.declare.checks import is_same_name
from streamkeeper.declare.model import Pipeline, Table, quarantine_of
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import Summary, read_summary
from streamkeeper.errors import SourceError
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.manifest.named_tables import columns_mark, registration_of
from streamkeeper.settings import Settings
from streamkeeper.sources.delta.statistics import amount_at
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import owners

COUNTED_FILES = 2_000
"""Files of a table up to which its rows are counted, from the statistics in its log."""
REGISTERED = "registered"


@dataclass(frozen=True)
class TableSize:
    """Size of a table, which lags a commit behind; ``rows`` is None where they are not counted, the others
    where there is no table yet, or no summary.
    """

    version: int | None = None
    files: int | None = None
    bytes: int | None = None
    rows: int | None = None


@dataclass(frozen=True)
class TableRow:
    """One table. ``flows`` write it or set rows aside in it. ``registered_as`` is its declared name in the
    session catalog, ``name_state`` whether it has that; both are None if it declares none.
    """

    table: str
    path: str
    pipeline: str
    flows: tuple[str, ...]
    size: TableSize
    registered_as: str | None = None
    name_state: str | None = None


def listed(settings: Settings, manifest: Manifest) -> Iterator[TableRow]:
    """Yield a row for each declared table, by pipeline and name."""
    storage = open_storage(settings.state)
    for pipeline in manifest.pipelines:
        for table in sorted(pipeline.tables, key=lambda table: table.name):
            if table.sink is None:
                yield _row(settings, storage, pipeline, table)


def size_of(path: str) -> TableSize:
    """Return the size of the table at a path or URL."""
    summary = _summary(path)
    if summary is None:
        return TableSize()
    rows = _rows(path, summary.version) if summary.files <= COUNTED_FILES else None
    return TableSize(summary.version, summary.files, summary.bytes, rows)


def _row(settings: Settings, storage: Storage, pipeline: Pipeline, table: Table) -> TableRow:
    path = settings.table_path(table.name)
    owner = owners.owner(storage, table.name) or pipeline.name
    flows = tuple(
        f"{pipeline.name}.{flow.name}"
        for flow in pipeline.flows
        if table.name in (flow.target, quarantine_of(flow))
    )
    state = None if table.registered_as is None else _name_state(storage, table, path)
    return TableRow(table.name, path, owner, flows, size_of(path), table.registered_as, state)


def _name_state(storage: Storage, table: Table, path: str) -> str:
    """Return whether the last driver gave a table its declared name, with the columns that it has now."""
    known = registration_of(storage, table.name)
    if known is None:
        return "not registered yet: the next start of its flow does it"
    if not is_same_name(known.name, table.registered_as):
        return f"registered as {known.name} until the next start of its flow"
    if known.location != path:
        return f"registered at {known.location} until the next start of its flow"
    summary = _summary(path)
    if summary is not None and known.columns != columns_mark(summary.metadata["schemaString"]):
        return "registered with older columns until the next start of its flow"
    return REGISTERED


def _summary(path: str) -> Summary | None:
    """Return the newest summary of a table: Spark writes a version's after its commit."""
    newest = delta_log.latest_version(path) if delta_log.exists(path) else None
    versions = () if newest is None else range(newest, max(-1, newest - 2), -1)
    return next((summary for version in versions if (summary := read_summary(path, version))), None)


@lru_cache(maxsize=256)
def _rows(path: str, version: int) -> int | None:
    try:
        amount = amount_at(path, version)
    except SourceError:
        return None
    return None if amount.at_most else amount.rows
