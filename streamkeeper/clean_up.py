"""``clean_up``: what of a pipeline's past may go, what stays, and why. Planning changes nothing.

A checkpoint goes when its generation was left longer ago than the retention. Never goes the present generation's, nor that of one that is
decided and not begun begins from, nor one that a recovery names that is not over. The small files that say what was decided and begun
always stay: by them a flow knows which ids its table has seen. So do ledgers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from streamkeeper import backups, common_steps, generations, ledger, plans
from streamkeeper.backfills import is_backfill
from streamkeeper.cleaning import remove, remove_backups
from streamkeeper.clock import now as in_words
from streamkeeper.declarations import NAME, OUR_FOLDERS, AutoCdcFlow
from streamkeeper.delta_log import exists
from streamkeeper.errors import RequestError
from streamkeeper.home import FlowHome
from streamkeeper.manifest import Manifest
from streamkeeper.plans import Plan
from streamkeeper.recovery_kinds import GIVEN_UP, Kind, StepKind, Work
from streamkeeper.requests import FormField, approval_fields, read_values, refuse
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage

RECOVERY = "clean_up"
DAYS = 30.0
EPOCHS = 10
"""So many of a flow's newest leases stay, with what was noted of them."""

_ATTEMPT = re.compile(r"([0-9]{6,})-[0-9]{6,}(?:-listing)?")
_OVER = ("ended", GIVEN_UP)
_SMALL = ("generations",)
"""What stays of a flow that is forgotten."""


@dataclass(frozen=True)
class CleanUpRequest:
    """A clean-up as asked for. ``forget_flows`` are names of flows of the pipeline that are declared no more and whose files may go."""

    pipeline: str
    keep_days: float = DAYS
    tombstone_days: float = DAYS
    forget_flows: tuple[str, ...] = ()
    reason: str = ""
    by: str = "someone"


def clean_up_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``clean_up``, in the order in which a person reads them."""
    pipelines = tuple(pipeline.name for pipeline in manifest.pipelines)
    return (
        FormField("pipeline", "string", "Pipeline", "The pipeline whose past is looked through.", None, pipelines),
        FormField(
            "keep_days",
            "number",
            "Checkpoints",
            "Days that the checkpoint of a generation stays after the next one began: so long it can be gone back to.",
            DAYS,
        ),
        FormField(
            "tombstone_days",
            "number",
            "Tombstones",
            "Days that an AUTO CDC table remembers deletes and truncates. A change that arrives later than that, and is older than what "
            "was forgotten, is taken for a new one.",
            DAYS,
        ),
        FormField(
            "forget_flows",
            "string",
            "Forget flows",
            "Flows that are declared no more and whose files may go, such as `old_flow, other_flow`. One that was only renamed should get "
            "its old name back instead.",
            "",
        ),
        *approval_fields(),
    )


def parse_clean_up(values: Mapping[str, Any], manifest: Manifest, by: str) -> CleanUpRequest:
    """Make a request of a form's values; missing ones take the form's default.

    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, clean_up_form(manifest))
    for name in ("keep_days", "tombstone_days"):
        days = merged[name]
        if isinstance(days, (int, float)) and not isinstance(days, bool) and not 1 <= days < float("inf"):
            wrong.append(f"{name} is {days!r}. Allowed is a number of days, 1 and above.")
    told = merged["forget_flows"] if isinstance(merged["forget_flows"], str) else ""
    named = [name for name in re.split(r"[,\s]+", told) if name]
    if bad := [name for name in named if not NAME.fullmatch(name)]:
        wrong.append(f"forget_flows names {', '.join(map(repr, bad))}. Allowed are names of flows, without their pipeline's.")
    declared = {flow.name for flow in manifest.flows() if flow.pipeline.name == merged["pipeline"]}
    if still := sorted(declared & set(named)):
        wrong.append(f"forget_flows names {', '.join(still)}, which the pipeline declares. Only flows that it does not may be forgotten.")
    refuse("Nothing was cleaned up", wrong)
    return CleanUpRequest(
        merged["pipeline"], float(merged["keep_days"]), float(merged["tombstone_days"]), tuple(named), merged["reason"] or "", by
    )


def request_from_json(value: dict[str, Any]) -> CleanUpRequest:
    """Read a request back from a plan."""
    return CleanUpRequest(**{**value, "forget_flows": tuple(value["forget_flows"])})


@dataclass(frozen=True)
class _Around:
    """Where a plan looks, and what recoveries that are not over need: (flow, generation) → recovery. ``backed`` are the generations, by
    flow, that backups go back to."""

    storage: Storage
    pipeline: str
    before: float
    needed: Mapping[tuple[str, int], str]
    backed: Mapping[str, set[int]]


def plan(settings: Settings, manifest: Manifest, request: CleanUpRequest, recovery_id: str, now: float | None = None) -> Plan:
    """Plan a clean-up.

    :param now: epoch seconds; the present by default.
    :raises RequestError: a flow is to be forgotten of which nothing is kept.
    """
    storage, moment = open_storage(settings.state), time.time() if now is None else now
    pipeline = next(item for item in manifest.pipelines if item.name == request.pipeline)
    declared = {flow.name for flow in pipeline.flows}
    kept = [name for name in storage.names(pipeline.name) if name not in OUR_FOLDERS and _has_past(storage, pipeline.name, name)]
    if unknown := sorted(set(request.forget_flows) - set(kept)):
        strange = ", ".join(sorted(set(kept) - declared)) or "none"
        raise RequestError(f"forget_flows names {', '.join(unknown)}, of which nothing is kept. Kept and not declared are: {strange}.")
    around = _Around(
        storage,
        pipeline.name,
        moment - request.keep_days * 86400,
        dict(_needed(storage, pipeline.name)),
        backups.needed_generations(storage),
    )
    removals: list[dict[str, Any]] = []
    notes: list[str] = []
    for name in kept:
        home = FlowHome(storage, pipeline.name, name)
        if name in declared or name not in request.forget_flows:
            removals += _of_flow(home, around, notes)
        if name in request.forget_flows:
            removals.append(_forgotten(home, around))
        elif is_backfill(name):
            removals += _of_backfill(home, around)
        elif name not in declared:
            notes.append(f"{home.full_name} is declared no more (renamed, or removed?): its files stay until forget_flows names it.")
    keyed = sorted({flow.target for flow in pipeline.flows if isinstance(flow, AutoCdcFlow)})
    before = datetime.fromtimestamp(moment - request.tombstone_days * 86400, timezone.utc).isoformat(timespec="seconds")
    tombstones = [{"table": table, "before": before} for table in keyed if exists(settings.tombstones_path(table))]
    old = (*backups.expired(settings, datetime.fromtimestamp(moment, timezone.utc)), *backups.unfinished(settings))
    copies = [{"table": item.table, "id": item.id, "why": item.why} for item in old if item.pipeline == pipeline.name]
    return Plan(
        recovery=RECOVERY,
        recovery_id=recovery_id,
        pipeline=pipeline.name,
        tables=(),
        request=asdict(request),
        flows=(),
        steps=KIND.step_names,
        details={"remove": removals, "backups": copies, "tombstones": tombstones},
        notes=(*(item["why"] for item in removals), *notes, *_backup_notes(copies), *_tombstone_notes(tombstones)),
        at=in_words(),
    )


def _tombstone_notes(tombstones: list[dict[str, Any]]) -> Iterator[str]:
    for item in tombstones:
        yield f"The table {item['table']} forgets deletes and truncates that it learned of before {item['before']}."


def _backup_notes(copies: list[dict[str, Any]]) -> Iterator[str]:
    for item in copies:
        yield f"The backup {item['id']} of {item['table']} goes: {item['why']}."


def _of_flow(home: FlowHome, around: _Around, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Give what goes of one flow: each removal names its folders and files, and the generation that they are the checkpoint of, if any."""
    numbers = home.generations()
    starts = {number: start for number in numbers if (start := generations.read_start(home, number)) is not None}
    folders = home.storage.names(f"{home.root}/checkpoints")
    for number in numbers:
        mine = [name for name in folders if (match := _ATTEMPT.fullmatch(name)) and int(match[1]) == number]
        start = starts.get(number)
        if not mine or start is None:
            continue
        own = start.checkpoint.rpartition("/")[2]
        why = _why_kept(home, number, starts, around)
        if why is None:
            said = f"the checkpoint of generation {number} of {home.full_name} goes: it was left long enough ago."
            yield _removal(home, number, mine, said)
            continue
        if number != max(starts):
            notes.append(f"The checkpoint of generation {number} of {home.full_name} stays: {why}.")
        aborted = [name for name in mine if name not in (own, f"{own}-listing")]
        if aborted and _long_ago(start.at, around.before):
            said = f"{len(aborted)} attempts to begin generation {number} of {home.full_name} go: another was used."
            yield _removal(home, None, aborted, said)
    old = home.epochs()[:-EPOCHS]
    if old:
        names = [name for epoch in old for name in (home.heartbeat(epoch), home.left(epoch), home.failed(epoch), home.lease(epoch))]
        why = f"leases of {home.full_name} up to epoch {old[-1]} go: the newest {EPOCHS} stay."
        yield {"flow": home.flow, "generation": None, "names": names, "why": why}


def _removal(home: FlowHome, number: int | None, folders: list[str], why: str) -> dict[str, Any]:
    names = [f"{home.root}/checkpoints/{name}" for name in folders]
    return {"flow": home.flow, "generation": number, "names": names, "why": why[:1].upper() + why[1:]}


def _why_kept(home: FlowHome, number: int, starts: Mapping[int, generations.Start], around: _Around) -> str | None:
    """Say why a generation's checkpoint stays; None where it may go."""
    begun = max(starts)
    if number >= begun:
        return "the flow runs on it"
    for later in (item for item in home.generations() if item > begun):
        decided = generations.read(home, later)
        if decided is not None and number in (decided.previous, decided.start.generation):
            return f"generation {later}, which is decided and not begun yet, begins from it"
    if (home.full_name, number) in around.needed:
        return f"the recovery {around.needed[home.full_name, number]} is not over and names it"
    if number in around.backed.get(home.full_name, ()):
        return "a backup goes back to it"
    following = min(item for item in starts if item > number)
    if not _long_ago(starts[following].at, around.before):
        return f"generation {following} took over at {starts[following].at}, which is within the retention"
    return None


def _needed(storage: Storage, pipeline: str) -> Iterator[tuple[tuple[str, int], str]]:
    """Give the generations that recoveries name which were planned and are not over."""
    for recovery in ledger.recoveries(storage, pipeline):
        book = ledger.open(storage, pipeline, recovery)
        if any(book.find(event) is not None for event in _OVER):
            continue
        planned = book.find("planned")
        if planned is None or "flows" not in planned.evidence:
            continue
        for flow in plans.from_json(planned.evidence).flows:
            for number in (flow.generation, flow.previous, flow.start.generation):
                if number is not None:
                    yield (flow.flow, number), recovery


def _forgotten(home: FlowHome, around: _Around) -> dict[str, Any]:
    """Give all that is kept of a flow but what says which generations it had.

    :raises RequestError: a recovery that is not over names it.
    """
    open_ones = sorted({recovery for (flow, _), recovery in around.needed.items() if flow == home.full_name})
    if open_ones:
        raise RequestError(f"{home.full_name} cannot be forgotten: the recovery {open_ones[0]} is not over. Run it on, or abandon it.")
    names = [f"{home.root}/{name}" for name in home.storage.names(home.root) if name not in _SMALL]
    why = f"{home.full_name} is forgotten, as asked for: all that is kept of it goes but the list of its generations."
    return {"flow": home.flow, "generation": None, "forget": True, "names": names, "why": why}


def _of_backfill(home: FlowHome, around: _Around) -> Iterator[dict[str, Any]]:
    """Give all that is kept of a backfill's own flow, once its recovery is over and long ago."""
    mark = home.flow.rpartition("_")[2]
    books = [
        ledger.open(around.storage, around.pipeline, name)
        for name in ledger.recoveries(around.storage, around.pipeline)
        if name.endswith(mark)
    ]
    ends = [next((found for event in _OVER if (found := book.find(event)) is not None), None) for book in books]
    if all(end is not None and _long_ago(end.at, around.before) for end in ends):
        names = [f"{home.root}/{name}" for name in home.storage.names(home.root) if name not in _SMALL]
        why = f"What the backfill {home.full_name} worked with goes: it ended long enough ago."
        yield {"flow": home.flow, "generation": None, "forget": True, "names": names, "why": why}


def _has_past(storage: Storage, pipeline: str, flow: str) -> bool:
    return any(name not in _SMALL for name in storage.names(f"{pipeline}/{flow}"))


def _long_ago(at: str, before: float) -> bool:
    return datetime.fromisoformat(at).timestamp() < before


def _nothing_to_forget(work: Work) -> dict[str, Any] | None:
    return None if work.plan.details["tombstones"] else {"forgotten": {}, "left": {}}


KIND = Kind(
    name=RECOVERY,
    title="Clean up",
    description="Removes checkpoints that were left long ago, old leases, backups and forgotten flows; tables forget old deletes.",
    form=clean_up_form,
    parse=parse_clean_up,
    read_request=request_from_json,
    plan=plan,
    steps=(
        StepKind(
            "remove",
            "remove old checkpoints and leases, each checkpoint marked as gone before its first file goes",
            "here",
            remove,
            changes=True,
        ),
        StepKind("remove_backups", "remove backups past their retention, and copies that were never finished", "here", remove_backups),
        StepKind(
            "forget_deletes",
            "let AUTO CDC tables forget deletes and truncates that are older than their retention, in the writers' turn",
            "spark",
            "streamkeeper_jobs.forgetting:act",
            idle=_nothing_to_forget,
        ),
    ),
)
assert common_steps.HOLD not in KIND.steps, "flows run on while their past is cleaned up"
