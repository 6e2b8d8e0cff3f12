"""The request of ``backfill``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.declare.model import FILE_SINKS, Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RequestError
from streamkeeper.flows.backfill_flow import BACKUP, FILES, HISTORY, READS, TABLE, check_backup_fits
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.form import FLOW, Asking, form_field
from streamkeeper.recover.requests.rehearsal import Rehearsable
from streamkeeper.settings import why_refused_place
from streamkeeper.sources.predicate import why_refused

OF_KAFKA, OF_DELTA, OF_PATH, OF_BACKUP, WHICH = (
    "Read history of Kafka",
    "Read history of a Delta table",
    "Read files or table",
    "Read backup",
    "Which rows",
)

_BELONGS = {
    "path": (FILES, TABLE),
    "table": (TABLE,),
    "backup": (BACKUP,),
    "from_offsets": (HISTORY,),
    "to_offsets": (HISTORY,),
    "from_version": (HISTORY,),
    "to_version": (HISTORY,),
}
"""Fields that apply to certain values of `read` only; with others they are refused, not ignored."""


@dataclass(frozen=True)
class BackfillRequest(Rehearsable):
    """A backfill as requested; every value was checked against the manifest.

    ``source`` is the flow's source whose rows are written again; None for a backup. ``from_offsets`` and
    ``to_offsets`` bound a Kafka source's history: offsets by topic and partition, the end exclusive; None for
    all that is retained. ``from_version`` and ``to_version`` are the first and the last commit of a Delta
    source whose added and changed rows are read; None for the whole table. ``predicate`` is SQL over the
    columns of the source, or over those of the backup. ``chunk`` is the number of files, or of Kafka
    records, in a chunk.
    """

    refused = "The backfill was not planned"

    flow: str = form_field(
        "string",
        "Flow",
        "The flow whose table gets the rows, through its views. It keeps running.",
        names=FLOW,
    )
    read: str = form_field(
        "string",
        "Read",
        "What to read. Open its section below, and leave the others as they are. history: what the flow's"
        " own source still has, or a range of its Kafka topics. files: other files like the source's."
        " table: a Delta table with the source's columns. backup: a backup of the flow's table; its rows"
        " go through no view.",
        HISTORY,
        enum=READS,
    )
    source: str | None = form_field(
        "string",
        "Source",
        "The flow's source that the rows replace. May be empty if there is only one, and for a backup. The"
        " other sources give no rows.",
        nullable=True,
        section=WHICH,
    )
    path: str | None = form_field(
        "string",
        "Path",
        "For files and table: the folder, absolute or a URL.",
        nullable=True,
        section=OF_PATH,
    )
    table: str | None = form_field(
        "string",
        "Table",
        "For table: one of the warehouse, in place of a path.",
        nullable=True,
        section=OF_PATH,
    )
    backup: str | None = form_field(
        "string",
        "Backup",
        "Its id, or newest (the default).",
        nullable=True,
        section=OF_BACKUP,
    )
    from_offsets: dict[str, dict[str, int]] | None = form_field(
        "object",
        "From offsets",
        'Start: {"orders": {"0": 5, "1": -2}}; -2 is earliest. Partitions that are left out are not'
        " read. Empty: all records that exist.",
        nullable=True,
        section=OF_KAFKA,
    )
    to_offsets: dict[str, dict[str, int]] | None = form_field(
        "object",
        "To offsets",
        "End: for each partition, the first offset that is not read. Empty: the flow's current position.",
        nullable=True,
        section=OF_KAFKA,
    )
    from_version: int | None = form_field(
        "number",
        "From version",
        "For a Delta source: the first commit whose rows are read, those that it added or changed. Of a"
        " source with skipChangeCommits only the commits that the flow skips are read. Empty: the whole"
        " table.",
        nullable=True,
        whole=True,
        least=0,
        section=OF_DELTA,
    )
    to_version: int | None = form_field(
        "number",
        "To version",
        "The last commit whose rows are read.",
        nullable=True,
        whole=True,
        least=0,
        section=OF_DELTA,
    )
    predicate: str | None = form_field(
        "string",
        "Only rows where",
        "SQL over the columns of the source (of the table, for a backup), such as customer_id < 1000. Empty:"
        " all.",
        nullable=True,
        section=WHICH,
    )
    chunk: int | None = form_field(
        "number",
        "Chunk",
        "Number of files, or Kafka records, in a chunk. Each chunk is one commit; after an interruption"
        " the backfill continues with the next.",
        nullable=True,
        whole=True,
        least=1,
        section=WHICH,
    )

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that the fields belong to what is read, and fit the flow and its source."""
        flow, read, wrong = asking.flow, values["read"], asking.wrong
        for name, reads in _BELONGS.items():
            if values[name] is not None and read not in reads:
                wrong.append(
                    f"{name} is {values[name]!r}, but read is {read}. It goes with {' and '.join(reads)}:"
                    " leave it empty, or read one of them."
                )
        if flow is not None and (sink := flow.sink) and sink.sink in FILE_SINKS:
            wrong.append(
                f"{flow.full_name} writes the files of {sink.name}: the log of their folder has room for one"
                " query, and a backfill is another. Rewind or reset the flow."
            )
        source = _source(values["source"], flow, read, wrong) if flow is not None else None
        if flow is not None:
            _check_place(values, flow, source, wrong)
        predicate = values["predicate"]
        if predicate is not None and (refused := why_refused(predicate)) is not None:
            wrong.append(refused)
        if predicate is not None and not predicate.strip():
            wrong.append(
                "predicate is an empty text. Give a condition, or leave it out: then all rows are read."
            )
        return {
            "source": source.name if source else None,
            "backup": (values["backup"] or "newest") if read == BACKUP else None,
        }


def _source(name: Any, flow: Flow, read: str, wrong: list[str]) -> Source | None:
    sources = flow.sources
    names = ", ".join(source.name for source in sources)
    if read == BACKUP:
        if name is not None:
            wrong.append(
                f"source is {name!r}, but a backup's rows are the table's and stand for no source. Leave it"
                " empty."
            )
        return None
    if name is None and len(sources) == 1:
        return sources[0]
    source = next((source for source in sources if source.name == name), None)
    if source is None:
        wrong.append(f"source is {name!r}; {flow.full_name} reads {names}. Name the one whose rows are read.")
    return source


def _check_place(values: Mapping[str, Any], flow: Flow, source: Source | None, wrong: list[str]) -> None:
    """Check where the rows come from, for each value of `read`."""
    path, table, read = values["path"], values["table"], values["read"]
    if read == FILES and source is not None:
        if not source.reads_files:
            wrong.append(
                f"read is files, and {source.name} is no source of files but of {source.format}. Choose"
                " history or table."
            )
        if not path:
            wrong.append("read is files, but no path is given. Name the folder.")
    elif read == TABLE:
        if bool(path) == bool(table):
            wrong.append(
                f"read is table, and {'both path and table are' if path else 'neither path nor table is'}"
                " given. Give one."
            )
        elif table and flow.pipeline.table(table) is not None and table == flow.declaration.target:
            wrong.append(
                f"table is {table}, which {flow.full_name} writes: it would be filled with its own"
                " rows. Name another table."
            )
    elif read == BACKUP:
        try:
            check_backup_fits(flow)
        except RequestError as error:
            wrong.append(str(error))
    elif read == HISTORY and source is not None:
        _check_history(values, source, wrong)
    if path is not None and "://" not in path and not path.startswith("/"):
        wrong.append(f"path is {path!r}, which is neither absolute nor a URL.")
    elif path is not None and (refused := why_refused_place(path)) is not None:
        wrong.append(f"path: {refused}")


def _check_history(values: Mapping[str, Any], source: Source, wrong: list[str]) -> None:
    if not source.kind.history:
        wrong.append(
            f"read is history, which {source.name} ({source.format}) does not have. Choose files, table or"
            " backup."
        )
    first, last = values["from_version"], values["to_version"]
    if (first, last) != (None, None):
        if not source.kind.table:
            wrong.append(
                f"from_version or to_version is given, and {source.name} is no Delta source but one of"
                f" {source.format}. Leave them empty."
            )
        elif first is None or last is None or last < first:
            wrong.append(
                f"from_version is {first} and to_version {last}. Give both, the last one not below the first."
            )
    for name in ("from_offsets", "to_offsets"):
        offsets = values[name]
        if offsets is None:
            continue
        if not source.kind.records:
            wrong.append(
                f"{name} is given, and {source.name} is no Kafka source but one of {source.format}. Use"
                " predicate instead."
            )
            continue
        misfit = check_fits(source.format, offsets)
        low = (
            [part for parts in offsets.values() for part, at in parts.items() if at < 0]
            if misfit is None and name == "to_offsets"
            else []
        )
        if misfit is not None:
            wrong.append(f"{name}: {misfit}")
        elif low:
            wrong.append(
                f"to_offsets has no number for partition {low[0]}: an end is 0 and above. Leave it out to"
                " end at the flow's current position."
            )
