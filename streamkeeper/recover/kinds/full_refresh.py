"""``full_refresh``: a table is emptied, and every flow that writes it reads its sources again from the
beginning.

All flows of the table take part; once flows run again. The table keeps its history, so its version before can
be restored until VACUUM removes its files. Rows that the sources no longer have are lost: the plan counts
them and asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, replace

from streamkeeper.declare.model import Source
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import check_rows_may_go
from streamkeeper.errors import CheckpointError, RequestError, StorageError
from streamkeeper.flows import generations
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import EARLIEST, Restart, StartAt
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.kinds import reset_checkpoint
from streamkeeper.recover.moves import pinned_settings
from streamkeeper.recover.moves.next_generation import Planned, never_begun, plan_next
from streamkeeper.recover.moves.present import FlowNow, look_at
from streamkeeper.recover.plans.consent import impact_of_others, impact_of_readers
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.form import declared_table
from streamkeeper.recover.requests.full_refresh import Emptying, RefreshRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.sources.impacts import impact_of
from streamkeeper.support.amounts import NONE, SourceImpact, in_words, unknown
from streamkeeper.support.times import now
from streamkeeper.tables import other_writers
from streamkeeper.tables.other_writers import OtherWriters
from streamkeeper.tables.past_versions import is_emptied
from streamkeeper.tables.readers import effects_on_readers

RECOVERY = "full_refresh"
HISTORY = "rows that the sources no longer have cannot be read again"


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
    return Plan(
        recovery=RECOVERY,
        recovery_id=recovery_id,
        pipeline=pipeline.name,
        tables=(table.name,),
        request=asdict(request),
        flows=tuple(flow for flow, _ in planned),
        steps=KIND.step_names,
        at=now(),
        details=asdict(Emptying(path, felt.all, tuple(_notes_of_others(others)), newest)),
        notes=(*_notes(request, path, newest, felt.all), *_notes_of_others(others)),
        refusals=(
            *reset_checkpoint.refusals_of_all(planned),
            *impact_of_others(others.descriptions, request.accept),
            *impact_of_readers(felt, request.accept),
        ),
    )


def _plan_flow(settings: Settings, flow: Flow, request: RefreshRequest) -> Planned:
    """Plan the next generation of one flow. One that never began needs none: its first reads everything as it
    is.
    """
    if Observed(open_home(settings, flow.full_name)).begun is None:
        note = "The flow never ran: its first generation will read everything."
        return replace(never_begun(settings, flow, note), start=StartAt(EARLIEST)), ()
    present = look_at(settings, flow, strict=False)
    move = Move(StartAt(EARLIEST), accept=request.accept, keeps_schemas=not request.infer_schemas)
    sources = [opened_if_possible(source, settings) for source in flow.sources]
    impacts = tuple(_impact(source, present, move) for source in sources)
    notes = (
        *(("It runs once, and will be run again.",) if flow.declaration.once else ()),
        *pinned_settings.changes(flow, present.standing),
    )
    return plan_next(flow, present, move, impacts, notes, free=True)


def _impact(source: Source, present: FlowNow, move: Move) -> SourceImpact:
    """Return what a source has lost since it was read. What it still has is read again into a table that is
    empty: nothing comes twice.

    What is gone is what a rebuild of all state from the history would lack.
    """
    again = impact_of(source, present.standing, present.position, move.restart, present.stateful)
    if not source.kind.history:
        doubt = unknown(f"{source.format} keeps no history: {HISTORY}")
        return replace(again, lost=doubt, repeated=doubt)
    try:
        rebuilt = impact_of(
            source,
            present.standing,
            present.position,
            Restart(StartAt(generations.AFTER_LAST), move.state),
            True,
        )
    except (CheckpointError, RequestError, StorageError) as error:
        rebuilt = replace(again, gone=unknown(f"the rows read before cannot be counted: {error}"))
    lost = rebuilt.gone
    if rebuilt.blocked is not None and lost.nothing:
        lost = unknown(rebuilt.blocked)
    if again.otherwise and lost.nothing:
        lost = unknown("rows that were read before are gone or have changed since")
    if not again.lost.nothing:
        lost = (
            again.lost
            if lost.nothing
            else unknown(f"{in_words(again.lost)} unread, and {in_words(lost)} read before")
        )
    notes = (f"{in_words(again.repeated)} of the rows read before are read again", *again.notes)
    return replace(
        again,
        lost=lost,
        repeated=lost if lost.files is None and lost.rows is None else NONE,
        gone=NONE,
        notes=notes,
    )


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
        shared_steps.HOLD,
        shared_steps.PLAN_AGAIN,
        StepKind(
            "empty_tables",
            "fence the old generations in the table, then remove all its rows in one commit",
            "streamkeeper_jobs.recover.full_refresh:empty_tables",
            changes=True,
            changed=_emptied_any,
        ),
        shared_steps.DECIDE,
        shared_steps.VERIFY_TABLES,
        shared_steps.RELEASE,
        shared_steps.VERIFY_PROGRESS,
    ),
    rehearsal=rehearse.STEP,
    noun="full refresh",
)
