"""``clean_up``: what of a pipeline's state may be removed, what stays, and why. Planning changes nothing.

A checkpoint may be removed once its generation was retired for longer than the retention. Kept always: the
current generation's checkpoint, the one a pending generation starts from, and any that an open recovery or a
backup refers to. The small files of decisions and starts are kept too: they tell a flow the query ids that
its table knows. So are ledgers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from streamkeeper.declare.checkpoint_window import reach
from streamkeeper.declare.model import AutoCdcFlow, Pipeline
from streamkeeper.delta.log import exists
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations, ledger, side_flow
from streamkeeper.flows.backfill_flow import is_backfill
from streamkeeper.flows.files import FlowHome, kept_flows, kept_pipelines
from streamkeeper.history import events
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.moves import side_table
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.clean_up import PAUSE_DAYS, CleanUpRequest
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.recover.steps.clean_up import (
    BackupRemoval,
    CleanUp,
    Forgetting,
    Removal,
    give_back_locks,
    needed,
    remove,
    remove_backups,
    remove_side_table,
)
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.times import in_iso
from streamkeeper.tables import backups, tombstone_retention
from streamkeeper.tables.tombstone_retention import Forgets

RECOVERY = "clean_up"
EPOCHS = 10
"""So many of a flow's newest leases stay, with what was noted of them."""

_ATTEMPT = re.compile(r"([0-9]{6,})-[0-9]{6,}(?:-listing)?")
_SMALL = ("generations",)
"""What stays of a flow that is forgotten."""


@dataclass(frozen=True)
class _Around:
    """Where a plan looks, and what recoveries that are not over need: (flow, generation) → recovery.
    ``backed`` are the generations, by flow, that backups go back to; ``windows`` the moments, by flow's name,
    back to which it declares that it is rewound.
    """

    storage: Storage
    pipeline: str
    before: float
    needed: Mapping[tuple[str, int], str]
    backed: Mapping[str, set[int]]
    windows: Mapping[str, float]


def plan(
    settings: Settings,
    manifest: Manifest,
    request: CleanUpRequest,
    recovery_id: str,
    now: float | None = None,
) -> Plan:
    """Plan a clean-up.

    :param now: epoch seconds; the present by default.
    :raises RequestError: a flow is to be forgotten of which nothing is kept.
    """
    storage, moment = open_storage(settings.state), time.time() if now is None else now
    _check_clock(storage, request, moment)
    pipeline = next(item for item in manifest.pipelines if item.name == request.pipeline)
    around = _Around(
        storage,
        pipeline.name,
        moment - request.keep_days * 86400,
        dict(needed(storage, pipeline.name)),
        backups.needed_generations(storage),
        {flow.name: moment - reach(flow.spark_conf, flow.trigger) for flow in pipeline.flows},
    )
    notes: list[str] = []
    removals = tuple(_of_flows(pipeline, request, around, notes))
    forgets = dict(_forgets(settings, manifest, pipeline, request, moment))
    tombstones = tuple(
        Forgetting(table, in_iso(item.before)) for table, item in forgets.items() if item.before is not None
    )
    beside = tuple(side_table.left_over(settings, pipeline.name))
    expired = backups.expired(settings, datetime.fromtimestamp(moment, timezone.utc))
    without_entry = backups.left_over(settings)
    copies = tuple(
        BackupRemoval(item.table, item.id, item.reason, unfinished=item in without_entry.unfinished)
        for item in (*expired, *without_entry.unfinished)
        if item.pipeline == pipeline.name
    )
    return replace(
        KIND.draft(request, recovery_id, pipeline.name, ()),
        details=asdict(CleanUp(removals, copies, tombstones, beside)),
        notes=(
            *(() if removals or copies or tombstones or beside else ("Nothing is to be removed.",)),
            *(item.note for item in removals),
            *notes,
            *(f"The backup {item.id} of {item.table} is removed: {item.reason}." for item in copies),
            *_strange_copies(without_entry.strange),
            *_tombstone_notes(forgets),
            *(
                f"The table that {one} built and did not use is removed: that recovery is over."
                for one in beside
            ),
            *_strange_notes(storage, manifest),
        ),
    )


def _check_clock(storage: Storage, request: CleanUpRequest, moment: float) -> None:
    """Check that nothing is removed since a clock jumped: the last clean-up was planned a few days ago.

    Where there was none, the oldest event of the pipeline counts.

    :raises RequestError: it was long ago, and the request does not say that this is so.
    """
    known = events.read(storage, request.pipeline)
    earlier = [event.at for event in known if (event.recovery or "").startswith(f"{RECOVERY}-")]
    last = max(earlier, default=min((event.at for event in known), default=moment))
    if moment - last <= PAUSE_DAYS * 86400 or request.after_pause:
        return
    what = "last clean-up" if earlier else "first event"
    raise RequestError(
        f"By this host's clock it is {in_iso(moment)}, and the {what} of {request.pipeline} was on"
        f" {in_iso(last)}, more than {PAUSE_DAYS} days before. A clock that jumped would remove what is"
        " needed, so nothing is removed. If the clock is right, clean up once with after_pause"
        " (--after-pause)."
    )


def _of_flows(
    pipeline: Pipeline, request: CleanUpRequest, around: _Around, notes: list[str]
) -> Iterator[Removal]:
    """Yield the removals of all flows that something is kept of.

    :raises RequestError: a flow is to be forgotten of which nothing is kept.
    """
    declared = {flow.name for flow in pipeline.flows}
    homes = [home for home in kept_flows(around.storage, pipeline.name) if _has_past(home)]
    names = {home.flow for home in homes}
    if unknown := sorted(set(request.forget_flows) - names):
        strange = ", ".join(sorted(names - declared)) or "none"
        raise RequestError(
            f"forget_flows names {', '.join(unknown)}, which have no state. Flows with state that are not"
            f" declared: {strange}."
        )
    for home in homes:
        if not side_flow.is_side_flow(home.flow):
            yield from _of_kept(home, home.flow in declared, request, around, notes)


def _forgets(
    settings: Settings, manifest: Manifest, pipeline: Pipeline, request: CleanUpRequest, moment: float
) -> Iterator[tuple[str, Forgets]]:
    """Yield what each table that is kept by key may forget."""
    storage, seconds = open_storage(settings.state), request.tombstone_days * 86400
    for table in sorted({flow.target for flow in pipeline.flows if isinstance(flow, AutoCdcFlow)}):
        if exists(settings.table_path(table)):
            writers = manifest.writers(pipeline.name, table)
            yield table, tombstone_retention.forgets(storage, writers, seconds, moment)


def _tombstone_notes(forgets: Mapping[str, Forgets]) -> Iterator[str]:
    for table, item in forgets.items():
        if item.before is None:
            yield f"The table {table} forgets no deletes and truncates: {item.reason}."
        else:
            reason = "" if item.reason is None else f"; it keeps later ones, since {item.reason}"
            yield (
                f"The table {table} forgets deletes and truncates received before"
                f" {in_iso(item.before)}{reason}."
            )


def _strange_copies(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        yield (
            f"The copy at {place} stays: there is neither a backup nor a recovery of that name. It belongs"
            " to another environment, or to a state folder that was lost. If it is not needed, remove it"
            " by hand."
        )


def _strange_notes(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Return what is kept of pipelines that are no longer declared: no clean-up is of them."""
    declared = {pipeline.name for pipeline in manifest.pipelines}
    for name in (name for name in kept_pipelines(storage) if name not in declared):
        flows = [home.flow for home in kept_flows(storage, name) if home.generations() and _has_past(home)]
        if flows:
            yield (
                f"The pipeline {name} is no longer declared: the state of its flows {', '.join(flows)} is"
                f" kept. If it was renamed, run `streamkeeper rename {name} NEW`. If its checkpoints and"
                f" ledgers are not needed, remove {storage.path(name)} by hand."
            )


def _of_kept(
    home: FlowHome, declared: bool, request: CleanUpRequest, around: _Around, notes: list[str]
) -> Iterator[Removal]:
    """Yield the removals of one flow that something is kept of, declared or not."""
    forgotten = home.flow in request.forget_flows
    if declared or not forgotten:
        yield from _of_flow(home, around, notes)
    if forgotten:
        yield _forgotten(home, around)
    elif is_backfill(home.flow):
        yield from _of_backfill(home, around)
    elif not declared:
        notes.append(
            f"{home.full_name} is no longer declared (renamed, or removed?): its files stay until"
            " forget_flows names it."
        )


def _of_flow(home: FlowHome, around: _Around, notes: list[str]) -> Iterator[Removal]:
    """Return what goes of one flow, each removal with the generation whose checkpoint it is, if any."""
    numbers = home.generations()
    starts = {
        number: start for number in numbers if (start := generations.read_start(home, number)) is not None
    }
    folders = home.storage.names(f"{home.root}/checkpoints")
    for number in numbers:
        start = starts.get(number)
        if start is None:
            continue
        own = start.checkpoint.rpartition("/")[2]
        mine = [
            name
            for name in folders
            if name == own or ((match := _ATTEMPT.fullmatch(name)) and int(match[1]) == number)
        ]
        if not mine:
            continue
        reason = _why_kept(home, number, starts, around)
        if reason is None:
            note = (
                f"the checkpoint of generation {number} of {home.full_name} is removed: it was retired"
                " longer ago than the retention."
            )
            yield _removal(home, number, mine, note)
            continue
        if number != max(starts):
            notes.append(f"The checkpoint of generation {number} of {home.full_name} stays: {reason}.")
        aborted = [name for name in mine if name not in (own, f"{own}-listing")]
        if aborted and _long_ago(start.at, around.before):
            note = (
                f"{len(aborted)} unused attempts to start generation {number} of {home.full_name} are"
                " removed."
            )
            yield _removal(home, None, aborted, note)
    old = home.epochs()[:-EPOCHS]
    if old:
        files = (home.heartbeat, home.left, home.failed, home.silent, home.lease)
        names = [name(epoch) for epoch in old for name in files]
        note = f"leases of {home.full_name} up to epoch {old[-1]} are removed: the newest {EPOCHS} stay."
        yield Removal(home.flow, None, tuple(names), note)


def _removal(home: FlowHome, number: int | None, folders: list[str], note: str) -> Removal:
    names = tuple(f"{home.root}/checkpoints/{name}" for name in folders)
    return Removal(home.flow, number, names, note[:1].upper() + note[1:])


def _why_kept(
    home: FlowHome, number: int, starts: Mapping[int, generations.Start], around: _Around
) -> str | None:
    """Return why a generation's checkpoint stays; None where it may go."""
    begun = max(starts)
    if number >= begun:
        return "it is the flow's current one"
    for later in (item for item in generations.decided(home) if item.number > begun):
        if number in (later.previous, later.start.generation):
            return f"generation {later.number}, which is decided and not started yet, starts from it"
    if (home.full_name, number) in around.needed:
        return f"the recovery {around.needed[home.full_name, number]} is not over and needs it"
    if number in around.backed.get(home.full_name, ()):
        return "a backup refers to it"
    following = min(item for item in starts if item > number)
    return _within(home, following, starts[following].at, around)


def _within(home: FlowHome, following: int, at: str, around: _Around) -> str | None:
    """Return the retention that still keeps a replaced generation's checkpoint; None if none does."""
    for limit, before in (
        ("retention", around.before),
        ("flow's rewind_window", around.windows.get(home.flow, around.before)),
    ):
        if not _long_ago(at, before):
            return f"generation {following} took over at {at}, which is within the {limit}"
    return None


def _forgotten(home: FlowHome, around: _Around) -> Removal:
    """Return the removal of everything kept of a flow except the list of its generations.

    :raises RequestError: a recovery that is not over names it.
    """
    open_ones = sorted({recovery for (flow, _), recovery in around.needed.items() if flow == home.full_name})
    if open_ones:
        raise RequestError(
            f"{home.full_name} cannot be removed: the recovery {open_ones[0]} is not over. Continue it, or"
            " abandon it."
        )
    note = f"{home.full_name} is removed, as requested: all its state but the list of its generations."
    return _all_of(home, note)


def _all_of(home: FlowHome, note: str) -> Removal:
    names = [f"{home.root}/{name}" for name in home.storage.names(home.root) if name not in _SMALL]
    return Removal(home.flow, None, tuple(names), note, forget=True)


def _of_backfill(home: FlowHome, around: _Around) -> Iterator[Removal]:
    """Return all that is kept of a backfill's own flow, once its recovery is over and long ago."""
    mark = home.flow.rpartition("_")[2]
    books = [
        ledger.open(around.storage, around.pipeline, name)
        for name in ledger.recoveries(around.storage, around.pipeline)
        if name.endswith(mark)
    ]
    if all((end := book.end()) is not None and _long_ago(end.at, around.before) for book in books):
        subject = f"The files of the backfill {home.full_name}"
        yield _all_of(home, f"{subject} are removed: it ended longer ago than the retention.")


def _has_past(home: FlowHome) -> bool:
    return any(name not in _SMALL for name in home.storage.names(home.root))


def _long_ago(at: str, before: float) -> bool:
    return datetime.fromisoformat(at).timestamp() < before


def _nothing_to_forget(work: Work) -> dict[str, Any] | None:
    return None if work.plan.details_as(CleanUp).tombstones else {"forgotten": {}, "left": {}}


KIND = Kind(
    name=RECOVERY,
    description=(
        "Removes retired checkpoints, old leases, expired backups and flows named for removal; tables"
        " forget old deletes."
    ),
    request=CleanUpRequest,
    plan=plan,
    steps=(
        StepKind(
            "remove",
            "remove old checkpoints and leases; each checkpoint is marked as removed first",
            remove,
            changes=True,
        ),
        StepKind(
            "remove_backups",
            "remove backups past their retention, and copies that were never finished",
            remove_backups,
        ),
        StepKind("remove_side_table", "remove unused side tables that recoveries built", remove_side_table),
        StepKind(
            "forget_deletes",
            "let AUTO CDC tables forget deletes and truncates that are older than their retention, in the"
            " write lock",
            "streamkeeper_jobs.recover.clean_up:act",
            idle=_nothing_to_forget,
        ),
    ),
    given_up=give_back_locks,
)
assert shared_steps.HOLD not in KIND.steps, "flows keep running during a clean-up"
