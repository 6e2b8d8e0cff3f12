"""Delta table as a source, read without a JVM: retained commits, their times, the data between two positions.

In an offset of Delta's source (``DeltaSourceOffset``) ``index`` -1 means that everything before
``reservoirVersion`` is done. An ``index`` from 0 on means that its files 0 to ``index`` are done too. With
``isStartingVersion``, the table as of that version is read first.

What reads commits raises :class:`SourceError` where one is missing or damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

from streamkeeper.delta.log import COMMIT, LOG, action_in, rows_of
from streamkeeper.errors import CheckpointError, SourceError
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.amounts import sum_known

JsonObject = dict[str, Any]

_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.")
LOOKED_AT = 200
"""Files of unread commits that are checked for existence."""
_AT_ONCE = 16
BEFORE_ALL = -1
"""Index of "nothing of this version yet", in an offset of source version 1."""


@dataclass(frozen=True)
class History:
    """Content of a table's log: commits ``oldest`` to ``newest`` without a gap, and the versions with a
    checkpoint.

    ``table_id`` differs after the table was replaced at its path; None if no remaining file names it.
    ``missing`` is the commit before ``oldest`` where older ones are there: no clean-up leaves such a gap.
    """

    path: str
    table_id: str | None
    oldest: int
    newest: int
    checkpoints: tuple[int, ...] = ()
    missing: int | None = None

    @property
    def beginning(self) -> str:
        """Where the log begins, in words, and why there."""
        if self.missing is None:
            return f"the log starts at {self.oldest} now: the commits before were cleaned up"
        return (
            f"the log has no commit {self.missing}, though older ones are there: its file was lost. Put it"
            " back, if there is a copy"
        )

    def holds_from(self, version: int) -> bool:
        """Whether every commit from a version on exists; a version still to come counts as existing."""
        return self.oldest <= version <= self.newest + 1

    def holds_snapshot(self, version: int) -> bool:
        """Whether the table as of a version can be rebuilt."""
        if not 0 <= version <= self.newest:
            return False
        return version in self.checkpoints or any(
            self.oldest <= base + 1 <= version + 1 for base in (-1, *self.checkpoints)
        )


@dataclass(frozen=True)
class Commit:
    """Changes of rows by one commit.

    ``files`` are the added files in their order, each with its rows (None: unknown); paths are relative to
    the table, or absolute. ``removed`` are the files whose rows were changed or deleted, ``feed`` those of a
    change data feed that it wrote of its own. ``sizes`` are the bytes of the added files.
    """

    version: int
    files: tuple[tuple[str, int | None], ...]
    removed: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def new_rows(self) -> int | None:
        """Rows of the files that it made, rows that were only written again among them; None if unknown.

        A file that it both removes and adds was there before, and only had rows marked as deleted.
        """
        return sum_known([rows for path, rows in self.files if path not in self.removed])

    @property
    def removes(self) -> bool:
        """Whether rows were changed or deleted."""
        return bool(self.removed)

    @property
    def has_feed(self) -> bool:
        """Whether it wrote a change data feed of its own."""
        return bool(self.feed)

    def read_from(self, change_feed: bool) -> tuple[str, ...]:
        """Return the files that a source reads of it: none where it skips such commits, or stops there.

        A change feed without files of its own is told from the added and the removed ones (source:
        CDCReaderImpl).
        """
        added = tuple(path for path, _ in self.files)
        if change_feed:
            return self.feed or (*added, *self.removed)
        return () if self.removes or self.has_feed else added

    @property
    def bytes(self) -> int:
        """Size of the added files."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Between:
    """Data between two positions: rows (None: unknown, by ``reason``), files, versions that changed rows."""

    rows: int | None
    files: int
    changing: tuple[int, ...] = ()
    reason: str | None = field(default=None)


def read_history(path: str) -> History | None:
    """Read the history of a table; None if there is no table.

    :raises StorageError: the log cannot be listed.
    """
    storage = open_storage(path)
    names = storage.names(LOG)
    commits = {int(match[1]) for match in map(COMMIT.fullmatch, names) if match}
    checkpoints = sorted({int(match[1]) for match in map(_CHECKPOINT.match, names) if match})
    if not commits and not checkpoints:
        return None
    newest = max([*commits, *checkpoints])
    oldest = newest + 1
    while oldest - 1 in commits:
        oldest -= 1
    missing = oldest - 1 if min(commits, default=oldest) < oldest - 1 else None
    return History(path, _table_id(storage, oldest, newest), oldest, newest, tuple(checkpoints), missing)


def require_history(path: str, source: str) -> History:
    """Read the history of a source's table.

    :raises SourceError: there is no table.
    """
    history = read_history(path)
    if history is None:
        raise SourceError(
            f"The source {source} reads the Delta table at {path}, and there is none. Check the path, or make"
            " the table."
        )
    return history


def offset_before(table_id: str, version: int) -> JsonObject:
    """Return the offset from which a source reads a version and all later ones."""
    return {
        "sourceVersion": 1,
        "reservoirId": table_id,
        "reservoirVersion": version,
        "index": BEFORE_ALL,
        "isStartingVersion": False,
    }


def is_gone(offset: JsonObject, history: History) -> str | None:
    """Return why a source cannot continue from an offset; None if it can."""
    version = int(offset["reservoirVersion"])
    if history.table_id is not None and offset["reservoirId"] != history.table_id:
        return (
            f"the table was recreated: its id was {offset['reservoirId']} and is {history.table_id}. Its"
            " unread rows are lost"
        )
    if version > history.newest + 1:
        return (
            f"version {version} is to be read next, and the table ends at {history.newest}: it was restored"
            " from an older copy"
        )
    if offset.get("isStartingVersion"):
        if not history.holds_snapshot(version) or not history.holds_from(version + 1):
            return f"the table as it was at version {version} was being read, and {history.beginning}"
        return None
    if not history.holds_from(version):
        return f"version {version} is to be read next, and {history.beginning}"
    return None


def next_held(offset: JsonObject, history: History) -> int:
    """Return the version at which a source continues after data loss: the next held, or the one to come."""
    return min(history.newest + 1, max(history.oldest, int(offset["reservoirVersion"])))


def version_at(history: History, moment_ms: int) -> int:
    """Return the first version committed at a moment (epoch milliseconds) or later; the one to come if there
    is none.

    Times are Delta's own: that of the commit if the table writes them (``inCommitTimestamp``), otherwise that
    of its file, made to increase.

    :raises SourceError: the commits of that time were cleaned up.
    """
    storage, last = open_storage(history.path), -1
    # A table that writes commit times never stops: without one in the newest commit, none has one.
    own_times = _own_time(storage, history.newest) is not None
    for version in range(history.oldest, history.newest + 1):
        last = max(last + 1, _time_of(storage, version, own_times))
        if last >= moment_ms:
            if version == history.oldest > 0:
                raise SourceError(
                    f"The log of {history.path} starts with version {version}, which is newer than that time,"
                    " so the first commits after it are no longer known. Choose a later time, or earliest."
                )
            return version
    return history.newest + 1


def committed_at(history: History, version: int) -> int:
    """Return the time of a version's commit, in epoch milliseconds.

    :raises SourceError: the commit is not in the log.
    """
    if not history.oldest <= version <= history.newest:
        raise SourceError(
            f"The log of {history.path} holds versions {history.oldest} to {history.newest}, and not"
            f" {version}."
        )
    return _time_of(open_storage(history.path), version, own_times=True)


def between(history: History, start: JsonObject, end: JsonObject, skips_changes: bool = False) -> Between:
    """Return the data that a source reads after one offset and up to another, by the log's own statistics.

    :param skips_changes: the source skips commits that change or delete rows.
    """
    first, last = _place(start), _place(end)
    if first >= last:
        return Between(0, 0)
    if start.get("isStartingVersion"):
        return Between(None, 0, reason="the table as it was at first is not counted file by file")
    if not history.holds_from(first[0]):
        return Between(
            None, 0, reason=f"the log starts at version {history.oldest}, and commits before it are gone"
        )
    rows: int | None = 0
    files, changing = 0, []
    reason = None
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
            rows, reason = None, reason or f"version {commit.version} does not say how many rows it brought"
        else:
            rows += sum(count for count in counts if count is not None)
    return Between(rows, files, tuple(changing), reason)


@dataclass(frozen=True)
class Skipped:
    """Commits that ``skipChangeCommits`` passed over; ``rows`` are an upper bound, None if unknown."""

    versions: tuple[int, ...]
    rows: int | None

    def __str__(self) -> str:
        """Return them in words."""
        first, last = self.versions[0], self.versions[-1]
        commits = "1 commit" if len(self.versions) == 1 else f"{len(self.versions):,} commits"
        version_range = f"version {first}" if first == last else f"versions {first} to {last}"
        rows = "an unknown number of rows" if self.rows is None else f"at most {self.rows:,} rows"
        return (
            f"{commits} ({version_range}) that changed or deleted rows, with {rows} added or changed in them"
        )


def skipped(history: History, start: JsonObject | None, end: JsonObject) -> Skipped | None:
    """Return what a source that skips commits which change rows passes over between two offsets; None if it
    passes over none.

    :param start: None where the source begins: with the whole table, or at a declared start.
    :raises SourceError: a commit is missing or damaged.
    """
    if start is None:
        return None
    first, last = _place(start), _place(end)
    from_version = first[0] if first[1] == BEFORE_ALL and not start.get("isStartingVersion") else first[0] + 1
    to_version = last[0] if last[1] > BEFORE_ALL and not end.get("isStartingVersion") else last[0] - 1
    candidates = commits(history, max(from_version, history.oldest), min(to_version, history.newest))
    passed = [commit for commit in candidates if commit.removes]
    if not passed:
        return None
    versions = tuple(commit.version for commit in passed)
    return Skipped(versions, sum_known([commit.new_rows for commit in passed]))


def with_new_rows(history: History, first: int, last: int, skips_changes: bool) -> Iterator[Commit]:
    """Yield the commits among some versions that added or changed rows; of a source that skips commits which
    change rows only those.
    """
    for commit in commits(history, first, last, _AT_ONCE):
        if commit.new_rows != 0 and (commit.removes or not skips_changes):
            yield commit


def commits(history: History, first: int, last: int, at_once: int = 1) -> Iterator[Commit]:
    """Yield the commits of versions ``first`` to ``last``, one by one.

    :param at_once: how many are read together, for whoever wants all of them.
    :raises SourceError: a commit is missing or damaged.
    """
    storage = open_storage(history.path)
    versions = iter(range(first, last + 1))
    with ThreadPoolExecutor(at_once) as pool:
        while group := list(islice(versions, at_once)):
            yield from pool.map(lambda version: _commit(storage, version), group)


def vacuumed(offset: JsonObject, history: History, change_feed: bool = False) -> str | None:
    """Return which of the next :data:`LOOKED_AT` files of unread commits were removed; None if none was."""
    first = int(offset["reservoirVersion"]) + (1 if offset.get("isStartingVersion") else 0)
    gone = missing_files(history, first, LOOKED_AT, change_feed) if history.holds_from(first) else []
    if not gone:
        return None
    return (
        f"{len(gone)} files of versions from {first} on were removed, as by VACUUM, before they were read,"
        f" such as {gone[0]}"
    )


def missing_files(history: History, first: int, limit: int, change_feed: bool = False) -> list[str]:
    """Return missing files that a source reads from a version on; at most ``limit`` files are checked."""
    storage = open_storage(history.path)
    paths = (
        path
        for commit in commits(history, first, history.newest)
        for path in commit.read_from(change_feed)
        if "://" not in path and not path.startswith("/")
    )
    return [path for path in islice(paths, limit) if storage.modified(path) is None]


def _place(offset: JsonObject) -> tuple[int, int]:
    return int(offset["reservoirVersion"]), max(BEFORE_ALL, int(offset["index"]))


def _commit(storage: Storage, version: int) -> Commit:
    files: list[tuple[str, int | None]] = []
    sizes: list[int] = []
    removed, feed = [], []
    for action in _actions(storage, version):
        if "add" in action and action["add"].get("dataChange", True):
            files.append((unquote(action["add"]["path"]), rows_of(action["add"])))
            sizes.append(int(action["add"].get("size", 0)))
        elif "remove" in action and action["remove"].get("dataChange", True):
            removed.append(unquote(action["remove"]["path"]))
        elif "cdc" in action:
            feed.append(unquote(action["cdc"]["path"]))
    return Commit(version, tuple(files), tuple(removed), tuple(feed), tuple(sizes))


def _actions(storage: Storage, version: int) -> Iterator[JsonObject]:
    name = f"{LOG}/{version:020d}.json"
    content = storage.read(name)
    if content is None:
        raise SourceError(
            f"{storage.path(name)} no longer exists: the table's log is being cleaned up, or was damaged."
            " Try again."
        )
    try:
        yield from (action_in(storage, version, line) for line in content.splitlines() if line.strip())
    except CheckpointError as error:
        reason = error.__cause__
        raise SourceError(
            f"{storage.path(name)} is not a commit of a Delta table ({reason}). Restore it from a copy."
        ) from error


def _own_time(storage: Storage, version: int) -> int | None:
    """Return a commit's own time in epoch milliseconds, or None."""
    first = next(_actions(storage, version), {})
    # Delta writes the time with the first action.
    timestamp = first.get("commitInfo", {}).get("inCommitTimestamp")
    return None if timestamp is None else int(timestamp)


def _time_of(storage: Storage, version: int, own_times: bool) -> int:
    own_time = _own_time(storage, version) if own_times else None
    if own_time is not None:
        return own_time
    modified = storage.modified(f"{LOG}/{version:020d}.json")
    if modified is None:
        raise SourceError(
            f"{storage.path(f'{LOG}/{version:020d}.json')} no longer exists: the table's log is being"
            " cleaned up. Try again."
        )
    return int(modified * 1000)


def _table_id(storage: Storage, oldest: int, newest: int) -> str | None:
    """Return a table's id: from the summary beside its newest commit, else from the newest commit with it."""
    summary = storage.read(f"{LOG}/{newest:020d}.crc")
    if summary is not None:
        try:
            return str(json.loads(summary)["metadata"]["id"])
        except (ValueError, KeyError, TypeError):
            pass  # writers need not write a valid summary; the commits count
    for version in range(newest, oldest - 1, -1):
        for action in _actions(storage, version):
            if "metaData" in action:
                return str(action["metaData"]["id"])
    return None
