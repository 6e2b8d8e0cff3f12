"""Whether input waits for a flow: something that its sources have and its last commit had not. No JVM, nothing is changed.

Files: Spark takes the oldest first, so what is younger than all that the newest entries of the files log name was surely not read, and is
looked up in the whole log only then. A late file with an older time is not seen to wait: that keeps a look cheap, and files that Spark
ignores for their age (``maxFileAge``) from alarming anybody. The rate source has rows as long as time goes by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declarations import Source
from streamkeeper.home import FlowHome
from streamkeeper.manifest import Flow
from streamkeeper.probes import iterate_files, plain_path
from streamkeeper.standing import last_begun

ENOUGH = 1000
"""Files that may wait until the listing of a folder ends early."""


@dataclass(frozen=True)
class Waiting:
    """Whether input waits, and which, in words."""

    there: bool
    said: str = ""


def what_waits(home: FlowHome, flow: Flow) -> Waiting:
    """Look whether a flow has anything to read.

    :raises CheckpointError: its checkpoint's newest entries cannot be read.
    :raises StorageError: a source's folder cannot be listed.
    """
    begun = last_begun(home)
    checkpoint = Checkpoint(home.storage, begun[1].checkpoint) if begun else None
    ends: dict[str, Any] = {}
    if checkpoint is not None:
        planned, last = checkpoint.offset_batches(), checkpoint.last_commit()
        if planned and (last is None or planned[-1] > last):
            return Waiting(True, f"batch {planned[-1]} is planned and not committed")
        ends = checkpoint.offsets(last).sources if last is not None else {}
    for index, source in enumerate(flow.pipeline.sources_of(flow.declaration)):
        key = source.name if source.name in ends or str(index) not in ends else str(index)  # version 1 of the offset log has no names
        found = _waits_in(source, checkpoint, key, ends.get(key))
        if found.there:
            return found
    return Waiting(False)


def _waits_in(source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
    if not source.reads_files:
        return Waiting(True, f"the source {source.name} ({source.format}) has new rows all the time")
    if checkpoint is None or not isinstance(end, dict):
        first = next(iterate_files(source), None)
        return Waiting(False) if first is None else Waiting(True, f"files wait in the source {source.name}, such as {first.path}")
    return _unread_files(source, checkpoint, key, int(end["logOffset"]))


def _unread_files(source: Source, checkpoint: Checkpoint, key: str, upto: int) -> Waiting:
    recent = {plain_path(entry.path): entry.timestamp_ms for entry in checkpoint.files_log(key).newest_entries(upto)}
    youngest = max(recent.values(), default=-1)
    unread: set[str] = set()
    for file in iterate_files(source):
        if file.modified_ms >= youngest and file.path not in recent:
            unread.add(file.path)
            if len(unread) >= ENOUGH:
                break
    if unread:
        for path in _paths(checkpoint.files_log(key).entries(upto)):
            unread.discard(path)
            if not unread:
                break
    if not unread:
        return Waiting(False)
    count = f"{len(unread)} files or more wait" if len(unread) > 1 else "a file waits"
    return Waiting(True, f"{count} in the source {source.name}, such as {min(unread)}")


def _paths(entries: Iterator[FileEntry]) -> Iterator[str]:
    return (plain_path(entry.path) for entry in entries)
