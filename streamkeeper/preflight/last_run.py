"""What the last driver of a generation ran: kept beside the generation, to compare a new declaration with it.

The file is overwritten by each driver that runs something else. A generation that only drivers of an earlier
release ran has none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from streamkeeper.declare.model import AppendFlow, Source, View
from streamkeeper.flows.files import FlowHome
from streamkeeper.json_values import read_as
from streamkeeper.manifest.manifest import Flow
from streamkeeper.storage import read_json, to_json
from streamkeeper.times import now


@dataclass(frozen=True)
class LastRun:
    """What a driver ran: the declaration's fingerprint, the places of its sources, hashes of the code of its
    functions, and the lines of its normalized logical plan.
    """

    fingerprint: str
    sources: dict[str, str]
    code: tuple[str, ...]
    plan: tuple[str, ...]
    at: str = ""


def of(flow: Flow, plan: tuple[str, ...]) -> LastRun:
    """Return what a driver runs now.

    :param flow: with its sources opened. Of their options, only places are kept.
    """
    places = {source.name: place_of(source) for source in flow.pipeline.sources_of(flow.declaration)}
    functions = (*flow.pipeline.inputs(flow.declaration), flow.declaration)
    code = (item.code for item in functions if isinstance(item, View | AppendFlow))
    return LastRun(flow.fingerprint, places, (*code, flow.pipeline.shared), plan)


def place_of(source: Source) -> str:
    """Return where a source reads, in words."""
    named = [
        f"{name} {source.options[name]}"
        for name in ("subscribe", "subscribePattern", "assign", "kafka.bootstrap.servers")
        if name in source.options
    ]
    return ", ".join([source.format, *([source.path] if source.path else []), *named])


def keep(home: FlowHome, number: int, ran: LastRun) -> None:
    """Write down what the driver of a generation runs, unless that is known."""
    before = read(home, number)
    if before is None or replace(before, at="") != ran:
        home.storage.overwrite(home.last_run(number), to_json(asdict(replace(ran, at=now()))))


def read(home: FlowHome, number: int) -> LastRun | None:
    """Return what the last driver of a generation ran; None if nobody wrote it down."""
    found: dict[str, Any] | None = read_json(home.storage, home.last_run(number))
    return None if found is None else read_as(LastRun, found)
