"""The plan of one flow in a recovery: its next generation, from the request or from a place in its past; none
if it is only held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from streamkeeper.declare.model import FILE_SINKS, UPDATE, quarantine_of
from streamkeeper.errors import RequestError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import (
    ADOPTED,
    BATCH,
    COPIED,
    EARLIEST,
    EMPTY,
    REBUILT,
    InitialState,
    StartAt,
    given_before,
)
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.past_positions import Place, state_from
from streamkeeper.recover.moves import other_batches, pinned_settings
from streamkeeper.recover.moves.passed_over import impact_of_begun_anew
from streamkeeper.recover.moves.present import FlowNow, look_at
from streamkeeper.recover.moves.repeats import written_again
from streamkeeper.recover.plans.consent import refusals_of
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import FlowPlan, Refusal
from streamkeeper.settings import Settings
from streamkeeper.sources.base.format import SourceMove, read_again
from streamkeeper.sources.impacts import impact_from, impact_of
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, IMPACTS, Amount, SourceImpact

Planned = tuple[FlowPlan, tuple[Refusal, ...]]


def plan_place(settings: Settings, flow: Flow, place: Place, way: Move) -> Planned:
    """Plan a generation that begins after a place, and give the impacts that were not accepted.

    :param way: its state, what is accepted, and whether the table goes back, too; its start is the place's.
    :raises RequestError: the flow has no checkpoint, or the place's position is none of its sources any more.
    :raises CheckpointError: a checkpoint cannot be read as far as the plan needs it.
    """
    present = look_at(settings, flow, strict=False)
    sources = [opened_if_possible(source, settings) for source in flow.sources]

    def impacts_with(state: InitialState) -> tuple[SourceImpact, ...]:
        position, restores = present.position, way.restores_table
        move = SourceMove(present.standing, position, place, state, present.stateful, restores)
        return tuple(impact_from(source, move) for source in sources)

    state, reason = state_from(place, flow.fingerprint, way.state)
    impacts = impacts_with(state)
    if state == COPIED and (gone := [impact.source for impact in impacts if impact.expired]):
        state, reason = REBUILT, f"a copied one would continue with data that {', '.join(gone)} no longer has"
        impacts = impacts_with(state)
    move = replace(way, start=place.start_at, state=state, place=place)
    again = written_again(settings, flow, present, impacts, move)
    notes = (
        f"It begins after {place} ({place.found_by}).",
        f"Its state is {state}: {reason}.",
        *_table_notes(flow, present, move, again),
        *(pinned_settings.changes(flow, place.standing) if state != COPIED else ()),
    )
    free = present.is_safe_to_repeat and move.start.mode == BATCH
    planned, refused = plan_next(flow, present, move, impacts, notes, free=free, again=again)
    if move.restores_table:
        return planned, refused
    return planned, (*refused, *impact_of_begun_anew(settings, flow, place.generation.number, move))


def plan_beginning(settings: Settings, flow: Flow, way: Move) -> Planned:
    """Plan a generation that reads everything again, for a flow that had written nothing at the version that
    its table is restored to.

    :raises RequestError: a source is declared to start elsewhere than at its beginning, which cannot be had
        again.
    """
    present = look_at(settings, flow, strict=False)
    elsewhere = [source.name for source in flow.sources if source.start != "earliest"]
    if elsewhere:
        raise RequestError(
            f"{flow.full_name} had written nothing at that version, and its sources {', '.join(elsewhere)}"
            " were declared to start elsewhere than at their beginning. That position is no longer known."
            " Keep the target, or reset the flow on its own."
        )
    move = replace(way, start=StartAt(EARLIEST), state=REBUILT, place=None)
    sources = (opened_if_possible(source, settings) for source in flow.sources)
    restart_impacts = (
        impact_of(source, present.standing, present.position, move.restart, present.stateful)
        for source in sources
    )
    impacts = tuple(read_again(impact, impact.repeated, move.restores_table) for impact in restart_impacts)
    again = written_again(settings, flow, present, impacts, move)
    first = "It had written nothing at that version. It starts with all that its sources have."
    notes = (first, *_table_notes(flow, present, move, again))
    return plan_next(flow, present, move, impacts, notes, free=present.is_safe_to_repeat, again=again)


def held_meanwhile(settings: Settings, flow: Flow) -> FlowPlan:
    """Plan no generation: the flow is only held while its table is restored to a version that has all that it
    wrote.

    One that never began is held, too: what it wrote meanwhile would be undone, and its checkpoint would not
    know.
    """
    if Observed(open_home(settings, flow.full_name)).begun is None:
        note = "It never started. It is held during the restore and then starts as declared."
        return never_begun(settings, flow, note)
    present = look_at(settings, flow, strict=False)
    generation = present.standing.generation
    note = "Nothing it wrote is undone. It is held during the restore and then continues unchanged."
    return replace(
        never_begun(settings, flow, note),
        previous=generation.number,
        start=generation.start,
        state=generation.state,
        position=present.standing.evidence(),
        stateful=present.stateful,
    )


def never_begun(settings: Settings, flow: Flow, note: str) -> FlowPlan:
    """Return the plan of a flow that never began: it is held meanwhile, and gets no generation.

    :raises RequestError: it has adopted a query and continues after that one's last batch, whatever becomes
        of the rows in the table.
    """
    observed = Observed(open_home(settings, flow.full_name))
    newest = observed.newest
    if newest is not None and newest.start.mode == ADOPTED and observed.begun is None:
        raise RequestError(
            f"{flow.full_name} has adopted {newest.start.checkpoint} and has not started yet: it will"
            " continue after the last batch there, so rows that this recovery removes would not come again."
            " Nothing was changed. Let the flow start once, then plan the recovery again."
        )
    return FlowPlan(
        flow=flow.full_name,
        target=flow.declaration.target,
        generation=newest.number if newest else None,
        next_generation=None,
        previous=None,
        fingerprint=flow.fingerprint,
        start=newest.start if newest else StartAt(EARLIEST),
        state=REBUILT,
        notes=(note,),
        once=flow.declaration.once,
    )


def next_plan(
    flow: Flow,
    present: FlowNow,
    move: Move,
    impacts: tuple[SourceImpact, ...],
    notes: tuple[str, ...],
    *,
    again: Amount | None = None,
) -> FlowPlan:
    """Return the plan of a flow's next generation.

    :param again: the rows of its table that it writes again; None where that is not counted.
    """
    return FlowPlan(
        flow=flow.full_name,
        target=flow.declaration.target,
        generation=present.newest,
        next_generation=present.newest + 1,
        previous=present.standing.generation.number,
        fingerprint=flow.fingerprint,
        start=move.start,
        state=move.state,
        position={**present.standing.evidence(), "offsets": present.position},
        stateful=present.stateful,
        operators_before=present.operators,
        impacts=impacts,
        notes=(
            *notes,
            *other_batches.notes_of(present, move),
            *_initial_state_notes(flow, present, move),
            *_quarantine_notes(flow),
        ),
        keeps_schemas=move.keeps_schemas,
        once=flow.declaration.once,
        failure=present.failure,
        written_again=again,
    )


def plan_next(
    flow: Flow,
    present: FlowNow,
    move: Move,
    impacts: tuple[SourceImpact, ...],
    notes: tuple[str, ...],
    *,
    free: bool,
    again: Amount | None = None,
    missing: str | None = None,
) -> Planned:
    """Return the plan of a flow's next generation by a move, and the impacts that were not accepted.

    :param free: whether rows that are read again cost nothing in the table.
    :param missing: the batches that the checkpoint counts as done and the table has not, in words.
    """
    stateful = False if move.state == COPIED else present.stateful  # history is not looked at for a copy
    replaces = flow.declaration.replaces
    refused = [
        *refusals_of(impacts, move, stateful, missing, target=flow.declaration.target, again=again),
        *_given_again(flow, present, move),
        *other_batches.impact_of(flow, present, move),
        *(_totals_lost(flow, move, impacts) if replaces else ()),
    ]
    notes = (*notes, *_result_notes(flow)) if replaces else notes
    planned = next_plan(flow, present, move, impacts, notes, again=again)
    free = free or replaces  # what it writes again replaces what it wrote
    return planned, tuple(
        replace(item, flow=flow.full_name) for item in refused if not (free and item.impact == DUPLICATES)
    )


def _given_again(flow: Flow, present: FlowNow, move: Move) -> Iterator[Refusal]:
    """Yield the impact of a batch that was given to a sink's function, which may have written it, unless it
    is accepted.
    """
    sink = flow.sink
    # Of files, Spark's log tells: the next driver looks there before it fences.
    if sink is None or sink.sink in FILE_SINKS or DUPLICATES in move.accept:
        return
    planned, batch = max(present.standing.checkpoint.offset_batches(), default=-1), present.standing.batch
    if planned > (-1 if batch is None else batch):
        yield Refusal(
            DUPLICATES,
            f"{IMPACTS[DUPLICATES]} (batch {planned} may be in the sink {flow.declaration.target}, whose log"
            " does not have it, and comes again under the new generation's transaction). To avoid that,"
            " start the flow once more, so that it ends the batch. To continue anyway, accept"
            f" `{DUPLICATES}`.",
            covers=("in the sink",),
        )


def _totals_lost(flow: Flow, move: Move, impacts: Sequence[SourceImpact]) -> Iterator[Refusal]:
    """Yield the impact of results that lack rows which the present ones have, unless it is accepted."""
    if DATA_LOSS in move.accept or (move.state != EMPTY and move.start.mode != EARLIEST):
        return
    missing = [impact.source for impact in impacts if impact.otherwise]
    if move.start.mode == EARLIEST and not missing:
        return
    reason = (
        f"rows that are gone or have changed in {', '.join(missing)} are not in the new results"
        if move.start.mode == EARLIEST
        else "the state starts empty, so the new results have no row from before the start"
    )
    yield Refusal(
        DATA_LOSS,
        f"{IMPACTS[DATA_LOSS]} ({reason}, and they replace those in {flow.declaration.target}). To continue"
        f" anyway, accept `{DATA_LOSS}`.",
        covers=("from the results",),
    )


def _result_notes(flow: Flow) -> Iterator[str]:
    target = flow.declaration.target
    if flow.declaration.mode == UPDATE:
        yield (
            f"A row of {target} is replaced when the new generation writes its key, whatever an older one"
            " wrote; rows of keys that it never writes stay."
        )
    else:
        yield f"The first batch of the new generation replaces all rows of {target}."


def _initial_state_notes(flow: Flow, present: FlowNow, move: Move) -> Iterator[str]:
    """Yield whether a flow's initial state is given to the next generation."""
    initial_state = flow.declaration.initial_state
    if initial_state is None:
        return
    before, read = given_before(present.standing.start.evidence, initial_state, move.restart), ""
    if initial_state.table is not None:
        read = " It is read as it is when the generation begins."
        if before is not None:
            number = present.standing.generation.number
            read = f" It is read at version {before['version']}, as for generation {number}."
    if move.state == COPIED:
        yield f"Initial state {initial_state}: not given again, since the copied state began with its own."
    elif move.state == REBUILT:
        yield f"Initial state {initial_state}: given again, and history after it.{read}"
    else:
        yield f"Initial state {initial_state}: given again; the state starts with it and nothing else.{read}"


def _quarantine_notes(flow: Flow) -> Iterator[str]:
    table = quarantine_of(flow.declaration)
    if table is not None:
        yield (
            f"The quarantine {table} is kept: rows that are read again and dropped again are set aside again,"
            " under the new generation's number."
        )


def _table_notes(flow: Flow, present: FlowNow, move: Move, again: Amount | None) -> Iterator[str]:
    target = flow.declaration.target
    if move.restores_table:
        yield f"The table {target} is restored with it."
    elif present.is_safe_to_repeat:
        yield (
            f"The table {target} is kept. It is updated by key and sequence, so changes that are read again"
            " have no effect."
        )
    elif flow.declaration.replaces:
        yield f"The table {target} is kept: rows that are read again are counted into the state as of there."
    elif again is None:
        yield f"The table {target} is kept: rows that are read again are duplicated."
    else:
        yield (
            f"The table {target} is kept, with all that was written since: rows that the flow writes again"
            " are duplicated."
        )
    yield f"The old checkpoint {present.standing.start.checkpoint} stays."
