"""``rewind``: flows begin again after an earlier batch; their table is kept, or restored to the version of
that batch.

Planning changes nothing. If the table is restored, every flow that wrote to it since then must be rewound
too; otherwise the plan is refused and names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamkeeper.errors import RequestError
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import OFFSETS, TIMESTAMP
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe import past_positions
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.past_positions import Place
from streamkeeper.recover.moves.next_generation import held_meanwhile, plan_beginning, plan_move
from streamkeeper.recover.moves.put_back import Rewinding, VersionToRestore, versions_of
from streamkeeper.recover.plans.consent import impact_of_other_writers, impact_of_readers
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move, TableEffect
from streamkeeper.recover.plans.plan import Plan, Planned, Refusal, refusals_of_all
from streamkeeper.recover.requests.rewind import RESTORED, RewindRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.recover.steps.verify_files import verify_files
from streamkeeper.settings import Settings
from streamkeeper.tables import flows_at_version, past_versions
from streamkeeper.tables.flows_at_version import FlowAt, PastVersion
from streamkeeper.tables.readers import effects_on_readers

RECOVERY = "rewind"


@dataclass(frozen=True)
class _Table:
    """The table of a flow that is rewound, and all declared flows that write it."""

    settings: Settings
    flows: tuple[Flow, ...]
    target: str

    @property
    def path(self) -> str:
        return self.settings.table_path(self.target)

    @property
    def homes(self) -> tuple[FlowHome, ...]:
        return tuple(open_home(self.settings, flow.full_name) for flow in self.flows)


def plan(settings: Settings, manifest: Manifest, request: RewindRequest, recovery_id: str) -> Plan:
    """Plan a rewind.

    :raises RequestError: the flow has no such place any more; the message names the oldest that it has.
    :raises CheckpointError: a checkpoint, or the table's log, cannot be read as far as the plan needs it.
    """
    flow = manifest.find(request.flow)
    target = flow.declaration.target
    siblings = tuple(
        other
        for other in manifest.flows()
        if other.pipeline is flow.pipeline and other.declaration.target == target
    )
    table = _Table(settings, siblings, target)
    planned, rewinding, notes, refusals = _planned(table, flow, request)
    if rewinding.put_back:
        felt = effects_on_readers(settings, manifest, table.path)
        notes, refusals = (*notes, *felt.all), (*refusals, *impact_of_readers(felt, request.accept))
    return replace(
        KIND.draft(request, recovery_id, flow.pipeline.name, (target,), planned),
        details={name: value for name, value in asdict(rewinding).items() if value is not None},
        notes=notes,
        refusals=(*refusals_of_all(planned), *refusals),
    )


Parts = tuple[list[Planned], Rewinding, tuple[str, ...], tuple[Refusal, ...]]


def _planned(table: _Table, flow: Flow, request: RewindRequest) -> Parts:
    """Return the plans of the flows, what is restored, and what is to be said of the table."""
    if request.to.mode == OFFSETS:
        move = Move(request.to, request.state, request.accept)
        return [plan_move(table.settings, flow, move)], Rewinding(), (), ()
    place = _place(table, flow, request)
    effect = TableEffect.RESTORED if request.target == RESTORED else TableEffect.KEPT
    way = Move(request.to, request.state, request.accept, table=effect)
    first = plan_move(table.settings, flow, replace(way, place=place))
    if not way.restores_table:
        return [first], Rewinding(place=str(place)), (), ()
    past = flows_at_version.look_back(
        table.target, table.path, past_versions.version_after(place, table.path), table.homes
    )
    others, missing = _others(table, flow, past, request, way)
    backs = (VersionToRestore(past.path, past.version, past.newest),)
    refusals = (*missing, *_table_refusals(past, backs, request))
    return [first, *others], Rewinding(backs, str(place)), tuple(_table_notes(past)), refusals


def _place(table: _Table, flow: Flow, request: RewindRequest) -> Place:
    home = open_home(table.settings, flow.full_name)
    if request.to.mode == TIMESTAMP:
        assert request.to.timestamp_ms is not None, "a request by timestamp has one"
        return past_positions.at_moment(home, table.path, request.to.timestamp_ms)
    number = request.to.generation
    if number is None:
        begun = Observed(home).begun
        if begun is None:
            raise RequestError(
                f"The flow {flow.full_name} has no checkpoint yet, so there is nothing to rewind."
            )
        number = begun[0].number
    assert request.to.batch is not None, "a request by batch has one"
    return past_positions.at_batch(home, table.path, number, request.to.batch)


def _others(
    table: _Table, flow: Flow, past: PastVersion, request: RewindRequest, way: Move
) -> tuple[list[Planned], list[Refusal]]:
    """Plan the other flows of a restored table; refuse those that have to go along and are not named."""
    planned: list[Planned] = []
    missing: list[Refusal] = []
    for other in (item for item in table.flows if item.full_name != flow.full_name):
        stood, undone = past.flows[other.full_name], past.undone[other.full_name]
        if not undone:
            planned.append((held_meanwhile(table.settings, other), ()))
        elif other.full_name not in request.along:
            message = (
                f"It cannot be carried out: {other.full_name} wrote {undone:,} batches into {table.target}"
                f" since version {past.version}, which the restore would undo. Rewind it too (along:"
                f" {other.full_name}), or keep the target."
            )
            missing.append(Refusal(None, message))
        elif stood is None:
            message = (
                f"It cannot be carried out: the position of {other.full_name} at version {past.version} is"
                " no longer in the table's log."
            )
            missing.append(Refusal(None, message))
        else:
            planned.append(_along(table, other, stood, way))
    return planned, missing


def _along(table: _Table, flow: Flow, stood: FlowAt, way: Move) -> Planned:
    if stood.generation is None or stood.batch is None:
        return plan_beginning(table.settings, flow, way)
    home = open_home(table.settings, flow.full_name)
    place = past_positions.at_batch(home, table.path, stood.generation, stood.batch)
    return plan_move(table.settings, flow, replace(way, place=place))


def _table_refusals(
    past: PastVersion, backs: tuple[VersionToRestore, ...], request: RewindRequest
) -> Iterator[Refusal]:
    for back in backs:
        lacking = past_versions.lacking_files(back.path, back.version)
        if lacking:
            yield Refusal(
                None,
                f"It cannot be carried out: VACUUM removed files that version {back.version} of"
                f" {back.path} needs, such as {lacking[0]}. Name a newer batch, keep the target, or"
                " restore a backup with restore_table.",
            )
    yield from impact_of_other_writers(past.other_commits, past.version, request.accept)


def _table_notes(past: PastVersion) -> Iterator[str]:
    undone = ", ".join(f"{count:,} of {flow}" for flow, count in past.undone.items() if count) or "none"
    yield (
        f"The table {past.table} is restored from version {past.newest} to version {past.version}; batches"
        f" undone: {undone}."
    )
    if past.other_commits:
        yield f"Commits by other writers are undone too: {', '.join(past.other_commits)}."


def _nothing_to_put_back(work: Work) -> dict[str, Any] | None:
    backs = versions_of(shared_steps.plan_under_hold(work))
    return None if backs else {"tables": [], "note": "the target is kept as it is"}


PUT_BACK = StepKind(
    "put_back",
    "fence the flows' old generations in the table, and restore it to the version of the batch, if requested",
    "streamkeeper_jobs.recover.rewind:act",
    changes=True,
    idle=_nothing_to_put_back,
)

VERIFY_FILES = StepKind(
    "verify_files", "check that every file that the restore brought back exists", verify_files
)

KIND = Kind(
    name=RECOVERY,
    description=(
        "Rewinds a flow to an earlier batch, time or position; its table is kept, or restored to the same"
        " moment."
    ),
    request=RewindRequest,
    plan=plan,
    steps=(*shared_steps.STOP, shared_steps.DECIDE, PUT_BACK, VERIFY_FILES, *shared_steps.RUN_AGAIN),
    rehearsal=rehearse.STEP,
)
