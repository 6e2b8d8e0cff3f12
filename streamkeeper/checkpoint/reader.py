"""A checkpoint of a streaming query, read file by file as it is asked for. Nothing is cached and nothing is
ever written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint.damage import Problem, find_problems
from streamkeeper.checkpoint.files_log import FilesLog
from streamkeeper.checkpoint.log_entries import (
    CommitEntry,
    OffsetEntry,
    StateOperator,
    damaged,
    is_number,
    parse_commit,
    parse_initial_offsets,
    parse_offsets,
    parse_operator,
)
from streamkeeper.errors import CheckpointError
from streamkeeper.storage import LocalStorage, Storage

PARTS = ("metadata", "offsets", "commits", "sources", "state")
"""What Spark keeps right below a checkpoint's folder."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder: ``folder`` is a name in the storage, ``""`` its root."""

    storage: Storage
    folder: str

    def path(self, name: str = "") -> str:
        """Give the full path or URL of the checkpoint, or of a file of it."""
        return self.storage.path(self.name(name))

    def name(self, name: str = "") -> str:
        """Give the name in the storage of a file of the checkpoint."""
        return "/".join(part for part in (self.folder, name) if part)

    def names(self, folder: str = "") -> list[str]:
        """List a folder of the checkpoint; nothing if it is not there."""
        return self.storage.names(self.name(folder))

    def read(self, name: str) -> bytes:
        """Read a file of the checkpoint.

        :raises CheckpointError: it is not there.
        """
        content = self.storage.read(self.name(name))
        if content is None:
            self.require()
            raise CheckpointError(
                f"{self.path(name)} is missing. Nothing was changed. Put it back from a copy of the"
                " checkpoint, or start the flow on a new checkpoint with reset_checkpoint."
            )
        return content

    def exists(self) -> bool:
        """Tell whether a streaming query has kept its checkpoint here."""
        return not {"metadata", "offsets", "commits"}.isdisjoint(self.names())

    def require(self) -> None:
        """Make sure that this is a checkpoint.

        :raises CheckpointError: it is none; the message says what is there instead.
        """
        if not self.exists():
            raise CheckpointError(_no_checkpoint(self))

    def query_id(self) -> str:
        """Read the id of the streaming query.

        :raises CheckpointError: ``metadata`` is missing or damaged.
        """
        content = self.read("metadata")
        if not content:
            raise damaged(
                self.path("metadata"), "is empty: the process or the machine went down while it was written"
            )
        try:
            found = json.loads(content)["id"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(self.path("metadata"), f'holds {content[:60]!r} instead of {{"id": …}}') from error
        if not isinstance(found, str):
            raise damaged(self.path("metadata"), f"has the id {found!r}, which is no text")
        return found

    def offset_batches(self) -> list[int]:
        """List the batches that were planned, lowest first."""
        return numbers(self.names("offsets"))

    def commit_batches(self) -> list[int]:
        """List the batches that were committed, lowest first."""
        return numbers(self.names("commits"))

    def last_commit(self) -> int | None:
        """Give the newest committed batch: the last processed position is its offsets. None if there is
        none.
        """
        return next(reversed(self.commit_batches()), None)

    def offsets(self, batch: int) -> OffsetEntry:
        """Read up to where a batch reads.

        :raises CheckpointError: the file is missing, cut off or garbage.
        """
        return parse_offsets(self.read(f"offsets/{batch}"), batch, self.path(f"offsets/{batch}"))

    def commit(self, batch: int) -> CommitEntry:
        """Read a batch's commit.

        :raises CheckpointError: the file is missing, cut off or garbage.
        """
        return parse_commit(self.read(f"commits/{batch}"), batch, self.path(f"commits/{batch}"))

    def operators(self) -> tuple[StateOperator, ...]:
        """Read which stateful operators have state here, by their ids. Those of Spark before 3.5 left no
        metadata and are not told.

        :raises CheckpointError: an operator's metadata is damaged.
        """
        files = (self.operator_file(number) for number in numbers(self.names("state")))
        return tuple(parse_operator(self.read(file), self.path(file)) for file in files if file is not None)

    def operator_file(self, operator: int) -> str | None:
        """Find an operator's metadata: ``metadata``, or the newest of ``v2/<batch>``; None if there is
        none.
        """
        folder = f"state/{operator}/_metadata"
        found = self.names(folder)
        newest = numbers(self.names(f"{folder}/v2"))[-1:] if "v2" in found else []
        return f"{folder}/v2/{newest[0]}" if newest else f"{folder}/metadata" if "metadata" in found else None

    def sources(self) -> tuple[str, ...]:
        """List the sources that keep something of their own: by name (named sources) or number. Delta sources
        need not be among them.
        """
        found = [name for name in self.names("sources") if not name.startswith(".")]
        return tuple(sorted(found, key=lambda name: (0, int(name), "") if is_number(name) else (1, 0, name)))

    def files_log(self, source: str) -> FilesLog:
        """Give the log of a files source; nothing is read yet. ``source`` is a name of :meth:`readers`.

        :raises CheckpointError: it can be no source's name.
        """
        if not re.fullmatch(r"[^/\0]+", source) or source in (".", ".."):
            raise CheckpointError(
                f"{source!r} names no source. {self.path()} has the sources"
                f" {', '.join(self.sources()) or 'none'}."
            )
        return FilesLog(self.storage, self.name(f"sources/{source}"))

    def initial_offsets(self, source: str) -> Any:
        """Read what a Kafka source started from, or when a rate source started (epoch ms); None where the
        source keeps neither.

        :raises CheckpointError: the file is cut off or garbage.
        """
        name = f"sources/{source}/0"
        content = self.storage.read(self.name(name))
        return None if content is None else parse_initial_offsets(content, self.path(name))

    def problems(self, deep: bool = False) -> tuple[Problem, ...]:
        """Find every damage that names and the newest entries show; ``deep`` reads every entry, which takes
        longer the more there are.
        """
        return find_problems(self, deep)


def numbers(names: list[str]) -> list[int]:
    """Give the names that are batch numbers, lowest first, as Spark's own log does."""
    return sorted(int(name) for name in names if is_number(name))


def _no_checkpoint(checkpoint: Checkpoint) -> str:
    path, found = checkpoint.path(), checkpoint.names()
    asked = (
        "Give the folder that the query has as its checkpointLocation: it holds metadata, offsets and"
        " commits."
    )
    if not found:
        if (
            isinstance(checkpoint.storage, LocalStorage)
            and checkpoint.storage.modified(checkpoint.folder) is not None
        ):
            return f"{path} is an empty folder or a file, no checkpoint. {asked}"
        return f"There is nothing at {path}. {asked}"
    if "_delta_log" in found:
        return f"{path} is a Delta table, no checkpoint. {asked}"
    if path.rsplit("/", 1)[-1] in PARTS:
        return f"{path} seems to be a part of a checkpoint. Give the folder above it."
    below = [name for name in found[:50] if Checkpoint(checkpoint.storage, checkpoint.name(name)).exists()]
    hint = f" Checkpoints are right below it: {', '.join(below)}." if below else ""
    return (
        f"{path} is no checkpoint: it holds {', '.join(found[:6])}{', …' if len(found) > 6 else ''}.{hint}"
        f" {asked}"
    )
