"""A Delta table as a source: what its log still holds, which commit was when, and what lies between two
positions. No JVM.

An offset of Spark's (FACTS-spark, "Checkpoint layout") with ``index`` -1 says that all before
``reservoirVersion`` is done; with 0 and more, that files 0 to ``index`` of it are done too; with
``isStartingVersion``, that the table as it was at that version is read first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from streamkeeper.errors import SourceError
from streamkeeper.storage import Storage, open_storage

JsonObject = dict[str, Any]

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.")
_LOG = "_delta_log"
LOOKED_AT = 200
"""Files of unread commits that are looked for."""
BEFORE_ALL = -1
"""The index of "nothing of this version yet", in an offset of source version 1."""


@dataclass(frozen=True)
class History:
    """What a table's log holds: commits ``oldest`` to ``newest`` without a gap, and the versions that have a
    checkpoint.

    ``table_id`` tells a table from one that was made anew at its path; None where no file that is there names
    it.
    """

    path: str
    table_id: str | None
    oldest: int
    newest: int
    checkpoints: tuple[int, ...] = ()

    def holds_from(self, version: int) -> bool:
        """Whether every commit from a version on is there; a version that is still to come counts as
        there.
        """
        return self.oldest <= version <= self.newest + 1

    def holds_snapshot(self, version: int) -> bool:
        """Whether the table as it was at a version can be put together."""
        if not 0 <= version <= self.newest:
            return False
        return version in self.checkpoints or any(
            self.oldest <= base + 1 <= version + 1 for base in (-1, *self.checkpoints)
        )


@dataclass(frozen=True)
class Commit:
    """What one commit did to rows: ``files`` are what it added, in their order, with their rows (None:
    unknown); the paths are relative to the table, or absolute. ``removes`` says that rows were changed or
    deleted, ``has_feed`` that it wrote a change data feed of its own. ``bytes`` is the size of what it
    added.
    """

    version: int
    files: tuple[tuple[str, int | None], ...]
    removes: bool
    has_feed: bool
    bytes: int = 0


@dataclass(frozen=True)
class Between:
    """What lies between two positions: rows (None: unknown, ``why``), files, and the versions that changed
    rows.
    """

    rows: int | None
    files: int
    changing: tuple[int, ...] = ()
    why: str | None = field(default=None)


def read_history(path: str) -> History | None:
    """Look at a table's log; None where there is no table.

    :raises StorageError: it cannot be listed.
    """
    storage = open_storage(path)
    names = storage.names(_LOG)
    commits = {int(match[1]) for match in map(_COMMIT.fullmatch, names) if match}
    checkpoints = sorted({int(match[1]) for match in map(_CHECKPOINT.match, names) if match})
    if not commits and not checkpoints:
        return None
    newest = max([*commits, *checkpoints])
    oldest = newest + 1
    while oldest - 1 in commits:
        oldest -= 1
    return History(path, _table_id(storage, oldest, newest), oldest, newest, tuple(checkpoints))


def require_history(path: str, source: str) -> History:
    """Look at the log of a source's table.

    :raises SourceError: there is no table.
    """
    found = read_history(path)
    if found is None:
        raise SourceError(
            f"The source {source} reads the Delta table at {path}, and there is none. Check the path, or make"
            " the table."
        )
    return found


def offset_before(table_id: str, version: int) -> JsonObject:
    """Give the offset after which a source reads a version and what follows."""
    return {
        "sourceVersion": 1,
        "reservoirId": table_id,
        "reservoirVersion": version,
        "index": BEFORE_ALL,
        "isStartingVersion": False,
    }


def is_gone(offset: JsonObject, history: History) -> str | None:
    """Say why a source cannot go on from an offset; None if it can."""
    version = int(offset["reservoirVersion"])
    if history.table_id is not None and offset["reservoirId"] != history.table_id:
        return (
            f"the table was made anew: its id was {offset['reservoirId']} and is {history.table_id}. What was"
            " unread in the old one is gone"
        )
    if version > history.newest + 1:
        return (
            f"version {version} is to be read next, and the table ends at {history.newest}: it was put back"
            " from an older copy"
        )
    if offset.get("isStartingVersion"):
        if not history.holds_snapshot(version) or not history.holds_from(version + 1):
            return (
                f"the table as it was at version {version} was being read, and the log starts at"
                f" {history.oldest} now"
            )
        return None
    if not history.holds_from(version):
        return (
            f"version {version} is to be read next, and the log starts at {history.oldest} now: the commits"
            " before were cleaned up"
        )
    return None


def next_held(offset: JsonObject, history: History) -> int:
    """Give the version with which a source goes on where what follows its offset is gone: the next that is
    held, or the one to come.
    """
    return min(history.newest + 1, max(history.oldest, int(offset["reservoirVersion"])))


def version_at(history: History, moment_ms: int) -> int:
    """Give the first version that was committed at a moment or later; the one still to come if there is none.

    Times are those by which Delta goes: the commit's own where the table writes them (``inCommitTimestamp``),
    else its file's, made to grow.

    :raises SourceError: the commits of that time were cleaned up.
    """
    storage, last = open_storage(history.path), -1
    own_times = (
        _own_time(storage, history.newest) is not None
    )  # else no commit has one: a table that begins to write them goes on
    for version in range(history.oldest, history.newest + 1):
        last = max(last + 1, _time_of(storage, version, own_times))
        if last >= moment_ms:
            if version == history.oldest > 0:
                raise SourceError(
                    f"The log of {history.path} starts with version {version}, which is younger than that"
                    " moment: which commits came right after it is not known any more. Choose a later"
                    " moment, or earliest."
                )
            return version
    return history.newest + 1


def committed_at(history: History, version: int) -> int:
    """Give when a version was committed, in epoch milliseconds.

    :raises SourceError: its commit was cleaned up.
    """
    if not history.oldest <= version <= history.newest:
        raise SourceError(
            f"The log of {history.path} holds versions {history.oldest} to {history.newest}, and not"
            f" {version}."
        )
    return _time_of(open_storage(history.path), version, own_times=True)


def between(history: History, start: JsonObject, end: JsonObject, skips_changes: bool = False) -> Between:
    """Say what a source reads after one offset and up to another, from the log's own statistics.

    :param skips_changes: the source leaves out commits that change or delete rows.
    """
    first, last = _place(start), _place(end)
    if first >= last:
        return Between(0, 0)
    if start.get("isStartingVersion"):
        return Between(None, 0, why="the table as it was at first is not counted file by file")
    if not history.holds_from(first[0]):
        return Between(
            None, 0, why=f"the log starts at version {history.oldest}, and commits before it are gone"
        )
    rows: int | None = 0
    files, changing = 0, []
    why = None
    for commit in commits(history, first[0], min(last[0], history.newest)):
        if commit.removes and skips_changes:
            continue
        after = first[1] if commit.version == first[0] else BEFORE_ALL
        upto = last[1] if commit.version == last[0] else len(commit.files)
        chosen = commit.files[max(0, after + 1) : max(0, upto + 1)]
        files += len(chosen)
        if commit.removes and chosen:
            changing.append(commit.version)
        counts = [count for _, count in chosen]
        if rows is None or commit.has_feed or None in counts:
            rows, why = None, why or f"version {commit.version} does not say how many rows it brought"
        else:
            rows += sum(count for count in counts if count is not None)
    return Between(rows, files, tuple(changing), why)


def commits(history: History, first: int, last: int) -> Iterator[Commit]:
    """Read the commits of versions, one by one.

    :raises SourceError: one is gone, or no commit.
    """
    storage = open_storage(history.path)
    for version in range(first, last + 1):
        yield _commit(storage, version)


def vacuumed(offset: JsonObject, history: History) -> str | None:
    """Say which files of commits that are yet to be read are gone, looking at the next :data:`LOOKED_AT`;
    None if none is.
    """
    first = int(offset["reservoirVersion"]) + (1 if offset.get("isStartingVersion") else 0)
    gone = missing_files(history, first, LOOKED_AT) if history.holds_from(first) else []
    if not gone:
        return None
    return (
        f"{len(gone)} files of versions from {first} on were removed, as by VACUUM, before they were read,"
        f" such as {gone[0]}"
    )


def missing_files(history: History, first: int, limit: int) -> list[str]:
    """Give files that commits from a version on added and that are not there any more, looking at ``limit``
    files at most.
    """
    storage, looked = open_storage(history.path), 0
    gone: list[str] = []
    for commit in commits(history, first, history.newest):
        if (
            commit.removes or commit.has_feed
        ):  # a source reads such commits by other files, leaves them out, or stops there
            continue
        for path, _ in commit.files:
            looked += 1
            if looked > limit:
                return gone
            if "://" not in path and not path.startswith("/") and storage.modified(path) is None:
                gone.append(path)
    return gone


def _place(offset: JsonObject) -> tuple[int, int]:
    return int(offset["reservoirVersion"]), max(BEFORE_ALL, int(offset["index"]))


def _commit(storage: Storage, version: int) -> Commit:
    files: list[tuple[str, int | None]] = []
    removes = feed = False
    size = 0
    for action in _actions(storage, version):
        if "add" in action and action["add"].get("dataChange", True):
            files.append((unquote(action["add"]["path"]), _rows(action["add"])))
            size += int(action["add"].get("size", 0))
        removes = removes or ("remove" in action and action["remove"].get("dataChange", True))
        feed = feed or "cdc" in action
    return Commit(version, tuple(files), removes, feed, size)


def _actions(storage: Storage, version: int) -> Iterator[JsonObject]:
    name = f"{_LOG}/{version:020d}.json"
    content = storage.read(name)
    if content is None:
        raise SourceError(
            f"{storage.path(name)} is gone: the table's log is being cleaned up, or was damaged. Look again."
        )
    try:
        yield from (json.loads(line) for line in content.splitlines() if line.strip())
    except ValueError as error:
        raise SourceError(
            f"{storage.path(name)} is no commit of a Delta table ({error}). Put it back from a copy."
        ) from error


def _rows(add: JsonObject) -> int | None:
    try:
        counted = json.loads(add.get("stats") or "{}").get("numRecords")
    except ValueError:
        return None
    if counted is None:
        return None
    return int(counted) - int((add.get("deletionVector") or {}).get("cardinality", 0))


def _own_time(storage: Storage, version: int) -> int | None:
    """Give the time that a commit itself has; where it has one, Delta writes it with the first action."""
    first = next(_actions(storage, version), {})
    told = first.get("commitInfo", {}).get("inCommitTimestamp")
    return None if told is None else int(told)


def _time_of(storage: Storage, version: int, own_times: bool) -> int:
    told = _own_time(storage, version) if own_times else None
    if told is not None:
        return told
    modified = storage.modified(f"{_LOG}/{version:020d}.json")
    if modified is None:
        raise SourceError(
            f"{storage.path(f'{_LOG}/{version:020d}.json')} is gone: the table's log is being cleaned up."
            " Look again."
        )
    return int(modified * 1000)


def _table_id(storage: Storage, oldest: int, newest: int) -> str | None:
    """Read a table's id: from the summary that Delta writes beside its newest commit, else from the newest
    commit that names it.
    """
    summary = storage.read(f"{_LOG}/{newest:020d}.crc")
    if summary is not None:
        try:
            return str(json.loads(summary)["metadata"]["id"])
        except (ValueError, KeyError, TypeError):
            pass  # the summary is a convenience of the writer's; the commits rule
    for version in range(newest, oldest - 1, -1):
        for action in _actions(storage, version):
            if "metaData" in action:
                return str(action["metaData"]["id"])
    return None
