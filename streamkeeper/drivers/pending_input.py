"""Pending input of a flow: data that its sources have and its last commit had not. No JVM, nothing is
changed.

Files: Spark reads the oldest first. So a file younger than all in the newest entries of the files log was
surely not read, and only such files are looked up in the whole log. A late file with an older time is not
found. That keeps the check cheap, and files that Spark ignores for their age (``maxFileAge``) cause no alert.
The rate source has rows as long as time passes.

Kafka: the brokers are asked, for some seconds at most. While they do not answer, no driver can read: that
counts as pending input. A Delta table's log shows whether commits with rows follow the position. A source
that became another kind under its old name cannot be read at all: that counts, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.delta.history import commits, read_history
from streamkeeper.errors import NotAskable, SourceError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.position import last_begun
from streamkeeper.manifest.manifest import Flow
from streamkeeper.sources.files.listing import iterate_files
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import Offsets, records_between

ENOUGH = 1000
"""Pending files after which the listing of a folder ends early."""


@dataclass(frozen=True)
class Waiting:
    """Whether there is pending input, described in ``said``. Input that could not be checked is described,
    too, but does not count.
    """

    there: bool
    said: str = ""


def what_waits(home: FlowHome, flow: Flow) -> Waiting:
    """Return whether a flow has anything to read.

    :param flow: with its sources opened (:mod:`streamkeeper.manifest.environment`).
    :raises CheckpointError: its checkpoint's newest entries cannot be read.
    :raises StorageError: a source's folder cannot be listed.
    """
    begun = last_begun(home)
    checkpoint = Checkpoint(home.storage, begun[1].checkpoint) if begun else None
    ends: dict[str, Any] = {}
    said: list[str] = []
    if checkpoint is not None:
        planned, last = checkpoint.offset_batches(), checkpoint.last_commit()
        if planned and (last is None or planned[-1] > last):
            return Waiting(True, f"batch {planned[-1]} is planned and not committed")
        ends = checkpoint.offsets(last).sources if last is not None else {}
    for index, source in enumerate(flow.pipeline.sources_of(flow.declaration)):
        # Version 1 of the offset log has no names.
        key = source.name if source.name in ends or str(index) not in ends else str(index)
        found = _waits_in(source, checkpoint, key, ends.get(key))
        if found.there:
            return found
        said.append(found.said)
    return Waiting(False, "; ".join(filter(None, said)))


def _waits_in(source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
    misfit = misfit_of(source.format, end)
    if misfit is not None:
        return Waiting(
            True,
            f"the source {source.name} was another kind of source at the last commit, so the flow cannot"
            f" continue: {misfit}",
        )
    if source.format == KAFKA:
        return _unread_records(source, end if end is not None else _initial(checkpoint, key))
    if source.format == DELTA:
        return _unread_commits(source, end)
    if not source.reads_files:
        return Waiting(True, f"the source {source.name} ({source.format}) has new rows all the time")
    if checkpoint is None or not isinstance(end, dict):
        first = next(iterate_files(source), None)
        return (
            Waiting(False)
            if first is None
            else Waiting(True, f"files wait in the source {source.name}, such as {first.path}")
        )
    return _unread_files(source, checkpoint, key, int(end["logOffset"]))


def _unread_files(source: Source, checkpoint: Checkpoint, key: str, upto: int) -> Waiting:
    recent = {
        plain_path(entry.path): entry.timestamp_ms for entry in checkpoint.files_log(key).newest_entries(upto)
    }
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


def _unread_records(source: Source, position: Any) -> Waiting:
    """Return the number of records after a position; an unknown position counts as the beginning."""
    try:
        topics = kafka_client.look_at(source)
    except NotAskable as error:
        return Waiting(False, f"whether records wait in the source {source.name} is unknown: {error}")
    except SourceError as error:
        return Waiting(
            True,
            f"the source {source.name} cannot be inspected, so it can probably not be read either: {error}",
        )
    known: Offsets = position if isinstance(position, dict) else {}
    stands = {topic: {**parts, **known.get(topic, {})} for topic, parts in topics.earliest.items()}
    count = records_between(stands, topics.latest)
    return Waiting(count > 0, f"{count:,} records at most wait in the source {source.name}" if count else "")


def _unread_commits(source: Source, offset: Any) -> Waiting:
    assert source.path is not None, "an opened Delta source has a path"
    try:
        history = read_history(source.path)
        if history is None:
            return Waiting(False)
        first = int(offset["reservoirVersion"]) if isinstance(offset, dict) else 0
        done = (
            int(offset["index"]) + 1
            if isinstance(offset, dict) and not offset.get("isStartingVersion")
            else 0
        )
        for commit in commits(history, max(first, history.oldest), history.newest):
            if len(commit.files) > (max(0, done) if commit.version == first else 0) or commit.has_feed:
                return Waiting(
                    True,
                    f"version {commit.version} to {history.newest} of the table wait in the source"
                    f" {source.name}",
                )
    except SourceError as error:
        return Waiting(
            True,
            f"the source {source.name} cannot be inspected, so it can probably not be read either: {error}",
        )
    return Waiting(False)


def _initial(checkpoint: Checkpoint | None, key: str) -> Any:
    return checkpoint.initial_offsets(key) if checkpoint is not None and key in checkpoint.sources() else None


def _paths(entries: Iterator[FileEntry]) -> Iterator[str]:
    return (plain_path(entry.path) for entry in entries)
