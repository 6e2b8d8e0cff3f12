"""Owner of a table: one pipeline, for as long as the table exists.

{state}/tables/<table>.json  folder of the owning pipeline: created by the first of its drivers or recoveries,
                             immutable while the table exists; a dropped table may get another owner
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from streamkeeper.declare.model import KEEP, quarantine_of
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import DeclarationError, RowsOfOthers
from streamkeeper.flows import generations
from streamkeeper.flows.backfill_flow import is_backfill
from streamkeeper.flows.files import FlowHome, kept_flows, kept_pipelines, owner_folder, table_owner
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST
from streamkeeper.flows.side_flow import is_side_flow
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage, to_json
from streamkeeper.support.times import now
from streamkeeper.tables.other_writers import strangers
from streamkeeper.tables.past_versions import EMPTIED, PUT_IN_PLACE, adopted_by, writers_of


def owner(storage: Storage, table: str) -> str | None:
    """Return the current name of the pipeline that owns a table; None if none does yet."""
    folder = owner_folder(storage, table)
    return None if folder is None else names.read(storage).pipeline_in(folder)


def first(storage: Storage, pipeline: str, table: str) -> str:
    """Return the owner of a table: this pipeline from now on, if there was none."""
    present_owner = owner(storage, table)
    if present_owner is None and storage.create(table_owner(table), _note(storage, pipeline)):
        return pipeline
    return present_owner or str(owner(storage, table))


def ensure(settings: Settings, home: FlowHome, flow: Flow) -> None:
    """Make a flow's pipeline the owner of the tables that it writes; a flow yet to begin must find no rows of
    another pipeline in them, and none of anybody else where it would add all that its sources have.

    :raises DeclarationError: another pipeline owns a table, or wrote to it; nothing was touched.
    :raises RowsOfOthers: none of its flows wrote the rows that the table has; nothing was touched.
    :raises CheckpointError: a table's log is damaged.
    """
    declared, present = flow.declaration, generations.latest(home)
    aside = quarantine_of(declared)
    tables = [declared.target] if aside is None else [declared.target, aside]
    never_began = all(generations.read_start(home, number) is None for number in home.generations())
    for table in tables if never_began else ():
        other = written_by_another(settings, home.pipeline, table)
        if other is not None:
            raise DeclarationError(refusal(f"{declared.location}: the table {table}", home.pipeline, other))
    from_all = (EARLIEST, AFTER_LAST) if never_began else (EARLIEST,)
    if present is None or (
        present.start.mode in from_all and generations.read_start(home, present.number) is None
    ):
        _check_rows(settings, home, flow)
    for table in tables:
        claim(settings, home.pipeline, table)


def _check_rows(settings: Settings, home: FlowHome, flow: Flow) -> None:
    """Check that a flow adds all that its sources have to no rows that others wrote, unless that is declared.

    Only appended rows come twice: the engine takes no table of others, and a complete flow none with rows.

    :raises RowsOfOthers: the table has some.
    """
    declared = flow.declaration
    table = flow.pipeline.table(declared.target)
    if table is None or table.existing_rows == KEEP or declared.spec is not None or declared.replaces:
        return
    if is_backfill(home.flow) or is_side_flow(home.flow):
        return
    others = strangers(settings, flow)
    wrote = "; ".join((*others.descriptions, *([others.unknown] if others.unknown else ())))
    owned = owner(open_storage(settings.state), table.name) == home.pipeline
    if not wrote or (others.unknown and owned):
        return
    raise RowsOfOthers(
        f"{table.location}: the table {table.name} at {settings.table_path(table.name)} has rows that no flow"
        f" of {home.pipeline} wrote ({wrote}), and {home.full_name} would add all that its sources have to"
        " them. Nothing was written. If another job's query wrote them, stop that job and `adopt` its"
        " checkpoint: this flow then continues right after it. If the rows are to stay and the sources are to"
        f" be read from their start all the same, declare dp.create_streaming_table({table.name!r},"
        f" existing_rows={KEEP!r})."
    )


def claim(settings: Settings, pipeline: str, table: str) -> None:
    """Make a pipeline the owner of a table, unless it is already.

    :raises DeclarationError: another pipeline owns it.
    """
    storage = open_storage(settings.state)
    other = first(storage, pipeline, table)
    if other == pipeline:
        return
    if delta_log.exists(settings.table_path(table)):
        raise DeclarationError(refusal(f"The table {table}", pipeline, other))
    storage.overwrite(table_owner(table), _note(storage, pipeline))


def written_by_another(settings: Settings, pipeline: str, table: str) -> str | None:
    """Return another pipeline whose flows committed to a table, as far as its log goes back; None if there is
    none.

    Commits before one that emptied or replaced the table do not count: their rows are gone.

    :raises CheckpointError: the log is damaged.
    """
    storage = open_storage(settings.state)
    others = {
        writer: name
        for name in kept_pipelines(storage)
        if name != pipeline
        for writer in _writers(storage, name)
    }
    if not others:
        return None
    for commit in delta_log.commits(settings.table_path(table)):
        writers = commit.transactions
        other_pipeline = next((others[writer] for writer in writers if writer in others), None)
        if other_pipeline is not None or any(writer.endswith((EMPTIED, PUT_IN_PLACE)) for writer in writers):
            return other_pipeline
    return None


def foreign(settings: Settings, pipeline: str, table: str) -> str | None:
    """Return another pipeline that has an existing table, as its owner or by the table's log; None if there
    is none.

    An unreadable log counts as none; the driver checks again before it begins.
    """
    storage = open_storage(settings.state)
    present_owner = owner(storage, table)
    try:
        if present_owner == pipeline or not delta_log.exists(settings.table_path(table)):
            return None
        return present_owner or written_by_another(settings, pipeline, table)
    except Exception:  # noqa: BLE001 - a table's error must not stop the reading of declarations
        return present_owner


def has_run(storage: Storage, pipeline: str) -> bool:
    """Return whether any flow of a pipeline ever had a generation."""
    return any(home.generations() for home in kept_flows(storage, pipeline))


def began(storage: Storage, pipeline: str) -> str | None:
    """Return when the first generation of a pipeline's flows was decided; None if it never ran."""
    decided = (generations.decided(home) for home in kept_flows(storage, pipeline))
    return min((item.at for items in decided for item in islice(items, 1)), default=None)


def refusal(table: str, pipeline: str, other: str, location: str = "") -> str:
    """Return the error for a table of another pipeline, with what to do.

    :param location: the line with that one's declaration.
    """
    return (
        f"{table} belongs to the pipeline {other} already{location}, which keeps it; {pipeline} would read"
        f" everything into it again. A table belongs to one pipeline. If {pipeline}.py is {other}.py under"
        f" another name, remove {other}.py and run `streamkeeper rename {other} {pipeline}`; else declare"
        " all flows of the table in one file, or give this table another name."
    )


def _note(storage: Storage, pipeline: str) -> bytes:
    return to_json({"pipeline": names.read(storage).folder(pipeline), "at": now()})


def _writers(storage: Storage, pipeline: str) -> Iterator[str]:
    """Yield the query ids of all generations of a pipeline's flows, adopted queries included."""
    for home in kept_flows(storage, pipeline):
        yield from (*writers_of(home), *adopted_by(home))
