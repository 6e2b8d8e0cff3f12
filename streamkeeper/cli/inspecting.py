"""Output of ``streamkeeper inspect``.

For a path only the checkpoint reader is used: no settings, no manifest, no fsspec.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint.damage import ERROR, Problem
from streamkeeper.checkpoint.log_entries import is_whole
from streamkeeper.cli.output import settings_in_use, show
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.health.inspection import Inspection, SourceStand, inspect
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.support.times import describe_age, ms_in_iso

if TYPE_CHECKING:
    from streamkeeper.flows.generations import Generation, Start
    from streamkeeper.manifest.manifest import Flow
    from streamkeeper.observe.observed import Observed


def show_place(place: str, files: bool, as_json: bool) -> None:
    """Print what :func:`inspect_place` finds; exit with 1 if a problem is an error, for use in scripts."""
    value, text = inspect_place(settings_in_use, place, files)
    show(value, as_json, text)
    if any(problem["severity"] == ERROR for problem in value["problems"]):
        sys.exit(1)


def inspect_place(
    settings_factory: Callable[[], Settings], place: str, files: bool
) -> tuple[dict[str, Any], str]:
    """Return a flow's checkpoint, or any checkpoint by path or URL, as a JSON object and as text.

    An argument with a ``/``, or that exists as a folder, is a path; else it is a flow's name.

    :param files: also count the processed files, which takes longer the more there are.
    :raises CheckpointError: there is no checkpoint.
    :raises RequestError: there is no such flow, or it never began.
    """
    if not place:
        raise RequestError(
            "'' is neither a flow nor a path. Give pipeline.flow, or the folder of a checkpoint."
        )
    if "/" in place or os.path.isdir(place):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
        root, folder = _split(place)
        inspection = inspect(open_storage(root), folder, count_files=files)
        return inspection.to_json(), "\n".join(_words(inspection))
    return _inspect_flow(settings_factory(), place, files)


def _split(place: str) -> tuple[str, str]:
    """Return the storage, and the name in it: that of the checkpoint's folder within its parent."""
    scheme, is_url, path = place.partition("://")
    if not is_url:
        root, _, folder = str(Path(place).absolute()).rstrip("/").rpartition("/")
        return root or "/", folder
    path = path.rstrip("/")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) or not path.strip("/"):
        raise RequestError(
            f"{place!r} is no URL of a checkpoint. Give one such as s3://bucket/checkpoints/customers, or a"
            " path."
        )
    above, slash, folder = path.rpartition("/")
    return (f"{scheme}://{above}", folder) if slash else (f"{scheme}://{path}", "")


def _inspect_flow(settings: Settings, name: str, files: bool) -> tuple[dict[str, Any], str]:
    from streamkeeper.checkpoint import Checkpoint
    from streamkeeper.drivers.submit import written_by
    from streamkeeper.flows.files import open_home
    from streamkeeper.manifest.manifest import read_manifest
    from streamkeeper.observe import past_positions
    from streamkeeper.observe.observed import Observed

    flow = read_manifest(settings).find(name)
    home = open_home(settings, flow.full_name)
    observed = Observed(home)
    newest, begun = observed.newest, observed.begun
    if newest is None or begun is None:
        raise _not_begun(flow.full_name, newest)
    generation, start = begun
    inferred = {source.name for source in flow.sources if source.schema is None and source.reads_files}
    classes = written_by(settings)
    try:
        inspection = inspect(home.storage, start.checkpoint, count_files=files)
        inspection = replace(
            inspection,
            flow=flow.full_name,
            generation=start.number,
            schemas=start.schemas,
            problems=(*inspection.problems, *_contradictions(settings, flow, observed)),
        )
    except CheckpointError as error:
        raise CheckpointError(
            f"The flow {flow.full_name} is on generation {start.number}, begun {start.at}, but its"
            f" checkpoint no longer exists: {error} Restore it from a copy, or reset the flow: streamkeeper"
            f" plan reset_checkpoint --flow {flow.full_name}."
        ) from error
    checkpoint, past = Checkpoint(home.storage, start.checkpoint), past_positions.begun(home)
    last = -1 if inspection.last_commit is None else inspection.last_commit
    batches = [batch for batch in checkpoint.offset_batches() if (start.seed_batch or 0) <= batch <= last]
    facts = {
        **inspection.to_json(),
        **({"written_by": classes} if classes else {}),
        "decided_generation": asdict(newest),
        "start": asdict(start),
        "inferred": sorted(inferred & start.schemas.keys()),
        "goes_back_to": {"batches": [*batches[:1], *batches[-1:]], "generations": past},
    }
    lines = [
        f"flow            {flow.full_name} → {flow.declaration.target}",
        *_of_generation(newest, generation, start),
        *(f"{subject + ' by':<15} {name}, on conditional writes" for subject, name in classes.items()),
        *(f"schema          {name}: {schema} (inferred)" for name, schema in start.schemas.items()),
    ]
    if batches:
        lines.append(
            f"goes back to    batches {batches[0]} to {batches[-1]}; generations {', '.join(map(str, past))}"
            " (rewind)"
        )
    return facts, "\n".join([*lines, *_words(inspection)])


def _not_begun(flow: str, newest: Generation | None) -> RequestError:
    state = (
        "never started"
        if newest is None
        else f"has decided on generation {newest.number}, which no driver has started yet"
    )
    return RequestError(
        f"The flow {flow} {state}, so it has no checkpoint to inspect. Start it: its DAG, or"
        f" streamkeeper run {flow}."
    )


def _contradictions(settings: Settings, flow: Flow, observed: Observed) -> Iterator[Problem]:
    """Yield what parks a flow at its next start though its checkpoint is whole: its table, or no state."""
    standing = observed.position(settings.table_path(flow.declaration.target))
    assert standing is not None, "the flow began"
    restore = "Restore the newer one, or reset the flow with reset_checkpoint from another start."
    if standing.is_older_copy:
        yield Problem(
            "",
            f"has planned no batch {standing.last_transaction}, which the table {flow.declaration.target}"
            " has: the checkpoint is an older copy",
            restore,
            ERROR,
        )
    elif standing.missing_in_sink is not None and flow.sink is None:
        yield Problem(
            "",
            f"has committed {standing.missing_in_sink}, which the table {flow.declaration.target} lacks: it"
            " was replaced or restored from an older copy",
            restore,
            ERROR,
        )
    start = standing.start
    if start.operators and standing.last_commit is not None and not standing.checkpoint.operators():
        yield Problem(
            "state",
            f"has nothing of {', '.join(start.operators)}: the state is gone",
            "Restore it from a copy of the checkpoint, or reset the flow with reset_checkpoint.",
            ERROR,
        )


def _of_generation(newest: Generation, generation: Generation, start: Start) -> Iterator[str]:
    """Yield lines about the generation that began last, and about the one that is decided."""
    yield f"generation      {start.number}, since {start.at}"
    if newest.number != start.number:
        yield (
            f"next            generation {newest.number} is decided ({newest.reason}, by {newest.by}), and no"
            " driver has started it yet"
        )
    yield (
        f"why             {generation.reason}, by {generation.by}; start {generation.start.mode}; state"
        f" {_state(start)}"
    )
    if generation.start.checkpoint is not None:
        yield (
            f"adopted         {generation.start.checkpoint}, query {generation.start.query_id}, after its"
            f" batch {start.seed_batch}"
        )


def _state(start: Start) -> str:
    return (start.state or "new") if start.operators else "none"


def _words(inspection: Inspection) -> Iterator[str]:
    yield f"checkpoint      {inspection.path}"
    version = inspection.offset_log_version or "?"
    yield f"query           {inspection.query_id or 'unknown'}, offset log v{version}"
    last, planned, seconds = inspection.last_commit, inspection.in_flight, inspection.last_commit_age_s
    age = "" if seconds is None else f", {describe_age(seconds)} ago"
    yield f"last batch      {'none is committed' if last is None else f'{last}{age}'}"
    yield f"in flight       {'nothing' if planned is None else f'batch {planned}: planned, not committed'}"
    yield f"watermark       {'none' if not inspection.watermark_ms else ms_in_iso(inspection.watermark_ms)}"
    for source in inspection.sources:
        yield from _source(source)
    for operator in inspection.operators:
        yield f"state           {operator.name} (operator {operator.id}), {operator.partitions} partitions"
    if not inspection.operators:
        yield "state           none"
    for problem in inspection.problems:
        file = problem.file or inspection.path
        yield f"{problem.severity:<15} {file} {problem.description}. {problem.advice}"
    if not inspection.problems:
        yield "problems        none found"


def _source(source: SourceStand) -> Iterator[str]:
    files = "" if source.files is None else f", {source.files:,} files"
    yield f"source          {source.name} ({source.kind}): {source.position}{files}"
    if source.in_flight is not None:
        yield f"  in flight     {describe(source.in_flight)}"
    if source.initial is not None:
        # The rate source keeps its start time instead of a position.
        began = ms_in_iso(source.initial) if is_whole(source.initial) else describe(source.initial)
        yield f"  began at      {began}"
