"""``backfill``: the plan, its cost, and the steps. The flow keeps running during a backfill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import check_takes_backup_rows
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import holds
from streamkeeper.flows.backfill_flow import BACKUP, HISTORY, name_of
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.moves.backfill_source import FILL, Backup, Filled, FillingIn, raw_source
from streamkeeper.recover.moves.present import DEDUPE
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.plan import Plan, Refusal
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps.shared import LOCK, release_all
from streamkeeper.settings import Settings
from streamkeeper.sources.base.format import Reading
from streamkeeper.sources.formats import format_of
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import DUPLICATES, Amount, in_words
from streamkeeper.tables import backups
from streamkeeper.tables.by_path import check_by_path

RECOVERY = "backfill"
VERIFY, UNLOCK = "verify", "unlock"


def check_path(settings: Settings, request: BackfillRequest) -> None:
    """Check that what a backfill reads may be read. The job checks it again: since the plan was made, a link
    or the setting may have changed.

    :raises RequestError: the path lies in no folder that may be read.
    """
    if request.path is not None and (refused := settings.why_outside(request.path)) is not None:
        raise RequestError(f"The path {refused} Nothing was read or changed.")


def plan(settings: Settings, manifest: Manifest, request: BackfillRequest, recovery_id: str) -> Plan:
    """Plan a backfill; nothing is changed.

    :raises RequestError: the path may not be read, the flow has no table yet, its query keeps state of which
        a part cannot be computed by itself, the schema of another of its sources is not known, or what is to
        be read is not there.
    """
    flow = manifest.find(request.flow)
    check_path(settings, request)
    home = open_home(settings, flow.full_name)
    check_by_path(settings, opened_flow(flow, settings, opened_if_possible))
    if not delta_log.exists(settings.table_path(flow.declaration.target)):
        raise RequestError(
            f"The table {flow.declaration.target} is not there yet, so there is nothing to fill in. Start the"
            f" flow first: its DAG, or streamkeeper run {flow.full_name}."
        )
    begun = Observed(home).begun
    if flow.declaration.replaces and request.read != BACKUP:
        raise RequestError(
            f"{flow.full_name} is a flow in the mode {flow.declaration.mode}: its rows are results of its"
            " whole state, and those of a backfill would replace them. Nothing was changed. Rebuild the table"
            " instead with full_refresh, or reset the flow to before those rows."
        )
    if request.read != BACKUP:
        _check_state(flow, begun[1].operators if begun else ())
        _check_schemas(flow, request, begun[1].schemas if begun else {})
    chosen, backup, reading = _resolve(settings, flow, home, request)
    keyed = flow.declaration.spec is not None
    return replace(
        KIND.draft(chosen, recovery_id, flow.pipeline.name, (flow.declaration.target,)),
        details=asdict(FillingIn(flow.full_name, flow.fingerprint, reading.amount, backup)),
        notes=tuple(_notes(flow, chosen, reading, keyed)),
        refusals=() if keyed or DUPLICATES in request.accept else (_repeats(flow, reading.amount),),
    )


def verify(work: Work) -> dict[str, Any]:
    """Check that every chunk is in the table.

    :raises RecoveryError: a chunk is missing: someone replaced the table, or put it back.
    """
    filled = work.result(FILL, Filled)
    if not filled.done or filled.missing:
        raise RecoveryError(
            f"The table {work.plan.tables[0]} lacks {filled.missing or 'the end'} of the backfill:"
            " the table was replaced or restored during the backfill. Give this recovery up, and plan the"
            " backfill again."
        )
    return {"table": work.plan.tables[0], "chunks": 0 if filled.batch is None else filled.batch + 1}


def unlock(work: Work) -> dict[str, Any]:
    """Release the table's lock."""
    release_all(work)
    return {}


def own_home(work: Work) -> FlowHome:
    """Return where the backfill's own flow is kept."""
    return FlowHome(
        work.book.storage,
        work.plan.pipeline,
        name_of(work.plan.details_as(FillingIn).flow.partition(".")[2], work.plan.recovery_id),
    )


def given_up(work: Work) -> None:
    """Hold the backfill's own flow, whose process may still live: it stops after its chunk."""
    if work.book.find(f"{FILL}.started") is not None and work.evidence(FILL) is None:
        holds.put(
            own_home(work),
            holds.recovery(work.plan.recovery_id),
            f"{work.plan.recovery_id} was given up",
            work.plan.by,
        )


def check_rows_fit(settings: Settings, flow: Flow) -> None:
    """Check that a flow's table takes the rows of a backup of it; one that is kept by key has no column that
    does not.

    :raises RequestError: it does not; nothing was changed.
    """
    if flow.declaration.spec is None:
        check_takes_backup_rows(settings.table_path(flow.declaration.target))


def _is_filling(work: Work) -> bool:
    """Return whether a chunk may be in the table already."""
    return (
        Observed(own_home(work)).begun is not None
    )  # until then nothing of a generation is in the table (docs/decisions/0003)


def _check_state(flow: Flow, operators: tuple[str, ...]) -> None:
    """Check that the flow's query gives the same for rows by themselves as for rows among others, but for
    repeated ones.

    :raises RequestError: it aggregates, joins, or keeps a state of its own making.
    """
    others = sorted(set(operators) - DEDUPE)
    if others:
        raise RequestError(
            f"The query of {flow.full_name} keeps state ({', '.join(others)}) which rows of the backfill"
            " would have to share with those of the stream; without it they give other results. Rebuild"
            " the table instead with full_refresh, or rewind to before those rows."
        )


def _check_schemas(flow: Flow, request: BackfillRequest, schemas: Mapping[str, str]) -> None:
    """Check that the views can be computed without a file of the flow's other sources.

    :param schemas: those that the flow's generation has inferred.
    :raises RequestError: one of them declares no schema, and none is known.
    """
    others = [source for source in flow.sources if source.name != request.source]
    unknown = [
        source.name
        for source in others
        if source.reads_files and source.schema is None and source.name not in schemas
    ]
    if unknown:
        raise RequestError(
            f"{flow.full_name} reads {', '.join(unknown)} too, without a declared schema, and no generation"
            " of it has inferred one. A backfill reads no rows of other sources, but its views need their"
            " columns. Nothing was changed. Declare a schema, or run the flow once there is a file, and"
            " plan again."
        )


def _resolve(
    settings: Settings, flow: Flow, home: FlowHome, request: BackfillRequest
) -> tuple[BackfillRequest, Backup | None, Reading]:
    """Return the request with all that was left open filled in, where a backup lies, and how much is read.

    :raises RequestError: it is not there, or the table cannot take it.
    """
    if request.read == BACKUP:
        assert request.backup is not None, "it was checked to have one"
        check_rows_fit(settings, flow)
        entry = backups.find(
            open_storage(settings.state), flow.pipeline.name, flow.declaration.target, request.backup
        )
        reading = Reading(Amount(entry.copy.files, entry.copy.bytes, entry.copy.checksum.rows))
        return replace(request, backup=entry.id), Backup(entry.copy.path), _chosen(reading, request)
    declared = next(source for source in flow.sources if source.name == request.source)
    if request.read == HISTORY and declared.kind.records and request.to_offsets is None:
        request = replace(request, to_offsets=_read_upto(home, declared))
    source = opened_if_possible(raw_source(declared, request), settings)
    bounds: tuple[Any, Any] = (request.from_offsets, request.to_offsets)
    if request.from_version is not None:
        bounds = (request.from_version, request.to_version)
    reading = format_of(source).reading(source, *bounds)
    return request, None, _chosen(reading, request)


def _chosen(reading: Reading, request: BackfillRequest) -> Reading:
    """Return the amount that is read, with its rows as a bound where a predicate chooses among them."""
    if request.predicate is None or reading.amount.rows is None:
        return reading
    return replace(reading, amount=replace(reading.amount, at_most=True))


def _read_upto(home: FlowHome, source: Source) -> dict[str, dict[str, int]] | None:
    """Return the offsets that a flow has read a Kafka source up to; None where it read nothing yet."""
    offsets: dict[str, dict[str, int]] | None = Observed(home).offsets.get(source.name)
    return offsets


def _notes(flow: Flow, request: BackfillRequest, reading: Reading, keyed: bool) -> list[str]:
    target = flow.declaration.target
    origin = {
        HISTORY: f"what the source {request.source} still has"
        if request.from_version is None
        else f"versions {request.from_version} to {request.to_version} of the source {request.source}",
        BACKUP: f"the backup {request.backup}",
    }.get(request.read, f"{request.path or request.table}, as rows of the source {request.source}")
    notes = [
        (
            f"Read: {in_words(reading.amount)}, from"
            f" {origin}{f', where {request.predicate}' if request.predicate else ''}."
        ),
        *reading.notes,
        (
            f"{flow.full_name} keeps running; its checkpoint is not changed. The rows are written to"
            f" {target} in chunks, each exactly once."
        ),
    ]
    if request.to_offsets:
        notes.append(f"The range ends before {request.to_offsets}.")
    if keyed:
        notes.append(
            f"The table {target} is updated by key and sequence: newer rows in it stay, and rows that are"
            " read again have no effect. A key whose delete clean_up has forgotten (tombstone_days) comes"
            " back, if an older row of it is read."
        )
    if request.read == BACKUP and keyed:
        notes.append(
            "Each row is written with its own sequence, together with the deletes and truncates of the"
            " backup."
        )
    others = [source.name for source in flow.sources if source.name != request.source]
    if request.source is not None and others:
        notes.append(f"The flow's other sources give no rows here: {', '.join(others)}.")
    return notes


def _repeats(flow: Flow, read: Amount) -> Refusal:
    again = read if read.rows is None else Amount(None, 0, read.rows, at_most=True)
    return Refusal(
        DUPLICATES,
        f"{flow.full_name} appends: rows among these that it has read, or will read, are duplicated in"
        f" {flow.declaration.target} ({in_words(again)}). Accept `{DUPLICATES}`, or limit the backfill to"
        " rows that are missing from the table.",
        flow.full_name,
    )


KIND = Kind(
    name=RECOVERY,
    description=(
        "Reads rows again, from history, files, a table or a backup, through a flow's views into its"
        " table; the flow keeps running."
    ),
    request=BackfillRequest,
    plan=plan,
    steps=(
        LOCK,
        StepKind(
            FILL,
            "read the rows chunk by chunk, under the write lock if the table has one; after an"
            " interruption continue with the next chunk",
            "streamkeeper_jobs.recover.backfill:fill_step",
            changes=True,
            changed=_is_filling,
        ),
        StepKind(VERIFY, "check that every chunk is in the table", verify),
        StepKind(UNLOCK, "release the table's lock", unlock),
    ),
    rehearsal=rehearse.STEP,
    noun="backfill",
    given_up=given_up,
)
