"""``full_refresh_with_backup``: back up the table, empty it, and fill it from its sources or from that
backup.

Filled from its sources, it is a full refresh that can be undone. Filled from the backup, it suits a table
whose history the sources no longer have: the rows pass through the engine that applies the flow's changes,
and the stream continues from its position. The flows are held throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from streamkeeper.flows import generations
from streamkeeper.flows.backfill_flow import BACKUP
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import AFTER_LAST, EMPTY, REBUILT, StartAt
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.kinds import backfill, backup_table, full_refresh
from streamkeeper.recover.moves.backfill_source import FILL, Backup, FillingIn
from streamkeeper.recover.moves.next_generation import plan_move
from streamkeeper.recover.moves.present import look_at
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import FlowPlan, Plan, Refusal
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.recover.requests.backup_table import BackupRequest
from streamkeeper.recover.requests.full_refresh import SOURCES, WithBackupRequest, filler
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import DUPLICATES
from streamkeeper.tables.backups import COPY, ENTER, PIN, VERIFY

RECOVERY = "full_refresh_with_backup"
VERIFY_FILLED = "verify_filled"


def plan(settings: Settings, manifest: Manifest, request: WithBackupRequest, recovery_id: str) -> Plan:
    """Plan it; nothing is changed.

    :raises RequestError: there is no table yet, or it cannot be copied, or cannot be filled from a copy.
    :raises CheckpointError: the checkpoint of one of its flows cannot be read as far as the plan needs it.
    """
    refresh = full_refresh.plan(
        settings, manifest, request, recovery_id, others_go=request.fill_from == SOURCES
    )
    backup_request = BackupRequest((request.table,), request.kept_days, request.keep_last)
    backup = backup_table.plan(settings, manifest, backup_request, recovery_id)
    flows, refusals, details = refresh.flows, refresh.refusals, {**refresh.details, **backup.details}
    writers = [flow for flow in manifest.flows() if flow.full_name in {planned.flow for planned in flows}]
    if request.fill_from == BACKUP:
        backfill.check_rows_fit(settings, filler(writers))
        details |= asdict(_filling(request, filler(writers), backup))
        going_on = [
            _goes_on(settings, flow, planned, request) for flow, planned in zip(writers, flows, strict=True)
        ]
        flows = tuple(planned for planned, _ in going_on)
        felt = (item for item in refusals if item.flow is None)  # of readers
        refusals = (*(item for _, refused in going_on for item in refused), *felt)
    return replace(
        refresh,
        recovery=RECOVERY,
        request=asdict(request),
        flows=flows,
        steps=KIND.step_names,
        copies=backup.copies,
        details=details,
        notes=(*backup.notes, *refresh.notes, *_notes(request, recovery_id)),
        refusals=refusals,
    )


def enter(work: Work) -> dict[str, Any]:
    """Enter the backup, if the impact is accepted: nothing is emptied without it."""
    shared_steps.check_go(work)
    return backup_table.enter(work)


def verify_filled(work: Work) -> dict[str, Any]:
    """Check that the backup's rows are in the table, where it is filled from there."""
    return _nothing_to_fill(work) or backfill.verify(work)


def given_up(work: Work) -> None:
    """Let nobody fill the table from the backup any more."""
    if _nothing_to_fill(work) is None:
        backfill.given_up(work)


def _nothing_to_fill(work: Work) -> dict[str, Any] | None:
    return (
        {"note": "the flows fill the table from their sources"}
        if WithBackupRequest.from_json(work.plan.request).fill_from == SOURCES
        else None
    )


def _filling(request: WithBackupRequest, flow: Flow, backup: Plan) -> FillingIn:
    """Return what the step ``fill`` needs, where the backup fills the table."""
    [copy] = backup.copies
    backfill_request = BackfillRequest(flow.full_name, BACKUP, backup=backup.recovery_id)
    return FillingIn(
        flow.full_name, flow.fingerprint, None, Backup(copy.destination), asdict(backfill_request)
    )


def _goes_on(
    settings: Settings, flow: Flow, planned: FlowPlan, request: WithBackupRequest
) -> tuple[FlowPlan, tuple[Refusal, ...]]:
    """Plan a flow that continues after what it read last; one that runs once and is done stays so."""
    if planned.next_generation is None:
        return planned, ()
    home = open_home(settings, flow.full_name)
    if flow.declaration.once and generations.finished(home) is not None:
        return replace(
            planned, next_generation=None, impacts=(), notes=("It runs once, and stays done.",)
        ), ()
    # Where changes that come again change nothing, the state need not know what came before: its history may
    # be gone.
    state = EMPTY if look_at(settings, flow, strict=True).is_safe_to_repeat else REBUILT
    move = Move(StartAt(AFTER_LAST), state, request.accept)
    going_on, refused = plan_move(settings, flow, move)
    return going_on, tuple(item for item in refused if item.impact != DUPLICATES)


def _notes(request: WithBackupRequest, recovery_id: str) -> Iterator[str]:
    if request.fill_from == BACKUP:
        yield (
            "The rows are filled in from the backup, each with its own sequence; then each flow continues"
            " from its position."
        )
    yield (
        "If it fails after the table was emptied, continue it; or abandon it and trigger restore_table"
        f" with the backup {recovery_id}."
    )


KIND = Kind(
    name=RECOVERY,
    description="Backs up a table, empties it, and fills it again from its sources or from the backup.",
    request=WithBackupRequest,
    plan=plan,
    steps=(
        *shared_steps.STOP,
        backup_table.KIND.step(PIN),
        backup_table.KIND.step(COPY),
        backup_table.KIND.step(VERIFY),
        StepKind(ENTER, "enter the copies in the list of backups, for restore_table", enter),
        full_refresh.KIND.step("empty_tables"),
        shared_steps.DECIDE,
        StepKind(
            FILL,
            "if the table is filled from the backup: fill its rows in, chunk by chunk",
            "streamkeeper_jobs.recover.backfill:fill_step",
            idle=_nothing_to_fill,
        ),
        StepKind(VERIFY_FILLED, "check that all rows of the backup are in the table", verify_filled),
        *shared_steps.RUN_AGAIN,
    ),
    rehearsal=rehearse.STEP,
    noun="full refresh with backup",
    given_up=given_up,
)
