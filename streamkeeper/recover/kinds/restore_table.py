"""``restore_table``: restores a backup, or an earlier version of the table; its flows continue from the batch
that belongs to it.

Before anything is changed, the rows to restore are read and compared with their entry. Then the flows' next
generations are decided, and the table is restored and compared again. The flows stay held until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamkeeper.declare.model import Pipeline
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.copy_files import FIRST_COMMIT
from streamkeeper.delta.summary import check_may_become, newest_summary
from streamkeeper.errors import RequestError
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import EARLIEST, StartAt
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.moves import put_back
from streamkeeper.recover.moves.after_restore import plan_restored
from streamkeeper.recover.moves.next_generation import held_meanwhile
from streamkeeper.recover.moves.put_back import Restoring, TableToRestore
from streamkeeper.recover.plans.consent import impact_of_other_writers, impact_of_readers
from streamkeeper.recover.plans.kind import Kind, StepKind, Work
from streamkeeper.recover.plans.move import Move, TableEffect
from streamkeeper.recover.plans.plan import CopyPlan, FlowPlan, Plan, Refusal
from streamkeeper.recover.requests.form import declared_table
from streamkeeper.recover.requests.restore_table import RestoreRequest
from streamkeeper.recover.steps import rehearse
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups, flows_at_version, past_versions
from streamkeeper.tables.backups import NEWEST, TARGET, Backup
from streamkeeper.tables.flows_at_version import FlowAt
from streamkeeper.tables.readers import effects_on_readers

RECOVERY = "restore_table"


@dataclass(frozen=True)
class _Chosen:
    """What is restored: the source of the table, and the position of each flow in it.

    ``untouched`` are flows that wrote nothing for as long as the log reaches back: nothing of theirs is
    undone. ``other_commits`` describes commits after ``version`` that changed rows and are no flow's.
    ``wrote`` is the last transaction of every writer in a backup.
    """

    words: str
    table: TableToRestore
    flows: dict[str, FlowAt]
    untouched: frozenset[str] = frozenset()
    copies: tuple[CopyPlan, ...] = ()
    version: int = 0
    other_commits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    wrote: dict[str, int] = field(default_factory=dict)


def plan(settings: Settings, manifest: Manifest, request: RestoreRequest, recovery_id: str) -> Plan:
    """Plan a restore.

    :raises RequestError: there is no such backup or version, or it cannot be restored.
    :raises CheckpointError: a flow's position then cannot be known.
    """
    pipeline, table = declared_table(request.table, manifest, "The restore was not planned")
    writers = manifest.writers(pipeline.name, table.name)
    if request.backup == NEWEST:  # named once: under the hold the newest may be another
        request = replace(
            request, backup=backups.find(open_storage(settings.state), pipeline.name, table.name, NEWEST).id
        )
    chosen = _chosen(settings, pipeline, table.name, writers, request)
    way = Move(StartAt(EARLIEST), request.state, request.accept, table=TableEffect.RESTORED)
    planned = [
        (
            (held_meanwhile(settings, flow), ())
            if flow.full_name in chosen.untouched
            else plan_restored(settings, flow, chosen.flows.get(flow.full_name), way, chosen.wrote)
        )
        for flow in writers
    ]
    felt = effects_on_readers(settings, manifest, settings.table_path(table.name))
    refusals: tuple[Refusal, ...] = (
        *(refusal for _, refused in planned for refusal in refused),
        *impact_of_other_writers(chosen.other_commits, chosen.version, request.accept),
        *impact_of_readers(felt, request.accept),
    )
    return replace(
        KIND.draft(request, recovery_id, pipeline.name, (table.name,), planned),
        copies=chosen.copies,
        details=asdict(Restoring(chosen.table, request.backup, chosen.words)),
        notes=tuple(_notes(table.name, chosen, [flow for flow, _ in planned], felt.all)),
        refusals=refusals,
    )


def copy_back(work: Work) -> dict[str, Any]:
    """Copy a backup's files into the table's folder, where nothing names them yet; existing ones are left."""
    table = put_back.table_of(work.plan)
    return put_back.bring(work, table) if table.is_backup else {"note": "its files are in the table's folder"}


def _chosen(
    settings: Settings, pipeline: Pipeline, table: str, writers: list[Flow], request: RestoreRequest
) -> _Chosen:
    if request.backup is not None:
        backup = backups.find(open_storage(settings.state), pipeline.name, table, request.backup)
        return _of_backup(settings.table_path(table), backup)
    assert request.version is not None, "a request has one of the two"
    return _of_version(settings, table, writers, request.version)


def _of_backup(path: str, backup: Backup) -> _Chosen:
    copy = backup.copy
    _check_replaceable(path, copy.path)
    table = TableToRestore(
        path, copy.path, 0, delta_log.latest_version(path), copy.files, copy.checksum, copy.schema
    )
    files = CopyPlan(TARGET, copy.path, path, copy.bytes, copy.checksum.rows, copy.files)
    words = f"the backup {backup.id} of {backup.at}, version {copy.version} of the table then"
    note = "Rows written by others since then are lost too: no flow can produce them again."
    wrote = {action["appId"]: int(action["version"]) for action in _actions(copy.path, "txn")}
    flows = {flow.flow: flow for flow in backup.flows}
    return _Chosen(words, table, flows, copies=(files,), notes=(note,), wrote=wrote)


def _of_version(settings: Settings, table: str, writers: list[Flow], version: int) -> _Chosen:
    path = settings.table_path(table)
    newest = delta_log.latest_version(path)
    if newest is None or version > newest:
        reason = "there is no table" if newest is None else f"its newest is {newest}"
        raise RequestError(
            f"The table {table} at {path} has no version {version}: {reason}. Choose one that is there, or a"
            " backup."
        )
    homes = [open_home(settings, flow.full_name) for flow in writers]
    past = flows_at_version.look_back(table, path, version, homes)
    untouched = {flow for flow, stood in past.flows.items() if stood is None and not past.undone[flow]}
    flows = {home.full_name: past.flow_at(home) for home in homes if home.full_name not in untouched}
    lacking = past_versions.lacking_files(path, version)
    if lacking:
        raise RequestError(
            f"Version {version} of {path} cannot be restored: VACUUM removed {lacking[0]} and perhaps more."
            " Nothing was changed. Choose a newer version, or a backup (`streamkeeper backups`)."
        )
    words = f"version {version} of the table; its newest is {newest}"
    table_version = TableToRestore(path, path, version, newest)
    return _Chosen(
        words, table_version, flows, frozenset(untouched), version=version, other_commits=past.other_commits
    )


def _check_replaceable(path: str, copy: str) -> None:
    """Check that Delta lets a backup take a table's place, as far as that is known without Spark; check_copy
    looks again.

    :raises RequestError: it does not; nothing was changed.
    """
    present = newest_summary(path)
    if present is not None:
        check_may_become(path, present.metadata, next(_actions(copy, "metaData"), present.metadata))


def _actions(copy: str, kind: str) -> Iterator[dict[str, Any]]:
    """Return a kind's actions in a copy's one commit; none where the copy is gone, as check_copy says."""
    storage = open_storage(copy)
    lines = (storage.read(FIRST_COMMIT) or b"").splitlines()
    mine = (line for line in lines if line.startswith(f'{{"{kind}"'.encode()))
    return (delta_log.action_in(storage, 0, line)[kind] for line in mine)


def _notes(table: str, chosen: _Chosen, flows: list[FlowPlan], felt: Collection[str]) -> Iterator[str]:
    yield f"Replaced are all rows, columns and properties of {table}, by {chosen.words}."
    yield "A key that was deleted since then exists again until its delete is read again."
    stay = [flow.flow for flow in flows if flow.next_generation is None]
    if stay:
        yield (
            "These flows had read all their input by then, or never started; they get no new generation:"
            f" {', '.join(stay)}."
        )
    yield from (f"It is read as a stream: {reader}." for reader in felt)
    if chosen.other_commits:
        yield f"Commits by other writers since then are undone too: {', '.join(chosen.other_commits)}."
    yield from chosen.notes
    yield (
        "Earlier versions of the table stay in its history: restore_table can also restore the present one."
    )


PUT_BACK = StepKind(
    "put_back",
    "fence the flows' old generations in the table, and restore it",
    "streamkeeper_jobs.recover.restore_table:put_back",
    changes=True,
)

KIND = Kind(
    name=RECOVERY,
    description=(
        "Replaces a table by a backup or an earlier version; its flows continue from the batch that belongs"
        " to it."
    ),
    request=RestoreRequest,
    plan=plan,
    steps=(
        *shared_steps.STOP,
        StepKind(
            "check_copy",
            "read the copy to be restored, and compare it with its entry",
            "streamkeeper_jobs.recover.restore_table:check_copy",
        ),
        StepKind(
            "copy_back", "copy its files into the table's folder, before any commit refers to them", copy_back
        ),
        shared_steps.DECIDE,
        PUT_BACK,
        StepKind(
            "verify_rows",
            "read the tables and compare rows and checksums",
            "streamkeeper_jobs.recover.restore_table:verify_rows",
        ),
        shared_steps.RELEASE,
        shared_steps.VERIFY_PROGRESS,
    ),
    rehearsal=rehearse.STEP,
)
