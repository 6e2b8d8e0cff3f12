"""Keeping the files of tables in check: which tables are compacted and vacuumed, and how much of their past
must stay.

A stream writes a file or more with every batch, and AUTO CDC rewrites some. ``tidy_tables`` puts small files
together (OPTIMIZE) and removes those that no version within the retention needs (VACUUM). What must stay
longer is found here, by looking: a flow that reads the table as a Delta source still needs the files of the
version that it stands at, or is decided to begin at; a rewind or a restore, those of the retention.

Nothing here changes anything; ``spark_jobs/run_tidying.py`` carries a plan out.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass

from streamkeeper.declare.model import Pipeline, Table
from streamkeeper.delta import history as delta_history
from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.requests.tidy_tables import TidyRequest
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.readers import Need, needs_of, readers

MARGIN_HOURS = 24.0
"""What a reader gets on top of the age of the version that it stands at."""

_DURATION = re.compile(r"(?:interval\s+)?([0-9]+)\s+(hour|day|week)s?", re.IGNORECASE)
_HOURS = {"hour": 1.0, "day": 24.0, "week": 168.0}


@dataclass(frozen=True)
class TableTidy:
    """What is done to one table: to each of its ``paths``, the tombstones of an AUTO CDC table among them.

    ``retention_hours`` is None where nothing is vacuumed. ``turn`` says that writers take turns, so
    compaction takes one too. With ``left_alone`` nothing is done, for that reason. ``notes`` say what was
    found.
    """

    pipeline: str
    table: str
    paths: tuple[str, ...]
    turn: bool
    retention_hours: float | None
    notes: tuple[str, ...] = ()
    left_alone: str | None = None

    def describe(self) -> str:
        """Say the plan for this table in a line."""
        name = f"{self.pipeline}.{self.table}"
        if self.left_alone is not None:
            return f"{name} is left alone: {self.left_alone}."
        kept = (
            "nothing is vacuumed"
            if self.retention_hours is None
            else f"files of the last {self.retention_hours:,.0f} h stay"
        )
        return f"{name}: small files are put together; {kept}." + "".join(f" {note}" for note in self.notes)


@dataclass(frozen=True)
class _Around:
    """Where a plan looks."""

    settings: Settings
    storage: Storage
    manifest: Manifest
    now: float


def plan(
    settings: Settings, manifest: Manifest, request: TidyRequest, now: float | None = None
) -> tuple[TableTidy, ...]:
    """Plan what is done to each table that was asked for. A table that cannot be looked at is left alone,
    with the reason.

    :param now: epoch seconds; the present by default.
    """
    around = _Around(settings, open_storage(settings.state), manifest, time.time() if now is None else now)
    asked = [(pipeline, table) for pipeline in manifest.pipelines for table in pipeline.tables]
    return tuple(
        _plan(around, request, pipeline, table)
        for pipeline, table in asked
        if f"{pipeline.name}.{table.name}" in request.tables
    )


def to_text(tidies: tuple[TableTidy, ...]) -> str:
    """Give a plan as the JSON text that the Spark job takes."""
    return json.dumps([asdict(tidy) for tidy in tidies])


def from_text(text: str) -> tuple[TableTidy, ...]:
    """Read what :func:`to_text` gave.

    :raises RequestError: it is something else.
    """
    try:
        return tuple(
            TableTidy(**{**item, "paths": tuple(item["paths"]), "notes": tuple(item["notes"])})
            for item in json.loads(text)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise RequestError(
            f"This is no plan of tidy_tables: {error}. Give what its task `plan` gave."
        ) from error


def property_hours(duration: str) -> float | None:
    """Read a table's ``delta.deletedFileRetentionDuration`` (``interval 30 days``) in hours; None where it
    says something else.
    """
    found = _DURATION.fullmatch(duration.strip())
    return float(found[1]) * _HOURS[found[2].lower()] if found else None


def _plan(around: _Around, request: TidyRequest, pipeline: Pipeline, table: Table) -> TableTidy:
    path = around.settings.table_path(table.name)
    keeps_tombstones = pipeline.keeps_tombstones(table.name)
    paths = (path, around.settings.tombstones_path(table.name)) if keeps_tombstones else (path,)
    bare = TableTidy(pipeline.name, table.name, paths, keeps_tombstones, None)
    try:
        at_work = recovery_at_work(around.storage, bare)
        history = delta_history.read_history(path)
        if at_work is not None:
            return _left(bare, at_work)
        if history is None:
            return _left(bare, "there is no table yet")
        if not request.vacuum:
            return bare
        found = readers(around.settings, around.manifest, path)
        needs = [need for flow, source in found for need in needs_of(around.storage, flow, source, history)]
        hours = [_hours(around, history, need) for need in needs]
    except StreamkeeperError as error:
        return _left(bare, f"what must stay cannot be known: {error}")
    kept, notes = max([request.retention_hours, *hours]), tuple(need.why for need in needs)
    return TableTidy(pipeline.name, table.name, paths, keeps_tombstones, kept, notes)


def recovery_at_work(storage: Storage, tidy: TableTidy) -> str | None:
    """Say which recovery works on a table now, if one does: a plan may be hours old when its turn comes."""
    recovery = recovery_lock.holder(storage, tidy.pipeline, tidy.table)
    return None if recovery is None else f"the recovery {recovery} works on it"


def _left(tidy: TableTidy, why: str) -> TableTidy:
    return TableTidy(tidy.pipeline, tidy.table, tidy.paths, tidy.turn, None, (), why)


def _hours(around: _Around, history: delta_history.History, need: Need) -> float:
    """Give how many hours of the table's past a reader needs.

    :raises SourceError: the version that it needs is not in the log any more.
    """
    return (around.now - delta_history.committed_at(history, need.version) / 1000) / 3600 + MARGIN_HOURS
