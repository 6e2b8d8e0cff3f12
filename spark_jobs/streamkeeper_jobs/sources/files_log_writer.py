"""Writes a files source's log of processed files into a new checkpoint, one log batch for each replay step.

Spark asks the log for the files of those log batches that a batch of the query covers. Log batches without a
file of their own it finds in the newest compacted file, by the number in each entry (Spark 4.2.0,
FileStreamSourceLog.get). So the newest compacted file is enough, however many steps there are; written batch
by batch, every tenth would repeat all that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint import FileEntry, write_files_log
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Source
from streamkeeper.sources.files.listing import is_pattern, iterate_files
from streamkeeper.sources.replay_steps import Bound, cut_files, own_files
from streamkeeper.storage import LocalStorage, Storage

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from streamkeeper_jobs.sources.job_format import Planting

COMPACT_EVERY = 10
"""Spark's default of ``spark.sql.streaming.fileSource.log.compactInterval``.

Spark derives another interval from the number of the first compacted file.
"""


@dataclass(frozen=True)
class FilesLog:
    """A files log to be written.

    ``folder`` is its name in the state storage, ``base`` the URL of the source's folder, with a ``/``.
    """

    folder: str
    source: Source
    base: str
    entries: Callable[[], Iterable[FileEntry]]

    def within(self) -> Iterator[FileEntry]:
        """Return the files within the source's folder.

        Others, from before its path was changed, can never be found there again.
        """
        # The URL has the signs of a pattern quoted, all but the star.
        anywhere = is_pattern(str(self.source.path))
        return (entry for entry in self.entries() if anywhere or entry.path.startswith(self.base))


def write_in_steps(storage: Storage, log: FilesLog, bound: Bound | None, made_of: Hash) -> list[Any]:
    """Write a files log and return the source's offset after each step; without files, write nothing.

    :param bound: of a step; None puts all files into one.
    :param made_of: updated with all that is written.
    """
    cuts = _cuts(log, bound) if bound is not None else []
    steps = max(1, len(cuts))
    if not _write_all(storage, log, steps, _Counted(_numbered(log.within(), cuts), made_of)):
        return []
    return [{"logOffset": number} for number in range(steps)]


def write_as_it_came(storage: Storage, log: FilesLog, into: Planting) -> list[Any]:
    """Write a files log whose batches are those of the old one, and return the offsets that cut what was read
    up to the first of the batches that follow one by one.
    """
    assert into.bound is not None, "batches of old are a history"
    file_sizes = {file.path: file.size for file in iterate_files(log.source)}
    sizes: dict[int, int] = {}
    for entry in log.entries():
        sizes[entry.batch] = sizes.get(entry.batch, 0) + file_sizes.get(plain_path(entry.path), 0)
    last, first = max(sizes, default=-1), -1 if into.first is None else int(into.first["logOffset"])
    _write_all(storage, log, last + 1, _Counted(log.within(), into.made_of))
    before = cut_files((sizes.get(number, 0) for number in range(first + 1)), into.bound)
    return [{"logOffset": end - 1} for end in before]


def _write_all(storage: Storage, log: FilesLog, steps: int, entries: _Counted) -> int:
    """Write entries in the order of their batches, of which there are ``steps``; return how many they are.
    Without any, nothing is written.
    """
    compacted = steps - steps % COMPACT_EVERY

    def part(entry: FileEntry) -> str:
        return f"{compacted - 1}.compact" if entry.batch < compacted else str(entry.batch)

    names = [f"{compacted - 1}.compact"] if compacted else []
    empty = {*names, *map(str, range(compacted, steps))}
    for name, group in groupby(entries, part):
        _write(storage, f"{log.folder}/{name}", group)
        empty.discard(name)
    for name in empty if entries.count else ():
        _write(storage, f"{log.folder}/{name}", ())
    return entries.count


def _write(storage: Storage, name: str, entries: Iterable[FileEntry]) -> None:
    """Write one file of a files log; on a local disk, piece by piece."""
    if isinstance(storage, LocalStorage):
        target = Path(storage.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(write_files_log(entries))
    else:
        storage.overwrite(name, b"".join(write_files_log(entries)))


def _cuts(log: FilesLog, bound: Bound) -> list[int]:
    """Cut the files by their present sizes; files whose loss was accepted count as empty."""
    sizes = {file.path: file.size for file in iterate_files(log.source)}
    return cut_files(
        (sizes.get(plain_path(entry.path), 0) for entry in log.within()), bound, own_files(log.source)
    )


def _numbered(entries: Iterable[FileEntry], cuts: list[int]) -> Iterator[FileEntry]:
    step = 0
    for count, entry in enumerate(entries):
        while step < len(cuts) - 1 and count >= cuts[step]:
            step += 1
        yield replace(entry, batch=step)


class _Counted:
    """Counts entries, and adds them to a hash, as they pass."""

    def __init__(self, entries: Iterable[FileEntry], made_of: Hash) -> None:
        self._entries, self._made_of, self.count = entries, made_of, 0

    def __iter__(self) -> Iterator[FileEntry]:
        for entry in self._entries:
            self.count += 1
            self._made_of.update(f"{entry.path} {entry.timestamp_ms} {entry.batch}\n".encode())
            yield entry
