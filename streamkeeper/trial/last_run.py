"""What the last driver of a generation ran: kept beside the generation, to compare a new declaration with it.

The file is overwritten by each driver that runs something else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from streamkeeper.declare.model import (
    AppendFlow,
    Source,
    View,
    pipeline_from_json,
    pipeline_to_json,
)
from streamkeeper.declare.source_options import TOPICS
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.manifest.import_file import files_of
from streamkeeper.manifest.manifest import Flow
from streamkeeper.storage import read_record, to_json
from streamkeeper.support.times import now


@dataclass(frozen=True)
class LastRun:
    """What a driver ran: the declaration's fingerprint, the places of its sources, hashes of the code of its
    functions, the lines of its normalized logical plan, and its pipeline's declaration and files.

    ``pipeline`` is as declared, made by :func:`streamkeeper.declare.model.pipeline_to_json`; ``files`` are
    texts by their names in the pipelines folder.
    """

    fingerprint: str
    sources: dict[str, str]
    code: tuple[str, ...]
    plan: tuple[str, ...]
    at: str = ""
    pipeline: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def flow(self, name: str) -> Flow:
        """Return the flow as it ran, without its functions."""
        pipeline = pipeline_from_json(self.pipeline)
        declared = pipeline.flow(name)
        assert declared is not None, "it is of the flow that ran"
        return Flow(pipeline, declared, self.fingerprint)

    def put_files(self, folder: Path) -> Path:
        """Write the files into a folder, and return that of the pipeline."""
        for name, text in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode(errors="surrogateescape"))
        return folder / str(self.pipeline["file"])


def read_files(file: Path) -> dict[str, str]:
    """Return the texts of a pipeline file and of the modules beside it that it imports."""
    return {
        str(item.relative_to(file.parent)): item.read_bytes().decode(errors="surrogateescape")
        for item in files_of(file)
    }


def record_of(
    flow: Flow, plan: tuple[str, ...], files: dict[str, str] | None = None, opened: Flow | None = None
) -> LastRun:
    """Return what a driver runs now.

    :param flow: as declared: what an environment fills in is not kept.
    :param files: those that it was imported from, as they were then.
    :param opened: the same flow with its sources opened. Of their options, only places are kept.
    """
    read = flow if opened is None else opened
    places = {source.name: place_of(source) for source in read.sources}
    functions = (*flow.pipeline.inputs(flow.declaration), flow.declaration)
    code = (item.code for item in functions if isinstance(item, View | AppendFlow))
    declared = pipeline_to_json(flow.pipeline)
    return LastRun(
        flow.fingerprint, places, (*code, flow.pipeline.shared), plan, pipeline=declared, files=files or {}
    )


def place_of(source: Source) -> str:
    """Return where a source reads, in words. Brokers are not of it: a topic's id tells it from others."""
    named = [f"{name} {source.option(name)}" for name in TOPICS if source.option(name)]
    return ", ".join([source.format, *([source.path] if source.path else []), *named])


def keep(home: FlowHome, number: int, ran: LastRun) -> None:
    """Write down what the driver of a generation runs, unless that is known."""
    before = read(home, number)
    if before is not None and before.fingerprint != ran.fingerprint:
        # Noted first: a driver that is killed in between is followed by one that finds the same.
        text = f"declaration {ran.fingerprint} runs instead of {before.fingerprint}"
        occasion = [number, before.at, ran.fingerprint]
        events.note(home, Kind.CHANGE_TAKEN, text, occasion, by="driver", generation=number)
    if before is None or replace(before, at="") != ran:
        home.storage.overwrite(home.last_run(number), to_json(asdict(replace(ran, at=now()))))


def read(home: FlowHome, number: int) -> LastRun | None:
    """Return what the last driver of a generation ran; None if nobody wrote it down."""
    way = "Remove it: the next driver writes it again."
    return read_record(home.storage, home.last_run(number), LastRun, "what a driver ran", way)
