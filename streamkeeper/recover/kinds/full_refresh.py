"""``full_refresh``: a table is emptied, and every flow that writes it reads its sources again from the
beginning.

All flows of the table take part; once flows run again. The table keeps its history, so its version before can
be restored until VACUUM removes its files. Rows that the sources no longer have are lost: the plan counts
them and asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, replace

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import check_rows_may_go
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import EARLIEST, StartAt
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.moves.next_generation import never_begun, plan_move
from streamkeeper.recover.plans.consent import impact_of_others, impact_of_readers
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move, TableEffect
from streamkeeper.recover.plans.plan import Plan, Planned, refusals_of_all
from streamkeeper.recover.requests.form import declared_table
from streamkeeper.recover.requests.full_refresh import Emptying, RefreshRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.tables import other_writers
from streamkeeper.tables.other_writers import OtherWriters
from streamkeeper.tables.past_versions import is_emptied
from streamkeeper.tables.readers import effects_on_readers

RECOVERY = "full_refresh"


def plan(
    settings: Settings, manifest: Manifest, request: RefreshRequest, recovery_id: str, others_go: bool = True
) -> Plan:
    """Plan a full refresh.

    :param others_go: whether rows that others than the table's flows wrote do not come back.
    :raises RequestError: the table is no longer declared, or there is nothing in it yet.
    :raises CheckpointError: the checkpoint of one of its flows cannot be listed.
    """
    pipeline, table = declared_table(request.table, manifest, "The full refresh was not planned")
    path = settings.table_path(table.name)
    newest = delta_log.latest_version(path)
    if newest is None:
        raise RequestError(
            f"The table {request.table} is not there yet ({path}), so there is nothing to refresh. Start its"
            " flows first."
        )
    writers = manifest.writers(pipeline.name, table.name)
    planned = [_plan_flow(settings, flow, request) for flow in writers]
    felt = effects_on_readers(settings, manifest, path)
    others = other_writers.look(settings, pipeline.name, writers, path) if others_go else OtherWriters()
    check_rows_may_go(path)
    return replace(
        KIND.draft(request, recovery_id, pipeline.name, (table.name,), planned),
        details=asdict(Emptying(path, felt.all, tuple(_notes_of_others(others)), newest)),
        notes=(*_notes(request, path, newest, felt.all), *_notes_of_others(others)),
        refusals=(
            *refusals_of_all(planned),
            *impact_of_others(others.descriptions, request.accept),
            *impact_of_readers(felt, request.accept),
        ),
    )


def _plan_flow(settings: Settings, flow: Flow, request: RefreshRequest) -> Planned:
    """Plan the next generation of one flow; one that never began needs none: its first reads everything."""
    if Observed(open_home(settings, flow.full_name)).begun is None:
        note = "The flow never ran: its first generation will read everything."
        return replace(never_begun(settings, flow, note), start=StartAt(EARLIEST)), ()
    keeps = not request.infer_schemas
    move = Move(StartAt(EARLIEST), accept=request.accept, table=TableEffect.EMPTIED, keeps_schemas=keeps)
    return plan_move(settings, flow, move)


def _notes(request: RefreshRequest, path: str, newest: int, felt: Collection[str]) -> Iterator[str]:
    yield f"All rows of {request.table} are removed by one commit."
    yield f"{path} is at version {newest}: restore_table can restore it until VACUUM removes its files."
    yield "Readers see a partly filled table until the flows have caught up."
    yield from (f"It is read as a stream: {reader}." for reader in felt)


def _notes_of_others(others: OtherWriters) -> Iterator[str]:
    if others.descriptions:
        yield (
            "Rows written by others are lost, since no flow can produce them again:"
            f" {'; '.join(others.descriptions)}."
        )
    if others.deleted:
        yield (
            "Rows that others deleted return, as far as the sources still have them:"
            f" {'; '.join(others.deleted)}."
        )
    if others.unknown is not None:
        yield (
            f"It is unknown whether others wrote some of its older rows: {others.unknown}. No flow can"
            " produce those again."
        )


def _emptied_any(work: Work) -> bool:
    shut = any(
        generations.is_over(work.home(flow), flow.previous)
        for flow in work.plan.flows
        if flow.previous is not None
    )
    return shut or is_emptied(work.plan.details_as(Emptying).path, work.plan.recovery_id)


KIND = Kind(
    name=RECOVERY,
    description=(
        "Empties a table and lets every flow that writes it read its sources again from the beginning."
    ),
    request=RefreshRequest,
    plan=plan,
    steps=(
        *shared_steps.STOP,
        StepKind(
            "empty_tables",
            "fence the old generations in the table, then remove all its rows in one commit",
            "streamkeeper_jobs.recover.full_refresh:empty_tables",
            changes=True,
            changed=_emptied_any,
        ),
        shared_steps.DECIDE,
        *shared_steps.RUN_AGAIN,
    ),
    rehearsal=rehearse.STEP,
    noun="full refresh",
)
