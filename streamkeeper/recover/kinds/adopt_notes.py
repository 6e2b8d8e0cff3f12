"""Notes of an adoption's plan, and the obstacles that no consent removes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.checkpoint.damage import ERROR
from streamkeeper.checkpoint.log_entries import PARTITIONS, PINNED, PROVIDER, TO_NEWER_SPARK
from streamkeeper.errors import CheckpointError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.adopt import AdoptRequest
from streamkeeper.settings import Settings
from streamkeeper.support.times import describe_age

if TYPE_CHECKING:
    from streamkeeper.recover.kinds.adopt import OldQuery

_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_DEFAULTS = {PROVIDER: PINNED[PROVIDER]}
"""What a flow uses that declares no value; of other pinned settings only those are compared that it
declares.
"""
_SCHEMA_LOG = "_schema_log"


def notes(settings: Settings, flow: Flow, request: AdoptRequest, query: OldQuery) -> Iterator[str]:
    """Return what a person should know who approves the plan."""
    position, raw = query.standing, _raw(query)
    yield (
        f"The checkpoint at {request.checkpoints[flow.full_name]}, of the query {query.query_id}, is copied,"
        " and is not changed."
    )
    yield from _sink_notes(settings.table_path(flow.declaration.target), query)
    if query.has_table and flow.sink is None:
        table = settings.table_path(flow.declaration.target)
        yield f"The table that it looked at, and continues, is {table}."
    yield (
        f"Nothing may start the flow before: hold it first (streamkeeper hold {flow.full_name} --reason"
        f" adopt), or leave its DAG {flow.dag_id} paused. Pause the DAG of the old job for good."
    )
    yield (
        f"Afterwards remove that hold (streamkeeper release {flow.full_name}) and unpause the flow's DAG"
        f" (airflow dags unpause {flow.dag_id}): while it is paused nothing starts the flow. The DAG of the"
        " old job stays paused."
    )
    named = ", ".join(f"{key} is {name}" for key, name in query.names.items() if key != name)
    if named:
        yield f"Its sources get the flow's names: {named}. The offset log is written as v2, by name."
    written = raw.committed_at(position.last_commit)
    if written is not None:
        yield (
            f"Its last commit was written {describe_age(max(0.0, time.time() - written))} ago. It must not"
            " change until the step decide."
        )
    entry = position.offsets()
    if entry is not None:
        yield from _pinned(flow, entry, raw)
    unknown = raw.unknown_pins()
    if unknown is not None:
        yield f"The checkpoint {unknown}. {TO_NEWER_SPARK}"
    if query.operators:
        operators = ", ".join(query.operators)
        yield (
            f"It keeps state ({operators}), which is copied. The rehearsal finds a declaration that does not"
            f" fit it; it cannot find another output mode (the flow's is {flow.declaration.mode}), another"
            " watermark delay or time bound, or a filter that was moved."
        )
    yield "Batches before the last one are not copied: a rewind can return to that one at the earliest."


def obstacles(flow: Flow, request: AdoptRequest, query: OldQuery) -> Iterator[str]:
    """Return what stands in the way of the adoption, as sentences."""
    position, raw = query.standing, _raw(query)
    if not request.old_job_is_stopped:
        yield (
            "the request does not confirm that the old job is stopped. Stop it for good, and set"
            " old_job_is_stopped."
        )
    if position.missing_in_sink is not None:
        yield (
            f"the checkpoint has committed {position.missing_in_sink}, which the table lacks: it was replaced"
            " or restored from an older copy, or the query wrote elsewhere. Restore the newer table."
        )
    for problem in raw.problems():
        if problem.severity == ERROR:
            file = problem.file or raw.path()
            yield f"the checkpoint is damaged: {file} {problem.description}. {problem.advice}."
    tracked = [source.name for source in flow.sources if source.track_schema]
    logs = [
        f"sources/{key}"
        for key in raw.sources()
        if any(name.startswith(_SCHEMA_LOG) for name in raw.names(f"sources/{key}"))
    ]
    if tracked or logs or any(name.startswith(_SCHEMA_LOG) for name in raw.names()):
        yield (
            "a log of a Delta source's schemas cannot be adopted. Let the old job end its schema change,"
            " and declare no track_schema."
        )
    states = [name for name in raw.names("state") if name.isdecimal()]
    without = [name for name in states if raw.operator_file(int(name)) is None]
    if without:
        yield (
            f"state/{without[0]} has no metadata of its operator, as Spark before 3.5 leaves it: how many"
            " partitions it has is not known."
        )
    yield from _state_ids(flow, query, raw)


def _raw(query: OldQuery) -> Checkpoint:
    """Return the checkpoint under its own names, in which what is wrong with it is said."""
    return Checkpoint(query.standing.checkpoint.storage, query.standing.checkpoint.folder)


def _sink_notes(table: str, query: OldQuery) -> Iterator[str]:
    position = query.standing
    if not query.has_table:
        yield (
            f"There is no table at {table}, where the flow's table has its place, and the flow would make an"
            " empty one. If the old job's table lies elsewhere, bring it there first, while nothing writes"
            " it: move or copy its whole folder with its _delta_log, or link it on a local disk; then plan"
            " again."
        )
    elif not query.log_is_whole:
        yield (
            f"The log of {table} does not say what the query wrote last. The driver reads it with Spark,"
            " and the later of both counts."
        )
    elif position.ruled_by == "sink":
        yield (
            f"The table has batch {query.batch}, the checkpoint only {position.last_commit}: the table's log"
            f" counts, so that batch {query.batch} is not written twice."
        )
    elif position.last_transaction is not None:
        yield f"Checkpoint and table agree: batch {query.batch} is the last."
    if position.last_transaction is not None and query.under_way is not None:
        yield (f"Batch {query.under_way} was planned and is not in the table: its input is read again.")
    if position.fenced:
        yield "The query is already fenced in the table."
    else:
        yield (
            "The query is fenced in the table before the flow starts: later commits of the old job are"
            " skipped silently, also if it is started again."
        )


def _pinned(flow: Flow, entry: OffsetEntry, raw: Checkpoint) -> Iterator[str]:
    """Return which settings of the checkpoint stay as they are although the flow would use others."""
    declared: Mapping[str, str] = {**_DEFAULTS, **flow.declaration.spark_conf}
    for name, value in entry.conf.items():
        other = declared.get(name, value)
        if other != value:
            yield f"The checkpoint pins {name} to {value}; {other} of the flow has no effect on it."
    partitions = max((operator.partitions for operator in raw.operators()), default=0)
    declared_partitions = flow.declaration.spark_conf.get(PARTITIONS)
    if partitions and declared_partitions not in (None, str(partitions)):
        yield (
            f"The state has {partitions} partitions, and keeps them; {declared_partitions} of the flow has no"
            " effect on it."
        )


def _state_ids(flow: Flow, query: OldQuery, raw: Checkpoint) -> Iterator[str]:
    """Whether versions of the state have ids is pinned nowhere: the flow has to declare what the old job
    had.
    """
    commits = raw.commit_batches()
    if not query.operators or not commits:
        return
    try:
        has_ids = raw.commit(commits[-1]).state_unique_ids is not None
    except CheckpointError:  # told as damage
        return
    old_format, declared = "2" if has_ids else "1", flow.declaration.spark_conf.get(_IDS, "1")
    if old_format != declared:
        yield (
            f"the old job ran with {_IDS} {old_format}, and the flow with {declared}. Declare it in the"
            f" flow's spark_conf: {_IDS}={old_format}."
        )
