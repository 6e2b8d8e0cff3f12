"""``reset_checkpoint``: the plan of a flow's next generation. Planning changes nothing."""

from __future__ import annotations

from dataclasses import replace

from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import GENERATION
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.past_positions import at_end
from streamkeeper.recover.moves.next_generation import plan_move
from streamkeeper.recover.plans.kind import Kind
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.several import plan_each
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest, start_of
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings

RECOVERY = "reset_checkpoint"


def plan(settings: Settings, manifest: Manifest, request: ResetRequest, recovery_id: str) -> Plan:
    """Plan a reset of one flow or several.

    :raises RequestError: a flow has no checkpoint to reset, or the position asked for is not one of its
        checkpoint. Of several flows, each that cannot be planned is named.
    :raises CheckpointError: a checkpoint cannot be read as far as the plan needs it.
    """
    declared = {flow.full_name: flow for flow in manifest.flows()}
    flows = {name: declared.get(name) or manifest.find(name) for name in request.flows}
    planned = plan_each(
        flows,
        lambda flow: plan_move(settings, flow, _move(settings, flow, request)),
        ResetRequest.refused,
    )
    owners = {flow.declaration.target: flow.pipeline.name for flow in flows.values()}
    return replace(
        KIND.draft(request, recovery_id, next(iter(owners.values())), tuple(sorted(owners)), planned),
        owners=owners,
    )


def _move(settings: Settings, flow: Flow, request: ResetRequest) -> Move:
    """Return what a request asks of one of its flows."""
    start, keeps = start_of(request.start, flow), not request.infer_schemas
    place = None
    if start.mode == GENERATION:
        assert start.generation is not None, "a start from a generation names it"
        home, path = open_home(settings, flow.full_name), settings.table_path(flow.declaration.target)
        place = at_end(home, path, start.generation)
    return Move(start, request.state, request.accept, place, keeps_schemas=keeps)


KIND = Kind(
    name=RECOVERY,
    description=(
        "Gives flows a new checkpoint, from their last position or from one you choose; their tables are"
        " kept."
    ),
    request=ResetRequest,
    plan=plan,
    steps=(*shared_steps.STOP, shared_steps.DECIDE, *shared_steps.RUN_AGAIN),
    noun="reset",
    rehearsal=rehearse.STEP,
)
