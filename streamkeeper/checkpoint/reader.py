"""Checkpoint of a streaming query. Each file is read on demand; nothing is cached or written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint.damage import Problem, find_problems
from streamkeeper.checkpoint.files_log import FilesLog
from streamkeeper.checkpoint.log_entries import (
    KNOWN_PINS,
    CommitEntry,
    OffsetEntry,
    StateOperator,
    check_version,
    damaged,
    is_number,
    parse_commit,
    parse_initial_offsets,
    parse_offsets,
    parse_operator,
)
from streamkeeper.distribution.versions import SPARK
from streamkeeper.errors import CheckpointError, FileTooLarge
from streamkeeper.storage import LocalStorage, Storage
from streamkeeper.support.json_values import MOST_READ, parse

PARTS = ("metadata", "offsets", "commits", "sources", "state")
"""Names that Spark keeps right below a checkpoint's folder."""


@dataclass(frozen=True)
class Checkpoint:
    """Folder of a checkpoint: ``folder`` is a name in the storage, ``""`` its root."""

    storage: Storage
    folder: str

    def path(self, name: str = "") -> str:
        """Return the full path or URL of the checkpoint, or of a file of it."""
        return self.storage.path(self.name(name))

    def name(self, name: str = "") -> str:
        """Return the name in the storage of a file of the checkpoint."""
        return "/".join(part for part in (self.folder, name) if part)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder of the checkpoint; empty if there is no such folder."""
        return self.storage.names(self.name(folder))

    def read(self, name: str) -> bytes:
        """Read a file of the checkpoint.

        :raises CheckpointError: the file is missing, or larger than such a file can be.
        """
        content = self.read_if_there(name)
        if content is None:
            self.require()
            raise CheckpointError(
                f"{self.path(name)} is missing. Nothing was changed. Restore it from a copy of the"
                " checkpoint, or give the flow a new checkpoint with reset_checkpoint."
            )
        return content

    def read_if_there(self, name: str) -> bytes | None:
        """Read a file of the checkpoint; None if it is missing.

        :raises CheckpointError: it is larger than such a file can be.
        """
        try:
            return self.storage.read(self.name(name), MOST_READ)
        except FileTooLarge as error:
            size = self.storage.size(self.name(name)) or 0
            description = f"has {size:,} bytes, where Spark writes less than {MOST_READ:,}"
            raise damaged(self.path(name), description) from error

    def exists(self) -> bool:
        """Return whether a streaming query has kept its checkpoint here."""
        return not {"metadata", "offsets", "commits"}.isdisjoint(self.names())

    def require(self) -> None:
        """Check that this is a checkpoint.

        :raises CheckpointError: it is not; the message has what was found instead.
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
                self.path("metadata"), "is empty: the process or the machine stopped while it was written"
            )
        check_version(content[:16].decode(errors="replace").partition("\n")[0], self.path("metadata"), ())
        try:
            query_id = parse(content)["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(self.path("metadata"), f'holds {content[:60]!r} instead of {{"id": …}}') from error
        if not isinstance(query_id, str):
            raise damaged(self.path("metadata"), f"has the id {query_id!r}, which is no text")
        return query_id

    def offset_batches(self) -> list[int]:
        """Return the planned batches, ascending."""
        return numbers(self.names("offsets"))

    def commit_batches(self) -> list[int]:
        """Return the committed batches, ascending."""
        return numbers(self.names("commits"))

    def last_commit(self) -> int | None:
        """Return the newest committed batch, or None. Its offsets are the last processed position."""
        return next(reversed(self.commit_batches()), None)

    def committed_at(self, batch: int | None) -> float | None:
        """Return when a batch was committed, in seconds since 1970; None for None, or if that is gone."""
        return None if batch is None else self.storage.modified(self.name(f"commits/{batch}"))

    def offsets(self, batch: int) -> OffsetEntry:
        """Read the end position of a batch in each source.

        :raises CheckpointError: the file is missing, cut off or garbage.
        """
        return parse_offsets(self.read(f"offsets/{batch}"), batch, self.path(f"offsets/{batch}"))

    def commit(self, batch: int) -> CommitEntry:
        """Read the commit of a batch.

        :raises CheckpointError: the file is missing, cut off or garbage.
        """
        return parse_commit(self.read(f"commits/{batch}"), batch, self.path(f"commits/{batch}"))

    def unknown_pins(self) -> str | None:
        """Return, as the end of a sentence, which settings the newest planned batch pins that this Spark does
        not know; None if there are none, or no state, which they are about.

        :raises CheckpointError: the offsets of that batch cannot be read.
        """
        planned = self.offset_batches()
        if not planned or not numbers(self.names("state")):
            return None
        names = sorted(self.offsets(planned[-1]).conf.keys() - KNOWN_PINS)
        return (
            f"pins {', '.join(names)}, which Spark {SPARK} does not know: a newer Spark, or a vendor's, wrote"
            " the state. This one goes on without them, and may find other keys in the state"
            if names
            else None
        )

    def operators(self) -> tuple[StateOperator, ...]:
        """Read the stateful operators with state here, by id. Spark before 3.5 wrote no metadata, so its
        operators are left out.

        :raises CheckpointError: an operator's metadata is damaged.
        """
        files = (self.operator_file(number) for number in numbers(self.names("state")))
        return tuple(parse_operator(self.read(file), self.path(file)) for file in files if file is not None)

    def operator_file(self, operator: int) -> str | None:
        """Return the file of an operator's metadata: the newest ``v2/<batch>`` or ``metadata``, or None."""
        folder = f"state/{operator}/_metadata"
        names = self.names(folder)
        newest = numbers(self.names(f"{folder}/v2"))[-1:] if "v2" in names else []
        return f"{folder}/v2/{newest[0]}" if newest else f"{folder}/metadata" if "metadata" in names else None

    def sources(self) -> tuple[str, ...]:
        """Return the sources with files of their own, by name or number; Delta sources may be missing."""
        sources = [name for name in self.names("sources") if not name.startswith(".")]
        return tuple(
            sorted(sources, key=lambda name: (0, int(name), "") if is_number(name) else (1, 0, name))
        )

    def files_log(self, source: str) -> FilesLog:
        """Return the log of a files source; nothing is read yet. ``source`` is a name of :meth:`sources`.

        :raises CheckpointError: ``source`` cannot be a source's name.
        """
        if not re.fullmatch(r"[^/\0]+", source) or source in (".", ".."):
            raise CheckpointError(
                f"{source!r} names no source. {self.path()} has the sources"
                f" {', '.join(self.sources()) or 'none'}."
            )
        return FilesLog(self.storage, self.name(f"sources/{source}"))

    def keeps_lists(self, source: str) -> bool:
        """Return whether a source keeps lists of processed files here, as far as the newest of them tells."""
        if source not in self.sources():
            return False
        plain, compact = self.files_log(source).batches()
        return bool(compact) or plain[-1:] > [0] or (bool(plain) and self._holds_a_list(source))

    def _holds_a_list(self, source: str) -> bool:
        content = self.storage.read(self.name(f"sources/{source}/0")) or b""
        return content.startswith(b'v1\n{"path":')

    def initial_offsets(self, source: str) -> Any:
        """Read the offsets that a Kafka source started from, or the start time of a rate source (epoch ms);
        None for other sources.

        :raises CheckpointError: the file is cut off or garbage.
        """
        name = f"sources/{source}/0"
        content = self.read_if_there(name)
        return None if content is None else parse_initial_offsets(content, self.path(name))

    def problems(self) -> tuple[Problem, ...]:
        """Return the damage that file names and the newest entries show."""
        return find_problems(self)


def numbers(names: list[str]) -> list[int]:
    """Return the batch numbers among some names, ascending, as Spark's own log does."""
    return sorted(int(name) for name in names if is_number(name))


def _no_checkpoint(checkpoint: Checkpoint) -> str:
    path, names = checkpoint.path(), checkpoint.names()
    advice = (
        "Give the folder that the query has as its checkpointLocation: it holds metadata, offsets and"
        " commits."
    )
    if not names:
        if (
            isinstance(checkpoint.storage, LocalStorage)
            and checkpoint.storage.modified(checkpoint.folder) is not None
        ):
            return f"{path} is an empty folder or a file, not a checkpoint. {advice}"
        return f"There is nothing at {path}. {advice}"
    if "_delta_log" in names:
        return f"{path} is a Delta table, not a checkpoint. {advice}"
    if path.rsplit("/", 1)[-1] in PARTS:
        return f"{path} seems to be a part of a checkpoint. Give the folder above it."
    below = [name for name in names[:50] if Checkpoint(checkpoint.storage, checkpoint.name(name)).exists()]
    hint = f" Checkpoints are right below it: {', '.join(below)}." if below else ""
    return (
        f"{path} is not a checkpoint: it holds"
        f" {', '.join(names[:6])}{', …' if len(names) > 6 else ''}.{hint} {advice}"
    )
