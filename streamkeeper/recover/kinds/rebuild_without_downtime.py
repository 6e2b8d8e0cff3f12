"""``rebuild_without_downtime``: a table is rebuilt next to the old one, and replaces it in one commit.

Readers see the complete old table until that commit, and the new one afterwards. The flows are held only for
the last round of reading and for the commit. They continue in the checkpoints that built the new table, whose
batches Delta's log knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from streamkeeper.delta.summary import newest_summary
from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations
from streamkeeper.flows.files import open_home
from streamkeeper.flows.side_flow import name_of
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.recover.kinds import full_refresh
from streamkeeper.recover.moves import side_table
from streamkeeper.recover.moves.side_table import RECOVERY, SideTables
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import CopyPlan, FlowPlan, Plan, Refusal
from streamkeeper.recover.requests.form import declared_table
from streamkeeper.recover.requests.full_refresh import Emptying, RebuildRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import DATA_LOSS, IMPACTS, Amount, in_words, unknown
from streamkeeper.tables.backups import TARGET

BUILD, PUT_IN_PLACE, REMOVE = "build", "put_in_place", "remove_side_table"
_GOES_ON = "the flow keeps removing files that it has read while the table is built"


def plan(settings: Settings, manifest: Manifest, request: RebuildRequest, recovery_id: str) -> Plan:
    """Plan it; nothing is changed.

    :raises RequestError: there is no table yet, or it is of a kind that another's files cannot be put in the
        place of.
    :raises CheckpointError: the checkpoint of one of its flows cannot be listed.
    """
    refresh = full_refresh.plan(settings, manifest, request, recovery_id)
    pipeline, table = declared_table(request.table, manifest, "The full refresh was not planned")
    emptied = refresh.details_as(Emptying)
    beside = settings.table_path(name_of(table.name, recovery_id))
    cleaned = _cleaned(settings, manifest.writers(pipeline.name, table.name))
    return replace(
        refresh,
        recovery=RECOVERY,
        request=asdict(request),
        flows=tuple(
            _with_generation(_with_cleaned(flow, cleaned.get(flow.flow, ()))) for flow in refresh.flows
        ),
        steps=KIND.step_names,
        copies=(_copy(emptied.path, beside),),
        details={**asdict(SideTables(emptied.path, beside)), "newest": emptied.newest},
        notes=(*_notes(request, beside, emptied.readers), *emptied.others),
        refusals=(*refresh.refusals, *_impact_of_cleaned(cleaned, request.accept)),
    )


def plan_again(work: Work) -> dict[str, Any]:
    """Make the plan again, now that nothing moves, and compare it with the approved one.

    What the sources had when that was made was read since: its impacts stay. A driver that took over from one
    that may still live has begun another generation meanwhile: that is followed, since nothing of the old
    ones is continued from.

    :raises RecoveryError: the declaration of a flow changed, or other flows write the table now.
    """
    plan = work.plan
    again = shared_steps.planned_now(work, read_manifest(work.settings))
    shared_steps.check_same_flows(plan, again)
    before = {flow.flow: flow for flow in plan.flows}
    changed = sorted(flow.flow for flow in again.flows if flow.fingerprint != before[flow.flow].fingerprint)
    if changed:
        raise RecoveryError(
            f"What is declared of {', '.join(changed)} changed since the plan was made, so the side"
            " table does not match the declaration. Nothing was changed. Give this recovery up"
            f" (streamkeeper abandon {plan.recovery_id}) and plan again."
        )
    again = replace(
        again,
        flows=tuple(replace(flow, impacts=before[flow.flow].impacts) for flow in again.flows),
        refusals=tuple(item for item in again.refusals if item.flow is None),
    )
    reasons = plans.worse(plan, again)
    return asdict(shared_steps.PlannedAgain(bool(reasons), tuple(reasons), again))


def remove_side_table(work: Work) -> dict[str, Any]:
    """Remove what was built, but no checkpoint that a flow continues in, and nothing of a living driver."""
    return side_table.remove(work.settings, work.plan)


def _cleaned(settings: Settings, writers: list[Flow]) -> dict[str, list[str]]:
    """Return the sources whose files a flow removes once it has read them, by the flow: it continues with
    that while the table is built.

    A once flow that is done removes nothing more.
    """
    running = (
        flow
        for flow in writers
        if not (
            flow.declaration.once and generations.finished(open_home(settings, flow.full_name)) is not None
        )
    )
    cleaned = {
        flow.full_name: [source.name for source in flow.sources if source.reads_files and source.takes_files]
        for flow in running
    }
    return {name: sources for name, sources in cleaned.items() if sources}


def _with_cleaned(flow: FlowPlan, sources: Collection[str]) -> FlowPlan:
    """Say in a flow's impacts that its sources may lose more until the table is put in place."""
    impacts = (
        replace(impact, lost=_and_more(impact.lost)) if impact.source in sources else impact
        for impact in flow.impacts
    )
    return replace(flow, impacts=tuple(impacts))


def _and_more(lost: Amount) -> Amount:
    if lost.files is None and lost.rows is None:
        return lost
    now = "" if lost.nothing else f"{in_words(lost)}; "
    return unknown(f"{now}{_GOES_ON}")


def _impact_of_cleaned(cleaned: Mapping[str, list[str]], accepted: Collection[str]) -> Iterator[Refusal]:
    """Return the refusal for what the flows may remove before it is read beside, unless it is accepted."""
    for flow, sources in cleaned.items() if DATA_LOSS not in accepted else ():
        message = (
            f"{IMPACTS[DATA_LOSS]} ({flow}, {', '.join(sources)}: {_GOES_ON}, by cleanSource, and files"
            " removed before the new table has read them are missing from it). Choose full_refresh, which"
            f" holds the flow, or hold it until this recovery is over (streamkeeper hold {flow}). To"
            f" continue, accept `{DATA_LOSS}`."
        )
        yield Refusal(DATA_LOSS, message, flow, covers=tuple(sources))


def _with_generation(flow: FlowPlan) -> FlowPlan:
    """Return the plan of a flow with a generation for it in any case: one that never began continues where
    its side table was built up to, too.
    """
    if flow.next_generation is not None:
        return flow
    return replace(
        flow,
        next_generation=(flow.generation or 0) + 1,
        previous=flow.generation,
        notes=("The flow never ran.",),
    )


def _copy(path: str, beside: str) -> CopyPlan:
    """Return what is written beside: about as much as there is now."""
    summary = newest_summary(path)
    if summary is None:
        return CopyPlan(TARGET, path, beside, 0, None, 0)
    side_table.check_replaceable(path, summary.protocol, summary.metadata)
    return CopyPlan(TARGET, path, beside, summary.bytes, None, summary.files)


def _notes(request: RebuildRequest, beside: str, felt: tuple[str, ...]) -> Iterator[str]:
    yield (
        f"{request.table} is rebuilt in a side table, at {beside}: until it is replaced, about the size of"
        " the table is needed twice."
    )
    yield (
        "Its flows keep running, and readers see the old table, until one commit replaces it by the new one."
    )
    yield (
        f"The flows are held once a round of reading found {side_table.BEHIND} batches or fewer, until the"
        " rest is read and that commit is made; then they continue in the new checkpoints."
    )
    yield "The old table can be restored until VACUUM removes its files."
    yield from (f"It is read as a stream: {reader}." for reader in felt)


KIND = Kind(
    name=RECOVERY,
    description=(
        "Rebuilds a table in a side table while flows and readers continue, and replaces the old one in"
        " one commit."
    ),
    request=RebuildRequest,
    plan=plan,
    steps=(
        shared_steps.LOCK,
        StepKind(
            BUILD,
            "read all sources from their beginning into a side table, in rounds, until a round finds"
            " little; flows keep running",
            "streamkeeper_jobs.recover.rebuild_without_downtime:build",
            patient=True,
        ),
        shared_steps.HOLD,
        StepKind(
            shared_steps.PLAN_AGAIN.name,
            "make the plan again while the flows are stopped, and check that no declaration changed since"
            " the table was built",
            plan_again,
        ),
        StepKind(
            PUT_IN_PLACE,
            "read the rest, fence the old generations, start the next ones at the position of the new"
            " table, and replace the old one in one commit",
            "streamkeeper_jobs.recover.rebuild_without_downtime:put_in_place",
            changes=True,
            changed=shared_steps.is_decided,
        ),
        shared_steps.VERIFY_TABLES,
        shared_steps.RELEASE,
        StepKind(
            REMOVE,
            "remove the side table; checkpoints that the flows continue in are kept",
            remove_side_table,
        ),
        shared_steps.VERIFY_PROGRESS,
    ),
    rehearsal=rehearse.STEP,
    noun="rebuild without downtime",
    given_up=remove_side_table,
)
