"""``tidy_tables``: which tables of a pipeline are compacted and vacuumed, and how much of their past must
stay.

A stream writes a file or more with every batch, and AUTO CDC rewrites some. ``tidy_tables`` puts small files
together (OPTIMIZE) and removes those that no version within the retention needs (VACUUM). What must stay
longer is found here, by looking: a flow that reads the table as a Delta source still needs the files of the
version that it stands at, or is decided to begin at; a rewind or a restore, those of the retention.

No table is locked: no row changes, a kill leaves nothing to take back, and what a recovery works on is left
for another day. Planning changes nothing; :mod:`streamkeeper_jobs.recover.tidy_tables` carries a plan out.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamkeeper.declare.model import Pipeline, Table
from streamkeeper.delta import history as delta_history
from streamkeeper.errors import StreamkeeperError
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.tidy_tables import TidyRequest
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.readers import Need, needs_of, readers

RECOVERY = "tidy_tables"
MARGIN_HOURS = 24.0
"""What a reader gets on top of the age of the version that it stands at."""

_DURATION = re.compile(r"(?:interval\s+)?([0-9]{1,9})\s+(hour|day|week)s?", re.IGNORECASE)
_HOURS = {"hour": 1.0, "day": 24.0, "week": 168.0}


@dataclass(frozen=True)
class TableTidy:
    """What is done to one table.

    ``locked`` says that it is an AUTO CDC table, and compaction takes the write lock.
    ``retention_hours`` is None where nothing is vacuumed. With ``left_alone`` nothing is done, for that
    reason. ``notes`` say what was found.
    """

    pipeline: str
    table: str
    locked: bool
    retention_hours: float | None
    notes: tuple[str, ...] = ()
    left_alone: str | None = None

    def describe(self) -> str:
        """Say the plan for this table in a line."""
        name = f"{self.pipeline}.{self.table}"
        if self.left_alone is not None:
            return f"{name} is skipped: {self.left_alone}."
        retention = (
            "nothing is vacuumed"
            if self.retention_hours is None
            else f"files of the last {self.retention_hours:,.0f} h are kept"
        )
        return f"{name}: small files are compacted; {retention}." + "".join(f" {note}" for note in self.notes)


@dataclass(frozen=True)
class Tidying:
    """What is done to each table."""

    tables: tuple[TableTidy, ...]


@dataclass(frozen=True)
class _Around:
    """Where a plan looks."""

    settings: Settings
    storage: Storage
    manifest: Manifest
    now: float


def plan(
    settings: Settings, manifest: Manifest, request: TidyRequest, recovery_id: str, now: float | None = None
) -> Plan:
    """Plan what is done to each table that was asked for. A table that cannot be looked at is left alone,
    with the reason.

    :param now: epoch seconds; the present by default.
    """
    around = _Around(settings, open_storage(settings.state), manifest, time.time() if now is None else now)
    pipeline = next(item for item in manifest.pipelines if item.name == request.pipeline)
    tidies = tuple(
        _plan(around, request, pipeline, table)
        for table in pipeline.tables
        if f"{pipeline.name}.{table.name}" in request.tables
    )
    return replace(
        KIND.draft(request, recovery_id, pipeline.name, ()),
        details=asdict(Tidying(tidies)),
        notes=tuple(tidy.describe() for tidy in tidies),
    )


def left_alone(plan: Plan) -> dict[str, str]:
    """Return the tables that a plan leaves alone, and why."""
    return {
        tidy.table: tidy.left_alone for tidy in plan.details_as(Tidying).tables if tidy.left_alone is not None
    }


def property_hours(duration: str) -> float | None:
    """Read ``delta.deletedFileRetentionDuration`` (``interval 30 days``) in hours; None if it is no time."""
    match = _DURATION.fullmatch(duration.strip())
    return float(match[1]) * _HOURS[match[2].lower()] if match else None


def _plan(around: _Around, request: TidyRequest, pipeline: Pipeline, table: Table) -> TableTidy:
    path = around.settings.table_path(table.name)
    bare = TableTidy(pipeline.name, table.name, pipeline.needs_write_lock(table.name), None)
    try:
        at_work = recovery_at_work(around.storage, bare)
        history = delta_history.read_history(path)
        if at_work is not None:
            return replace(bare, left_alone=at_work)
        if history is None:
            return replace(bare, left_alone="there is no table yet")
        if not request.vacuum:
            return bare
        table_readers = readers(around.settings, around.manifest, path)
        needs = [
            need for flow, source in table_readers for need in needs_of(around.storage, flow, source, history)
        ]
        hours = [_hours(around, history, need) for need in needs]
    except StreamkeeperError as error:
        return replace(bare, left_alone=f"the files to keep are unknown: {error}")
    retention_hours, notes = max([request.retention_hours, *hours]), tuple(need.reason for need in needs)
    return replace(bare, retention_hours=retention_hours, notes=notes)


def recovery_at_work(storage: Storage, tidy: TableTidy) -> str | None:
    """Return the recovery that has locked a table since the plan was made; None if none has."""
    recovery = recovery_lock.holder(storage, tidy.pipeline, tidy.table)
    return None if recovery is None else f"the recovery {recovery} has locked it"


def _hours(around: _Around, history: delta_history.History, need: Need) -> float:
    """Return how many hours of the table's past a reader needs.

    :raises SourceError: the version that it needs is not in the log any more.
    """
    return (around.now - delta_history.committed_at(history, need.version) / 1000) / 3600 + MARGIN_HOURS


def _nothing_to_tidy(work: Work) -> dict[str, Any] | None:
    skipped = left_alone(work.plan)
    return (
        {"tables": [], "left": skipped} if len(skipped) == len(work.plan.details_as(Tidying).tables) else None
    )


KIND = Kind(
    name=RECOVERY,
    description="Runs OPTIMIZE and VACUUM; files that flows, readers and a rewind need are kept.",
    request=TidyRequest,
    plan=plan,
    steps=(
        StepKind(
            "tidy",
            "compact small files, under the write lock if the table has one, and remove files that are not"
            " needed",
            "streamkeeper_jobs.recover.tidy_tables:act",
            patient=True,
            idle=_nothing_to_tidy,
        ),
    ),
)
