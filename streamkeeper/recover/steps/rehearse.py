"""The step that rehearses a recovery before its approval: it is carried out on a copy, and nothing of the
original is changed.

{warehouse}/__rehearsals/<recovery>/<try>/state/      generations, checkpoints and ledger of the copy
                                         /warehouse/  tables: their logs copied, their data files shared
                                         /backups/    what the rehearsed recovery backs up

All of it is removed when the step ends, however it ends; what a kill leaves is removed with the recovery, or
by the next try, which has a folder of its own: a driver that a killed one left never meets it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamkeeper.recover.plans.kind import StepKind, Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import REHEARSE
from streamkeeper.recover.requests.rehearsal import MINUTES
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage

REHEARSALS = "__rehearsals"
"""Folder of rehearsals in the warehouse; no declared table may have such a name."""


@dataclass(frozen=True)
class Rehearsed:
    """What is rehearsed: a recovery by its request (``recovery`` is None for the declaration alone), with the
    declarations in ``pipelines`` (empty: those that are deployed), within the bounds.
    """

    recovery: str | None
    request: dict[str, Any] = field(default_factory=dict)
    pipelines: str = ""
    minutes: float = MINUTES
    files: int | None = None


def rehearsed(plan: Plan) -> Rehearsed:
    """Return what a plan has rehearsed: itself, unless its recovery is ``rehearse``."""
    if plan.recovery == REHEARSE:
        return plan.details_as(Rehearsed)
    return Rehearsed(plan.recovery, {**plan.request, "rehearse": False, "rehearsal": ""})


def folder(settings: Settings, recovery: str) -> str:
    """Return the folder or URL of a recovery's rehearsal."""
    return f"{settings.warehouse.rstrip('/')}/{REHEARSALS}/{recovery}"


def copy_settings(work: Work, rehearsal: Rehearsed) -> Settings:
    """Return the settings under which everything happens on the copy."""
    root = f"{folder(work.settings, work.plan.recovery_id)}/{work.attempt:03d}"
    return replace(
        work.settings,
        state=f"{root}/state",
        warehouse=f"{root}/warehouse",
        backups=f"{root}/backups",
        table_paths=(),
        pipelines=Path(rehearsal.pipelines) if rehearsal.pipelines else work.settings.pipelines,
        read_at_most=rehearsal.files or 0,
        register_tables=False,
    )


def remove(work: Work) -> None:
    """Remove what a rehearsal left: a driver that is left of it fails then."""
    _all(work.settings).remove(work.plan.recovery_id)


def _all(settings: Settings) -> Storage:
    return open_storage(f"{settings.warehouse.rstrip('/')}/{REHEARSALS}")


STEP = StepKind(
    REHEARSE,
    "before the approval: carry it out on a copy of the tables and checkpoints, and compare; then remove the"
    " copy",
    "streamkeeper_jobs.trial.rehearse:act",
    unasked=True,
)
