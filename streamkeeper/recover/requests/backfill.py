"""What a person asks of ``backfill``: the form's fields, and the request that values of them make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RequestError
from streamkeeper.flows.backfill_flow import (
    BACKUP,
    FILES,
    HISTORY,
    READS,
    TABLE,
    BackfillRequest,
    check_backup_fits,
)
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.requests.form import (
    FormField,
    approval_fields,
    find_flow,
    price_field,
    read_values,
    refuse,
    request_of,
)

_BELONGS = {
    "path": (FILES, TABLE),
    "table": (TABLE,),
    "backup": (BACKUP,),
    "from_offsets": (HISTORY,),
    "to_offsets": (HISTORY,),
}
"""Which fields say more of which reads; elsewhere they are refused, and not ignored."""


def backfill_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``backfill``, in the order in which a person reads them."""
    flows = tuple(flow.full_name for flow in manifest.flows())
    return (
        FormField(
            "flow",
            "string",
            "Flow",
            "The flow whose table gets the rows, through its views. It runs on meanwhile.",
            None,
            flows,
        ),
        FormField(
            "read",
            "string",
            "Read",
            "`history`: what the flow's own source still has, or a range of its Kafka topics. `files`: other"
            " files like the source's. `table`: a Delta table with the source's columns. `backup`: a backup"
            " of the flow's table; its rows go through no view.",
            HISTORY,
            READS,
        ),
        FormField(
            "source",
            "string",
            "Source",
            "Which of the flow's sources the rows stand for; may be left empty where it has one. The others"
            " give nothing.",
            nullable=True,
        ),
        FormField(
            "path",
            "string",
            "Path",
            "For `files` and `table`: the folder, absolute or a URL.",
            nullable=True,
            section="From where",
        ),
        FormField(
            "table",
            "string",
            "Table",
            "For `table`: a table of the warehouse, in place of a path.",
            nullable=True,
            section="From where",
        ),
        FormField(
            "backup",
            "string",
            "Backup",
            "For `backup`: its id, or `newest` (the default).",
            nullable=True,
            section="From where",
        ),
        FormField(
            "from_offsets",
            "object",
            "From offsets",
            'For the history of a Kafka source: where it starts, `{"orders": {"0": 5, "1": -2}}`; -2 is'
            " earliest. Partitions that are left out are not read. Empty: all that is held.",
            nullable=True,
            section="From where",
        ),
        FormField(
            "to_offsets",
            "object",
            "To offsets",
            "Where it ends: the first offset of each partition that is left out. Empty: where the flow"
            " stands.",
            nullable=True,
            section="From where",
        ),
        FormField(
            "predicate",
            "string",
            "Only rows where",
            "SQL over the columns of the source (of the table, for a backup), such as `customer_id < 1000`."
            " Empty: all.",
            nullable=True,
            section="How",
        ),
        FormField(
            "chunk",
            "number",
            "Chunk",
            "How many files, or records of Kafka, are read at a time. Each chunk is a commit; what was"
            " interrupted goes on after the last.",
            nullable=True,
            section="How",
        ),
        price_field(),
        *approval_fields(),
    )


def parse_backfill(values: Mapping[str, Any], manifest: Manifest, by: str) -> BackfillRequest:
    """Make a request of a form's values; missing ones take the form's default.

    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, backfill_form(manifest))
    flow = find_flow(merged["flow"], manifest, wrong)
    read = merged["read"]
    for name, reads in _BELONGS.items():
        if merged[name] is not None and read in READS and read not in reads:
            wrong.append(
                f"{name} is {merged[name]!r}, but read is {read}. It goes with {' and '.join(reads)}: leave"
                " it empty, or read one of them."
            )
    _check_chunk(merged["chunk"], wrong)
    source = _source(merged["source"], flow, read, wrong) if flow is not None else None
    if flow is not None:
        _check_place(merged, flow, source, wrong)
    if isinstance(merged["predicate"], str) and not merged["predicate"].strip():
        wrong.append("predicate is an empty text. Give a condition, or leave it out: then all rows are read.")
    refuse("The backfill was not planned", wrong)
    assert flow is not None, "what is missing was listed as wrong"
    return BackfillRequest(
        flow=flow.full_name,
        read=read,
        source=source.name if source else None,
        path=merged["path"],
        table=merged["table"],
        backup=(merged["backup"] or "newest") if read == BACKUP else None,
        start=merged["from_offsets"],
        end=merged["to_offsets"],
        predicate=merged["predicate"],
        chunk=None if merged["chunk"] is None else int(merged["chunk"]),
        accept=tuple(merged["accept"] or ()),
        reason=merged["reason"] or "",
        by=by,
    )


def request_from_json(value: dict[str, Any]) -> BackfillRequest:
    """Read a request back from a plan."""
    return request_of(BackfillRequest, value)


def _source(name: Any, flow: Flow, read: str, wrong: list[str]) -> Source | None:
    sources = flow.pipeline.sources_of(flow.declaration)
    known = ", ".join(source.name for source in sources)
    if read == BACKUP:
        if name is not None:
            wrong.append(
                f"source is {name!r}, but a backup's rows are the table's and stand for no source. Leave it"
                " empty."
            )
        return None
    if name is None and len(sources) == 1:
        return sources[0]
    found = next((source for source in sources if source.name == name), None)
    if found is None:
        wrong.append(f"source is {name!r}; {flow.full_name} reads {known}. Name the one whose rows are read.")
    return found


def _check_place(values: Mapping[str, Any], flow: Flow, source: Source | None, wrong: list[str]) -> None:
    """Check where the rows come from, for each way to read."""
    path, table = values["path"], values["table"]
    match values["read"]:
        case "files" if source is not None:
            if not source.reads_files:
                wrong.append(
                    f"read is files, and {source.name} is no source of files but of {source.format}. Choose"
                    " history or table."
                )
            if not path:
                wrong.append("read is files, but no path is given. Name the folder.")
        case "table":
            if bool(path) == bool(table):
                wrong.append(
                    f"read is table, and {'both path and table are' if path else 'neither path nor table is'}"
                    " given. Give one."
                )
            elif table and flow.pipeline.table(table) is not None and table == flow.declaration.target:
                wrong.append(
                    f"table is {table}, which {flow.full_name} writes: it would be filled with its own rows."
                    " Name another."
                )
        case "backup":
            try:
                check_backup_fits(flow)
            except RequestError as error:
                wrong.append(str(error))
        case "history" if source is not None:
            _check_history(values, source, wrong)
    if path is not None and "://" not in path and not path.startswith("/"):
        wrong.append(f"path is {path!r}, which is neither absolute nor a URL.")


def _check_history(values: Mapping[str, Any], source: Source, wrong: list[str]) -> None:
    if source.format not in (KAFKA, DELTA) and not source.reads_files:
        wrong.append(
            f"read is history, which {source.name} ({source.format}) has none of. Choose files, table or"
            " backup."
        )
    for name in ("from_offsets", "to_offsets"):
        given = values[name]
        if given is None:
            continue
        if source.format != KAFKA:
            wrong.append(
                f"{name} is given, and {source.name} is no Kafka source but one of {source.format}. Use"
                " predicate instead."
            )
            continue
        misfit = check_fits(KAFKA, given)
        low = (
            [part for parts in given.values() for part, at in parts.items() if at < 0]
            if misfit is None and name == "to_offsets"
            else []
        )
        if misfit is not None:
            wrong.append(f"{name}: {misfit}")
        elif low:
            wrong.append(
                f"to_offsets has no number for partition {low[0]}: an end is 0 and above. Leave it out to end"
                " where the flow stands."
            )


def _check_chunk(chunk: Any, wrong: list[str]) -> None:
    if isinstance(chunk, (int, float)) and not isinstance(chunk, bool) and (chunk < 1 or chunk != int(chunk)):
        wrong.append(f"chunk is {chunk!r}. Allowed are whole numbers, 1 and above.")
