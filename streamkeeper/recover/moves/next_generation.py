"""The plan of one flow in a recovery: its next generation; none if the flow is only held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from streamkeeper.declare.model import FILE_SINKS, Source
from streamkeeper.errors import RequestError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import (
    ADOPTED,
    AFTER_LAST,
    BATCH,
    COPIED,
    EARLIEST,
    EMPTY,
    REBUILT,
    StartAt,
)
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.past_positions import state_from
from streamkeeper.recover.moves import other_batches, words
from streamkeeper.recover.moves.passed_over import impact_of_begun_anew
from streamkeeper.recover.moves.present import FlowNow, look_at
from streamkeeper.recover.moves.repeats import written_again
from streamkeeper.recover.plans.consent import refusals_of
from streamkeeper.recover.plans.move import Move, TableEffect
from streamkeeper.recover.plans.plan import FlowPlan, Planned, Refusal
from streamkeeper.settings import Settings
from streamkeeper.sources.base.format import SourceMove, read_again
from streamkeeper.sources.impacts import impact_from, impact_of, impact_of_emptied
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, IMPACTS, Amount, SourceImpact


def plan_move(settings: Settings, flow: Flow, move: Move) -> Planned:
    """Plan the generation to which a move takes a flow, and give the impacts that the move does not accept.

    :param move: its start, or the place of its start. After a place the state is copied if it can be, unless
        an empty one is asked for.
    :raises RequestError: the flow has no checkpoint, or the position is none of its checkpoint or sources.
    :raises CheckpointError: a checkpoint cannot be read as far as the plan needs it.
    """
    present = look_at(settings, flow, strict=move.place is None and move.start.mode == AFTER_LAST)
    sources = [opened_if_possible(source, settings) for source in flow.sources]
    move, impacts, reason = _settled(flow, present, sources, move)
    place, replaces = move.place, flow.declaration.replaces
    empties = move.table is TableEffect.EMPTIED
    again = None if empties else written_again(settings, flow, present, impacts, move)
    notes = (
        *words.of_move(flow, present, move, again, reason),
        *(words.of_results(flow) if replaces else ()),
    )
    stateful = False if move.state == COPIED else present.stateful  # history is not looked at for a copy
    standing = present.standing
    missing = standing.missing_in_sink if place is None else None
    after = (standing if place is None else place).generation.number
    refused = (
        *refusals_of(impacts, move, stateful, missing, target=flow.declaration.target, again=again),
        *_given_again(flow, present, move),
        *other_batches.impact_of(flow, present, move),
        *(_totals_lost(flow, move, impacts) if replaces else ()),
        *(() if move.restores_table else impact_of_begun_anew(settings, flow, after, move)),
    )
    # Rows that are read again cost nothing in a table where they change nothing, or replace what was there.
    safe = present.is_safe_to_repeat and (place is None or move.start.mode == BATCH)
    free = empties or replaces or safe
    planned = next_plan(flow, present, move, impacts, notes, again=again)
    return planned, tuple(
        replace(item, flow=flow.full_name) for item in refused if not (free and item.impact == DUPLICATES)
    )


def plan_beginning(settings: Settings, flow: Flow, move: Move) -> Planned:
    """Plan a generation that reads everything again, for a flow that had written nothing where its table goes
    back to.

    :raises RequestError: a source is declared to start elsewhere than at its beginning, which cannot be had
        again.
    """
    elsewhere = [source.name for source in flow.sources if source.start != "earliest"]
    if elsewhere:
        raise RequestError(
            f"{flow.full_name} had written nothing at that version, and its sources {', '.join(elsewhere)}"
            " were declared to start elsewhere than at their beginning. That position is no longer known."
            " Keep the target, or reset the flow on its own."
        )
    beginning = replace(move, start=StartAt(EARLIEST), state=REBUILT, place=None, of_nothing=True)
    return plan_move(settings, flow, beginning)


def _settled(
    flow: Flow, present: FlowNow, sources: Sequence[Source], move: Move
) -> tuple[Move, tuple[SourceImpact, ...], str]:
    """Return a move with its start and state as they will be, its impact on each source, and the reason of
    its state; that is empty unless a place decides the state.
    """
    place = move.place
    if place is None:
        return move, tuple(_impact(source, present, move) for source in sources), ""
    state, reason = state_from(place, flow.fingerprint, move.state)
    move = replace(move, start=place.start_at, state=state)
    impacts = tuple(_impact(source, present, move) for source in sources)
    if state == COPIED and (gone := [impact.source for impact in impacts if impact.expired]):
        move, reason = (
            replace(move, state=REBUILT),
            (f"a copied one would continue with data that {', '.join(gone)} no longer has"),
        )
        impacts = tuple(_impact(source, present, move) for source in sources)
    return move, impacts, reason


def _impact(source: Source, present: FlowNow, move: Move) -> SourceImpact:
    """Return the impact of a move on one source."""
    standing, position, restores = present.standing, present.position, move.restores_table
    if move.place is not None:
        earlier = SourceMove(standing, position, move.place, move.state, present.stateful, restores)
        return impact_from(source, earlier)
    of_source = impact_of_emptied if move.table is TableEffect.EMPTIED else impact_of
    impact = of_source(source, standing, position, move.restart, present.stateful)
    return read_again(impact, impact.repeated, restores)


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
            *words.of_initial_state(flow, present, move),
            *words.of_quarantine(flow),
        ),
        keeps_schemas=move.keeps_schemas,
        once=flow.declaration.once,
        failure=present.failure,
        written_again=again,
    )


def _given_again(flow: Flow, present: FlowNow, move: Move) -> Iterator[Refusal]:
    """Yield the impact of a batch that a sink's function may have written, unless it is accepted."""
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
