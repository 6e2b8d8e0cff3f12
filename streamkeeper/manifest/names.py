"""Names that flows and pipelines have had, and their folders: a rename moves no file. Whoever wants to know a
file of the state folder lists them first, so the folder's format is beside them.

{state}/ledger/names/000001.json    all renames so far, the newest last; immutable, the highest number counts
{state}/ledger/names/format-000001  a driver of a release ran that writes the folder in this format

A flow stays in the folder of its first name. Its query ids are made from that, so they do not change. Records
under an earlier name (a backup, a ledger, a lock) are found under the current one. So a name is never reused
for another flow or pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamkeeper.errors import StorageError
from streamkeeper.storage import Storage, read_json, to_json
from streamkeeper.support.json_values import read_as
from streamkeeper.support.times import now

FOLDER = "ledger/names"
FORMAT = 1
STATE_FORMAT = 1
"""Format of the whole state folder, for files that say none of their own. A release that writes what an older
one would misread, or a field that it does not know, has the next number.
"""

_MARK = re.compile(r"format-([0-9]{6,})")
_NUMBERED = re.compile(r"([0-9]{6,})\.json")


@dataclass(frozen=True)
class Names:
    """All renames. ``pipelines`` maps a folder to the later names of its pipeline, ``flows`` maps
    ``folder/folder`` to those of its flow; the last one is current.
    """

    pipelines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    number: int = 0

    def folder(self, pipeline: str) -> str:
        """Return the folder of a pipeline, by any name that it ever had."""
        return next((folder for folder, later in self.pipelines.items() if pipeline in later), pipeline)

    def flow_folder(self, pipeline: str, flow: str) -> str:
        """Return a flow's folder below the state folder, by any names that it and its pipeline ever had."""
        below = self.folder(pipeline)
        folders = (
            folder for folder, later in self.flows.items() if flow in later and folder.startswith(f"{below}/")
        )
        return next(folders, f"{below}/{flow}")

    def pipeline_in(self, folder: str) -> str:
        """Return the current name of the pipeline in a folder."""
        return self.pipelines.get(folder, (folder,))[-1]

    def flow_in(self, folder: str) -> str:
        """Return the current name, without its pipeline's, of the flow in a folder below the state folder."""
        return self.flows.get(folder, (folder.rpartition("/")[2],))[-1]

    def present(self, full_name: str) -> str:
        """Return the current full name of a flow by any that it ever had."""
        pipeline, _, flow = full_name.partition(".")
        folder = self.flow_folder(pipeline, flow)
        return f"{self.pipeline_in(folder.partition('/')[0])}.{self.flow_in(folder)}"

    def renamed(self, old: str, new: str) -> Names:
        """Return the names after a rename: of a flow if they are full names, otherwise of a pipeline."""
        if "." not in old:
            folder = self.folder(old)
            return replace(self, pipelines={**self.pipelines, folder: (*self.pipelines.get(folder, ()), new)})
        folder = self.flow_folder(*old.split("."))
        return replace(
            self, flows={**self.flows, folder: (*self.flows.get(folder, ()), new.partition(".")[2])}
        )


def read(storage: Storage) -> Names:
    """Return all renames so far.

    :raises StorageError: the state folder has the format of a newer Streamkeeper.
    """
    file_names = storage.names(FOLDER)
    newest = max((int(match[1]) for name in file_names if (match := _MARK.fullmatch(name))), default=0)
    if newest > STATE_FORMAT:
        raise StorageError(
            f"{storage.path()} has format {newest}; this Streamkeeper reads up to {STATE_FORMAT}. Use the"
            " release that wrote it, or a newer one."
        )
    numbers = [int(match[1]) for name in file_names if (match := _NUMBERED.fullmatch(name))]
    value = read_json(storage, _file(max(numbers))) if numbers else None
    if value is None:
        return Names()
    try:
        renames = {kind: value[kind] for kind in ("pipelines", "flows")}
        return read_as(Names, {**renames, "number": max(numbers)})
    except (TypeError, KeyError) as error:
        raise StorageError(
            f"{storage.path(_file(max(numbers)))} is no record of names: {error}. Restore it from a copy."
        ) from error


def mark_format(storage: Storage) -> None:
    """Note in which format this release writes the state folder."""
    storage.create(f"{FOLDER}/format-{STATE_FORMAT:06d}", b"")


def write(storage: Storage, names: Names, **facts: Any) -> bool:
    """Write the names after one more rename. Return False, without a change, if another rename was first.

    :param facts: further facts to record about the rename.
    """
    value = {"pipelines": names.pipelines, "flows": names.flows, "at": now(), "format": FORMAT, **facts}
    return storage.create(_file(names.number + 1), to_json(value))


def _file(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"
