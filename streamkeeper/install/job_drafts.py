"""``streamkeeper adopt --write``: drafts of pipeline files that continue Spark jobs.

A draft names sources, table and checkpoint. The query between them is the user's to bring over, so its
function raises until that was done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import FORMATS
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.install.job_reading import Query, Reading
from streamkeeper.install.job_scan import AUTO_CDC, Job, Scan
from streamkeeper.install.project import write_files
from streamkeeper.observe.adopted_checkpoint import normal_place
from streamkeeper.redaction import is_secret
from streamkeeper.settings import Settings, typed_path
from streamkeeper.storage import open_storage

_OF_START = ("startingoffsets", "startingtimestamp", "startingversion", "path", "checkpointlocation")
"""Options that say where a query begins or keeps its state: the adopted checkpoint does."""
_UNKNOWN = "TODO"
CHECKPOINTS = "checkpoints.json"
"""File of the checkpoints of several drafts, by the full names of their flows, for one adoption of all."""


def write_drafts(
    scan: Scan, folder: Path, jobs: Sequence[str] = (), checkpoint: str | None = None
) -> dict[str, str]:
    """Write a draft for each job with a query, and return their paths by the jobs' names. Beside several
    drafts, :data:`CHECKPOINTS` has what ``checkpoints`` of their adoption takes.

    :param jobs: as ``dag.task``; all by default.
    :param checkpoint: of the one job, where its text does not tell it.
    :raises RequestError: there is no such job, or a file is there already; nothing was written.
    :raises StorageError: the folder cannot be written.
    """
    chosen = [job for job in scan.jobs if job.query is not None and (not jobs or job.name in jobs)]
    missing = sorted({*jobs} - {job.name for job in chosen})
    if missing:
        names = ", ".join(job.name for job in scan.jobs if job.query is not None) or "none"
        raise RequestError(
            f"{missing[0]} is no job with a known query. There are: {names}. Nothing was written."
        )
    if checkpoint is not None:
        if len(chosen) != 1:
            raise RequestError(
                f"--checkpoint is of one job, and {len(chosen)} are drafted. Choose one by --job."
            )
        chosen = [
            replace(job, query=replace(query, checkpoint=checkpoint))
            for job in chosen
            if (query := job.query)
        ]
    folder = typed_path("--write", str(folder))
    drafts = {job.name: (folder / f"{_name_of(job, chosen)}.py", _draft(job)) for job in chosen}
    texts = dict(drafts.values())
    if len(chosen) > 1:
        places = {f"{drafts[job.name][0].stem}.{_table_of(job)}_flow": _checkpoint_of(job) for job in chosen}
        texts[folder / CHECKPOINTS] = json.dumps(places, indent=2) + "\n"
    existing = [str(file) for file in texts if file.exists()]
    if existing:
        raise RequestError(
            f"{', '.join(existing)} is there already. Nothing was written. Give another folder."
        )
    write_files(texts)
    return {name: str(file) for name, (file, _) in drafts.items()}


def _name_of(job: Job, jobs: Sequence[Job]) -> str:
    """Return the name of a job's pipeline: its task's, with DAG and line where that is not its own."""
    query = job.query
    assert query is not None, "only jobs with a query are drafted"
    alike = [other for other in jobs if other.task == job.task]
    if len(alike) == 1:
        return _word(job.task)
    same = len([other for other in alike if other.dag == job.dag]) > 1
    return _word(f"{job.dag}_{job.task}" + (f"_{query.line}" if same else ""))


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower() or "job"


def _draft(job: Job) -> str:
    query = job.query
    assert query is not None, "only jobs with a query are drafted"
    table, names = _table_of(job), _names(job.readings)
    parts = [
        '"""' + _safe("\n".join(_heading(job, query, table))) + '\n"""',
        "from streamkeeper import pipelines as dp",
        *(_source(name, reading) for name, reading in names.items()),
        *(
            _by_key(job, query, table, list(names))
            if job.becomes == AUTO_CDC
            else _append(job, query, table, list(names))
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _table_of(job: Job) -> str:
    target = None if job.query is None else job.query.target
    return _word((target or job.task).rstrip("/").rpartition("/")[2].rpartition(".")[2])


def _checkpoint_of(job: Job) -> str:
    return (None if job.query is None else job.query.checkpoint) or _UNKNOWN


def _names(readings: Sequence[Reading]) -> dict[str, Reading]:
    readings_by_name: dict[str, Reading] = {}
    for number, reading in enumerate(readings):
        place = reading.path or reading.options.get("subscribe") or f"source_{number}"
        name = f"{_word(place.rstrip('/').rpartition('/')[2])}_raw"
        readings_by_name[name if name not in readings_by_name else f"{name}_{number}"] = reading
    return readings_by_name


def _heading(job: Job, query: Query, table: str) -> Iterator[str]:
    yield f"Draft: continues {job.name} ({job.application}:{query.line}); {job.becomes}."
    yield ""
    yield from _of_checkpoint(query.checkpoint)
    if query.target and "/" in query.target:
        place = Settings.from_environment().table_path(table)
        if normal_place(query.target) != normal_place(place):
            yield f"Its table is {query.target}, and the flow's would be {place}. To leave it there, set"
            yield f"STREAMKEEPER_TABLE_PATHS={table}={query.target} wherever Streamkeeper runs."
    yield from (f"To do: {hinder}." for hinder in job.hinders)
    name = f"PIPELINE.{table}_flow"
    yield ""
    yield "In this order, with the name of this file for PIPELINE:"
    yield f"1. streamkeeper hold {name} --reason adopt   (or leave its DAG paused)"
    yield f"2. Pause the DAG {job.dag} for good, and wait until its job has ended."
    place = _checkpoint_of(job)
    yield f"3. streamkeeper plan adopt --flow {name} --checkpoint {place} --old-job-is-stopped"
    yield "4. The same with recover instead of plan; then release the flow, and unpause its DAG."


def _of_checkpoint(place: str | None) -> Iterator[str]:
    """Say what is in a checkpoint, as far as it can be read from here."""
    if place is None:
        yield "Its checkpoint is not known from its text."
        return
    try:
        checkpoint = Checkpoint(open_storage(normal_place(place)), "")
        checkpoint.require()
        batch = checkpoint.last_commit()
        yield f"Checkpoint {place}: query {checkpoint.query_id()}, last batch {batch}."
        if batch is not None:
            for key, offset in checkpoint.offsets(batch).sources.items():
                yield f"Source {key}: {describe(offset)}."
        operators = ", ".join(operator.name for operator in checkpoint.operators())
        yield (
            f"State: {operators}: the query below must have the same." if operators else "It keeps no state."
        )
    except StreamkeeperError as error:
        yield f"Its checkpoint could not be read from here: {error}"


def _source(name: str, reading: Reading) -> str:
    options = {
        key: f"{{env:{_word(key).upper()}}}" if is_secret(key) else value or _UNKNOWN
        for key, value in reading.options.items()
        if key.lower() not in _OF_START
    }
    lines = [f"dp.create_source(\n    {name!r},\n    format={reading.format!r},"]
    kind = FORMATS.get(reading.format)
    if reading.path is not None or kind is None or kind.files or kind.table:
        lines.append(f"    path={reading.path or _UNKNOWN!r},")
    if reading.schema is not None:
        lines.append(f"    schema={reading.schema!r},")
    if options:
        lines.append(f"    options={options!r},")
    return "\n".join([*lines, ")"])


def _append(job: Job, query: Query, table: str, sources: list[str]) -> Iterator[str]:
    yield f"dp.create_streaming_table({table!r})"
    every = query.trigger.get("processingTime")
    trigger = f", trigger={every!r}" if every else ""
    yield (
        f"\n@dp.append_flow(name={f'{table}_flow'!r}, target={table!r}, sources={sources!r}{trigger})\n"
        f"def {table}_flow({', '.join(sources)}):\n"
        f"    # The query of {job.application}:{query.line}, from what it reads to what it writes.\n"
        '    raise NotImplementedError("Bring the query of the old job here.")'
    )


def _by_key(job: Job, query: Query, table: str, sources: list[str]) -> Iterator[str]:
    """The recipe for a job that merges by hand: a new table, the old rows once, and the changes."""
    keys, new = list(query.keys) or [_UNKNOWN], f"{table}_by_key"
    yield (
        "# The old table's rows do not say which change they come from, so the flow has a new table.\n"
        "# Its first rows are those of the old one: run that flow once the old job has ended, then adopt.\n"
        f"dp.create_source({f'{table}_old_rows'!r}, format='delta', path={query.target or _UNKNOWN!r})"
    )
    yield f"dp.create_streaming_table({new!r})"
    yield (
        f"\n@dp.temporary_view(sources={sources!r})\n"
        f"def {table}_changes({', '.join(sources)}):\n"
        f"    # What {job.application}:{query.line} makes of them before it calls {query.function}.\n"
        '    raise NotImplementedError("Bring the query of the old job here.")'
    )
    yield (
        f"\ndp.create_auto_cdc_flow(\n    name={f'{table}_old_rows_flow'!r},\n    target={new!r},\n"
        f"    source={f'{table}_old_rows'!r},\n    keys={keys!r},\n    sequence_by=0,\n    once=True,\n)"
    )
    yield (
        f"dp.create_auto_cdc_flow(\n    name={f'{table}_flow'!r},\n    target={new!r},\n"
        f"    source={f'{table}_changes'!r},\n    keys={keys!r},\n"
        f"    sequence_by={_UNKNOWN!r},  # the column that orders the changes of a key\n)"
    )


def _safe(text: str) -> str:
    """Return text that ends no docstring, and escapes nothing in it."""
    return text.replace("\\", "/").replace('"""', "'''")
