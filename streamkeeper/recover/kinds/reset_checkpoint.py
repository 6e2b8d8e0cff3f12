"""``reset_checkpoint``: the plan of a flow's next generation, from its sources and its sink. Planning changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import AFTER_LAST, EMPTY, GENERATION
from streamkeeper.manifest.environment import opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.past_positions import at_end
from streamkeeper.recover.moves import pinned_settings
from streamkeeper.recover.moves.next_generation import Planned, plan_next, plan_place
from streamkeeper.recover.moves.passed_over import impact_of_begun_anew
from streamkeeper.recover.moves.present import FlowNow, look_at
from streamkeeper.recover.moves.repeats import written_again
from streamkeeper.recover.plans.kind import Kind
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Plan, Refusal
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest, start_of
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.sources.impacts import impact_of
from streamkeeper.support.times import now

RECOVERY = "reset_checkpoint"


def plan(settings: Settings, manifest: Manifest, request: ResetRequest, recovery_id: str) -> Plan:
    """Plan a reset of one flow or several.

    :raises RequestError: a flow has no checkpoint to reset, or the position asked for is not one of its
        checkpoint.
    :raises CheckpointError: a checkpoint cannot be read as far as the plan needs it.
    """
    flows = [manifest.find(name) for name in request.flows]
    planned = [plan_flow(settings, flow, _move(flow, request)) for flow in flows]
    return Plan(
        recovery=RECOVERY,
        recovery_id=recovery_id,
        pipeline=flows[0].pipeline.name,
        tables=tuple(sorted({flow.declaration.target for flow in flows})),
        request=asdict(request),
        flows=tuple(flow for flow, _ in planned),
        steps=KIND.step_names,
        refusals=refusals_of_all(planned),
        at=now(),
    )


def refusals_of_all(planned: Sequence[Planned]) -> tuple[Refusal, ...]:
    """Return the refusals of the flows of a plan, with the flow's name where there are several flows."""
    return tuple(
        replace(item, message=f"{item.flow}: {item.message}") if item.flow and len(planned) > 1 else item
        for _, refused in planned
        for item in refused
    )


def _move(flow: Flow, request: ResetRequest) -> Move:
    """Return what a request asks of one of its flows."""
    start, keeps = start_of(request.start, flow), not request.infer_schemas
    return Move(start, request.state, request.accept, keeps_schemas=keeps)


def plan_flow(settings: Settings, flow: Flow, move: Move) -> Planned:
    """Plan the next generation of one flow, and give the impacts that the move does not accept.

    :raises RequestError: the flow has no checkpoint to reset, or the position asked for is not one of its
        checkpoint.
    :raises CheckpointError: the checkpoint cannot be read as far as the plan needs it.
    """
    if move.start.mode == GENERATION:
        assert move.start.generation is not None, "a start from a generation names it"
        home, path = open_home(settings, flow.full_name), settings.table_path(flow.declaration.target)
        return plan_place(settings, flow, at_end(home, path, move.start.generation), move)
    present = look_at(settings, flow, strict=move.start.mode == AFTER_LAST)
    standing, safe, stateful = present.standing, present.is_safe_to_repeat, present.stateful
    sources = (opened_if_possible(source, settings) for source in flow.sources)
    impacts = tuple(
        impact_of(source, standing, present.position, move.restart, stateful) for source in sources
    )
    again = written_again(settings, flow, present, impacts, move)
    notes = (*_notes(flow, present, move), *pinned_settings.changes(flow, standing))
    missing = standing.missing_in_sink
    planned, refused = plan_next(flow, present, move, impacts, notes, free=safe, again=again, missing=missing)
    return planned, (*refused, *impact_of_begun_anew(settings, flow, standing.generation.number, move))


def _notes(flow: Flow, present: FlowNow, move: Move) -> Iterator[str]:
    standing, safe = present.standing, present.is_safe_to_repeat
    batch = standing.batch
    if batch is None:
        yield ("No batch was ever committed: the new generation starts with the first input of the old one.")
    elif standing.ruled_by == "sink":
        yield (
            f"The table has batch {batch}, the checkpoint only {standing.last_commit}: the table's log"
            f" counts, so that batch {batch} is not written twice."
        )
    elif not standing.sink_known:
        yield (
            f"The checkpoint's last batch is {batch}; the table's log does not go back far enough to read"
            " its own without Spark. The driver reads it with Spark before it starts, and the later of"
            " both counts."
        )
    elif standing.missing_in_sink is not None:
        yield (
            f"The checkpoint's last batch is {batch}, but the table lacks {standing.missing_in_sink}: it"
            " was replaced or restored from an older copy. Only `earliest` reads those rows again."
        )
    else:
        yield f"Checkpoint and table agree: batch {batch} is the last."
    if present.position is not None and standing.is_implied:
        yield (
            f"{standing.checkpoint.path(f'offsets/{batch}')} cannot be read. What was read up to batch"
            f" {batch} is known all the same: from the lists of processed files, one for each batch, from"
            " the batches before and after, or from what the driver wrote down after it."
        )
    if safe:
        yield (
            f"The table {flow.declaration.target} is updated by key and sequence: changes that are read"
            " again have no effect, whether the state is rebuilt or starts empty."
        )
    if present.stateful is False:
        yield "The query, as declared now, keeps no state."
    elif move.state == EMPTY and not safe and not flow.declaration.replaces:
        yield (
            "State starts empty: rows that the old state would have dropped as duplicates count as new, so"
            " the target may get them again."
        )
    old_sources = set(standing.start.positions) | set(present.position or {})
    new = [source.name for source in flow.sources if old_sources and source.name not in old_sources]
    if new and move.start.mode == AFTER_LAST:
        yield f"New sources start at their beginning: {', '.join(new)}."
    dropped_sources = sorted(old_sources - {source.name for source in flow.sources})
    if dropped_sources:
        yield (
            f"Sources that the flow no longer reads: {', '.join(dropped_sources)}. Unread rows in them are"
            " not read."
        )
    yield f"The table {flow.declaration.target} and the old checkpoint {standing.start.checkpoint} are kept."


KIND = Kind(
    name=RECOVERY,
    description=(
        "Gives flows a new checkpoint, from their last position or from one you choose; their tables are"
        " kept."
    ),
    request=ResetRequest,
    plan=plan,
    steps=(
        shared_steps.HOLD,
        shared_steps.PLAN_AGAIN,
        shared_steps.DECIDE,
        shared_steps.VERIFY_TABLES,
        shared_steps.RELEASE,
        shared_steps.VERIFY_PROGRESS,
    ),
    noun="reset",
    rehearsal=rehearse.STEP,
)
