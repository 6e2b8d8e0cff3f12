"""``adopt``: the checkpoints of other jobs become the first generations of declared flows.

Planning changes nothing. A rehearsal before the approval tries the declaration on a copy of the checkpoint.
The flow's next driver copies the checkpoint up to its last batch that is in the table; the original is only
read. The old job's query is fenced in the table first, so that its late commits have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.offsets import describe
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import CheckpointError, RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, kept_flows, kept_pipelines, open_home
from streamkeeper.flows.generations import ADOPTED, AFTER_LAST, COPIED, EMPTY, StartAt
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.adopted_checkpoint import AdoptedCheckpoint, normal_place, open_allowed, standing_of
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.recover.kinds import adopt_notes
from streamkeeper.recover.moves.adopted_sources import match_sources
from streamkeeper.recover.moves.next_generation import next_plan
from streamkeeper.recover.moves.present import FlowNow, is_safe_to_repeat
from streamkeeper.recover.plans.consent import refusals_of
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import CopyPlan, FlowPlan, Plan, Planned, Refusal
from streamkeeper.recover.plans.several import plan_each
from streamkeeper.recover.requests.adopt import AdoptRequest
from streamkeeper.recover.requests.form import refuse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.sources.impacts import impact_of
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import (
    DUPLICATES,
    IMPACTS,
    NONE,
    UNKNOWN_IMPACT,
    Amount,
    Impact,
    SourceImpact,
    in_words,
    unknown,
)
from streamkeeper.tables.by_path import check_by_path

RECOVERY = "adopt"
_COUNTED = 2_000
"""Files of a checkpoint that are weighed for a plan: each costs a question to its storage."""


@dataclass(frozen=True)
class OldQuery:
    """The query of a checkpoint to adopt: its id, where it stands, and the flow's names of its sources
    by its own.

    ``planned`` is the newest batch that it planned; ``operators`` are those that keep state. ``log_is_whole``
    says whether the table's log reaches back far enough to tell what the query wrote; ``has_table`` whether
    there is a table.
    """

    query_id: str
    names: dict[str, str]
    standing: CommittedPosition
    planned: int
    operators: tuple[str, ...]
    has_table: bool
    log_is_whole: bool

    @property
    def batch(self) -> int:
        """The last batch that is in the table, or that the checkpoint counts as done."""
        assert self.standing.batch is not None, "a checkpoint without a batch is refused"
        return self.standing.batch

    @property
    def is_unknown_to_table(self) -> bool:
        """Whether nothing in the table's whole log says that this query ever wrote it."""
        return self.has_table and self.log_is_whole and self.standing.last_transaction is None

    @property
    def under_way(self) -> int | None:
        """The batch that was planned and is not done as far as anybody knows; None where there is none."""
        return self.planned if self.planned > self.batch else None


def plan(settings: Settings, manifest: Manifest, request: AdoptRequest, recovery_id: str) -> Plan:
    """Plan an adoption of one checkpoint or several, each by a flow of its own.

    :raises RequestError: the flow has a generation that began, the checkpoint is one of Streamkeeper's or
        another flow's of the plan, its sources are not the flow's, or it has no batch to continue after. Of
        several flows, each that cannot be planned is named.
    :raises CheckpointError: there is no checkpoint, or it cannot be read as far as the plan needs it.
    """
    flows = {name: manifest.find(name) for name in request.checkpoints}
    adopted = plan_each(
        flows, lambda flow: _plan_one(settings, manifest, flow, request), AdoptRequest.refused
    )
    _check_each_once([planned for (planned, _), _ in adopted])
    owners = {flow.declaration.target: flow.pipeline.name for flow in flows.values()}
    planned = [one for one, _ in adopted]
    draft = KIND.draft(request, recovery_id, next(iter(owners.values())), tuple(sorted(owners)), planned)
    return replace(draft, copies=tuple(copy for _, copy in adopted), owners=owners)


def _check_each_once(planned: Sequence[FlowPlan]) -> None:
    """Check that no two flows continue the same query, whose rows both would write.

    :raises RequestError: two do.
    """
    flows = dict[str, list[FlowPlan]]()
    for flow in planned:
        flows.setdefault(str(flow.start.query_id), []).append(flow)
    wrong = [
        f"{' and '.join(flow.flow for flow in same)} would continue the same query {query_id}, from"
        f" {' and '.join(dict.fromkeys(str(flow.start.checkpoint) for flow in same))}. Give each flow a"
        " checkpoint of its own."
        for query_id, same in flows.items()
        if len(same) > 1
    ]
    refuse(AdoptRequest.refused, wrong)


def _plan_one(
    settings: Settings, manifest: Manifest, flow: Flow, request: AdoptRequest
) -> tuple[Planned, CopyPlan]:
    home = open_home(settings, flow.full_name)
    newest = _check_new(home)
    check_by_path(settings, opened_flow(flow, settings, opened_if_possible))
    query = _look(settings, manifest, flow, request)
    from_last = Move(
        StartAt(AFTER_LAST), EMPTY, request.accept
    )  # as its sources are asked: nothing is rebuilt
    entry = query.standing.offsets()
    assert entry is not None, "a checkpoint without a batch is refused"
    impacts = tuple(
        _impact(
            impact_of(
                opened_if_possible(source, settings), query.standing, entry.sources, from_last.restart, False
            ),
            query,
            entry.sources,
            settings.table_path(flow.declaration.target),
        )
        for source in flow.sources
    )
    number, place = 1 if newest is None else newest + 1, request.checkpoints[flow.full_name]
    safe, stateful = is_safe_to_repeat(flow, query.operators), bool(query.operators)
    present = FlowNow(number - 1, query.standing, entry.sources, query.operators, stateful, safe, None)
    start = StartAt(ADOPTED, checkpoint=place, query_id=query.query_id, sources=query.names)
    notes = tuple(adopt_notes.notes(settings, flow, request, query))
    again = _written_again(flow, query)
    planned = next_plan(flow, present, Move(start, COPIED), impacts, notes, again=again)
    planned = replace(
        planned, generation=newest, previous=None, position={**planned.position, "planned": query.planned}
    )
    refusals = (*_refusals(settings, flow, request, query), *refusals_of(impacts, from_last, False))
    refused = tuple(replace(refusal, flow=flow.full_name) for refusal in refusals)
    return (planned, refused), _copy(query.standing.checkpoint, home, number, len(request.checkpoints))


def _check_new(home: FlowHome) -> int | None:
    """Return the newest generation that was decided, if any; none of them may have begun.

    :raises RequestError: one has.
    """
    begun = [number for number in home.generations() if generations.read_start(home, number) is not None]
    if begun:
        raise RequestError(
            f"{home.full_name} has run already: it is on generation {begun[-1]}, with its own checkpoint."
            " Nothing was changed. Adopt into a flow that never ran; to start this one elsewhere use"
            " reset_checkpoint or rewind."
        )
    return next(reversed(home.generations()), None)


def _look(settings: Settings, manifest: Manifest, flow: Flow, request: AdoptRequest) -> OldQuery:
    """Look at a checkpoint, and at what the table's log says of its query."""
    place = request.checkpoints[flow.full_name]
    _check_outside(settings, place)
    raw = Checkpoint(open_storage(place), "")
    raw.require()
    query_id = raw.query_id()
    _check_not_ours(settings, manifest, flow, query_id, place)
    table = settings.table_path(flow.declaration.target)
    sink = delta_log.last_transaction(table, query_id)
    bare = standing_of(raw, query_id, raw.last_commit(), sink)
    planned = max(raw.offset_batches(), default=-1)
    if bare.batch is None:
        raise RequestError(
            f"The checkpoint at {place} has no committed batch, so there is nothing to"
            f" continue: start the flow without it (its DAG, or streamkeeper run {flow.full_name}). Nothing"
            " was changed."
        )
    if bare.is_older_copy:
        raise CheckpointError(
            f"The table at {table} has batch {bare.last_transaction} of the query {query_id}, which"
            f" {place} never planned: the checkpoint is an older copy. Nothing was changed."
            " Give the newer one."
        )
    sources = [opened_if_possible(source, settings) for source in flow.sources]
    names = match_sources(raw, raw.offsets(bare.batch), sources, request.sources.get(flow.full_name))
    named = AdoptedCheckpoint(raw.storage, "", names)
    operators = tuple(operator.name for operator in raw.operators())
    return OldQuery(
        query_id,
        names,
        replace(bare, checkpoint=named),
        planned,
        operators,
        delta_log.exists(table) or flow.sink is not None,
        sink.complete,
    )


def _check_outside(settings: Settings, place: str) -> None:
    state = settings.state if "://" in settings.state else str(Path(settings.state).resolve())
    if f"{place}/".startswith(f"{normal_place(state)}/"):
        raise RequestError(
            f"{place} lies in {settings.state}, the state folder of Streamkeeper. Nothing was changed. Only"
            " checkpoints of other jobs can be adopted; for a flow of your own use reset_checkpoint or"
            " rewind."
        )
    if (refused := settings.why_outside(place)) is not None:
        raise RequestError(f"The checkpoint {refused} Nothing was changed.")


def _check_not_ours(settings: Settings, manifest: Manifest, adopter: Flow, query_id: str, place: str) -> None:
    """Check that no flow's generation has, or adopts, this query: of any flow that something is kept of,
    declared or not.

    A decision of the adopter's own that never began may be made again.

    :raises RequestError: one does.
    """
    declared = {flow.full_name for flow in manifest.flows()}
    storage = open_storage(settings.state)
    for home in (home for pipeline in kept_pipelines(storage) for home in kept_flows(storage, pipeline)):
        newest = max(home.generations(), default=None)
        for decided in generations.decided(home):
            number = decided.number
            if decided.query_id == query_id:
                raise RequestError(
                    f"The checkpoint at {place} is a copy of generation {number} of {home.full_name}."
                    " Adopting it would duplicate its rows. Nothing was changed. Move it to where it was,"
                    " or reset that flow."
                )
            if decided.start.query_id != query_id:
                continue
            if generations.read_start(home, number) is not None:
                raise RequestError(
                    f"The checkpoint at {place} was adopted already, as generation {number} of"
                    f" {home.full_name}. Nothing was changed."
                )
            if home.full_name != adopter.full_name and home.full_name in declared and number == newest:
                raise RequestError(
                    f"The checkpoint at {place} is to be adopted by {home.full_name}, whose generation"
                    f" {number} starts from it as soon as that flow runs. Both flows would read the same"
                    " rows and duplicate them. Nothing was changed. Start that flow; or, if this one is"
                    " meant, remove the declaration of that one."
                )


def _impact(impact: SourceImpact, query: OldQuery, offsets: dict[str, Any], table: str) -> SourceImpact:
    """Return a source's impact in the words of an adoption; without a table, what was read is lost."""
    offset = describe(offsets.get(impact.source))
    none = f"there is no table at {table}; rows that the old job read up to batch {query.batch} are not in it"
    blocked = (
        f"an adopted checkpoint continues right after its last batch, and {impact.source} no longer has what"
        f" follows there ({in_words(impact.lost)}). Without an adoption the flow starts as its sources"
        " declare (start=)"
    )
    return replace(
        impact,
        blocked=blocked if impact.expired else impact.blocked,
        now=offset,
        then=f"after batch {query.batch} of the old job: {offset}",
        lost=impact.lost if query.has_table else unknown(none),
    )


def _refusals(settings: Settings, flow: Flow, request: AdoptRequest, query: OldQuery) -> Iterator[Refusal]:
    for obstacle in adopt_notes.obstacles(flow, request, query):
        yield Refusal(None, f"It cannot be carried out: {obstacle}")
    table = settings.table_path(flow.declaration.target)
    costs: dict[Impact, str] = {}
    if query.is_unknown_to_table:
        costs[UNKNOWN_IMPACT] = (
            f"nothing in the log of the table at {table} names the query {query.query_id}. It may have"
            " written by foreachBatch, or to another table, so it is unknown whether its last batch is in"
            " this one"
        )
        safe = flow.declaration.replaces or is_safe_to_repeat(flow, query.operators)
        if query.under_way is not None and not safe:
            costs[DUPLICATES] = (
                f"batch {query.under_way}, which was planned and not committed, may be in the table, and is"
                " read again"
            )
    for word, reason in costs.items():
        if word not in request.accept:
            yield Refusal(word, f"{IMPACTS[word]} ({reason}). To continue anyway, accept `{word}`.")


def _written_again(flow: Flow, query: OldQuery) -> Amount | None:
    """Return what of a batch under way may be in the table: nothing where the table's log knows the query,
    since then it rules.
    """
    if flow.declaration.replaces or is_safe_to_repeat(flow, query.operators):
        return None
    if query.is_unknown_to_table and query.under_way is not None:
        reason = (
            f"the table's log does not name the query {query.query_id}, so it is unknown whether the table"
            f" has batch {query.under_way}"
        )
        return unknown(reason)
    return NONE


def _copy(checkpoint: Checkpoint, home: FlowHome, number: int, total: int) -> CopyPlan:
    """Return the amount of a checkpoint: an upper bound of what is copied, unless it has more files than are
    counted.
    """
    sizes: list[int] = []
    for size in _sizes(checkpoint, ""):
        sizes.append(size)
        if len(sizes) == _COUNTED:
            break
    name = "the checkpoint" if total == 1 else f"the checkpoint of {home.full_name}"
    return CopyPlan(
        name,
        checkpoint.path(),
        home.storage.path(f"{home.root}/checkpoints/{number:06d}-…"),
        sum(sizes),
        None,
        len(sizes),
    )


def _sizes(checkpoint: Checkpoint, folder: str) -> Iterator[int]:
    for name in checkpoint.names(folder):
        if name.startswith("."):
            continue
        inner = f"{folder}/{name}" if folder else name
        below = checkpoint.names(inner)
        if below:
            yield from _sizes(checkpoint, inner)
        else:
            yield checkpoint.storage.size(checkpoint.name(inner)) or 0


def _see_still(work: Work) -> dict[str, Any]:
    for planned in work.plan.flows:
        check_still(open_allowed(work.settings, planned.start), planned)
    return {"batches": batches_of(work.plan)}


def batches_of(plan: Plan) -> dict[str, Any]:
    """Return the last batch of each checkpoint of a plan, by its place."""
    return {str(flow.start.checkpoint): flow.position["batch"] for flow in plan.flows}


def check_still(checkpoint: Checkpoint, planned: FlowPlan) -> None:
    """Check that a checkpoint is as it was planned upon.

    :raises RecoveryError: it is not.
    """
    before = (planned.position["last_commit"], planned.position["planned"])
    now = (checkpoint.last_commit(), max(checkpoint.offset_batches(), default=None))
    if now != before:
        raise RecoveryError(
            f"The checkpoint at {planned.start.checkpoint} went from batch {before[0]} (planned:"
            f" {before[1]}) to {now[0]} (planned: {now[1]}) since the plan was made: the old job still"
            " runs. Nothing was changed. Stop it, and plan the adoption again."
        )


def remove_trials(work: Work) -> None:
    """Remove what the recovery tried declarations in: a JVM that is left of an attempt fails then."""
    for home in map(work.home, work.plan.flows):
        home.storage.remove(f"{home.trials}/{work.plan.recovery_id}")


REHEARSE = StepKind(
    "rehearse",
    "before the approval: try each declaration on a copy of its checkpoint, with an empty batch that is not"
    " written; then remove the copy",
    "streamkeeper_jobs.recover.adopt:act",
    unasked=True,
)
SEE_STILL = StepKind(
    "see_still", "check that no checkpoint has changed since: the old jobs must be stopped", _see_still
)

KIND = Kind(
    name=RECOVERY,
    description=(
        "Makes the checkpoint of another job the first generation of a flow, or those of many jobs: each is"
        " copied, and its flow continues exactly after it."
    ),
    request=AdoptRequest,
    plan=plan,
    steps=(REHEARSE, *shared_steps.STOP, SEE_STILL, shared_steps.DECIDE, *shared_steps.RUN_AGAIN),
    noun="adoption",
    given_up=remove_trials,
)
