"""Side flow: a flow's declaration under another name, whose generations build a table beside its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamkeeper.declare.model import Pipeline, Source
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import path_of
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings

_MARK = "__rebuild_"


_FOLDER = "rebuild-"


_LEFT_OUT = frozenset(("cleansource", "sourcearchivedir"))
"""Options of a source that remove or move files once read: the current flows may not have read them yet."""


def mark_of(recovery_id: str) -> str:
    """Return the mark in all names that a recovery builds."""
    return recovery_id[-8:]


def name_of(name: str, recovery_id: str) -> str:
    """Return the side name of a table or a flow."""
    return f"{name}{_MARK}{mark_of(recovery_id)}"


def is_side_flow(flow: str) -> bool:
    """Return whether a flow's name is a side flow's."""
    return _MARK in flow


@dataclass(frozen=True)
class SideHome(FlowHome):
    """Files of a side flow. ``owner`` is the declared flow, whose checkpoints folder also holds those of the
    side flow; ``mark`` is the recovery's mark.
    """

    owner: str
    mark: str

    def checkpoint(self, number: int, epoch: int) -> str:
        root = FlowHome(self.storage, self.pipeline, self.owner).root
        return f"{root}/checkpoints/{_FOLDER}{self.mark}-{number:06d}-{epoch:06d}"


def side_home(home: FlowHome, recovery_id: str) -> SideHome:
    """Return the files of the side flow of a declared flow."""
    return SideHome(
        home.storage, home.pipeline, name_of(home.flow, recovery_id), home.flow, mark_of(recovery_id)
    )


def derive(settings: Settings, pipeline: Pipeline, table: str, recovery_id: str) -> list[Flow]:
    """Return the side flows of a table: those that write it, with the same sources, views and semantics, into
    another table.

    As in a full refresh, they read their sources from the beginning, whatever start these declare. They
    remove nothing there.

    :param pipeline: as imported, with its functions.
    """
    name = name_of(table, recovery_id)
    tables = tuple(
        replace(item, name=name, registered_as=None, column_comments={})
        for item in pipeline.tables
        if item.name == table
    )
    flows = tuple(
        replace(flow, name=name_of(flow.name, recovery_id), target=name)
        for flow in pipeline.flows
        if flow.target == table
    )
    sources = tuple(_from_the_beginning(source, settings) for source in pipeline.sources)
    beside = replace(pipeline, tables=tables, flows=flows, sources=sources, shared_driver=False)
    return [Flow(beside, flow, fingerprint(beside, flow)) for flow in flows]


def _from_the_beginning(source: Source, settings: Settings) -> Source:
    options = {name: value for name, value in source.options.items() if name.lower() not in _LEFT_OUT}
    path = path_of(source, settings)
    return replace(source, options=options, path=path, table=None, start="earliest")
