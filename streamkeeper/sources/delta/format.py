"""A Delta table as a format of source."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.delta.history import (
    Commit,
    History,
    commits,
    committed_at,
    is_gone,
    read_history,
    require_history,
    with_new_rows,
)
from streamkeeper.delta.protocol import why_not_by_path
from streamkeeper.delta.summary import read_summary
from streamkeeper.errors import RequestError, SourceError, StorageError
from streamkeeper.sources.base.format import (
    Case,
    Lag,
    PlannedFormat,
    Reading,
    SourceMove,
    Waiting,
    age_of,
    not_begun,
    not_inspected,
    not_listed,
)
from streamkeeper.sources.delta import impacts, statistics
from streamkeeper.sources.delta.start import DeltaPosition, DeltaStarts, path_of
from streamkeeper.support.amounts import Amount, SourceImpact, sum_known, unknown

MOST = 1000
"""Unread commits that are read to tell a lag; of more, only their number and the oldest one's age is told."""
_AT_ONCE = 16


class Delta(DeltaStarts, PlannedFormat[History, DeltaPosition]):
    """A Delta table; a position is a version, and files of it."""

    def look(self, source: Source) -> History:
        return require_history(path_of(source), source.name)

    def impact(self, case: Case) -> SourceImpact:
        if case.position is None:
            return case.unreadable()
        return impacts.impact_of(case, partial(self.resolve, case.source, case.start, case.before))

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        return impacts.impact_again(source, move, impact)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        try:
            history = read_history(path_of(source))
            if history is None:
                return Waiting(False)
            first = int(end["reservoirVersion"]) if isinstance(end, dict) else 0
            done = int(end["index"]) + 1 if isinstance(end, dict) and not end.get("isStartingVersion") else 0
            for commit in commits(history, max(first, history.oldest), history.newest):
                if len(commit.files) > (max(0, done) if commit.version == first else 0) or commit.has_feed:
                    return Waiting(
                        True,
                        f"version {commit.version} to {history.newest} of the table wait in the source"
                        f" {source.name}",
                    )
        except SourceError as error:
            return not_inspected(source, error)
        return Waiting(False)

    def lag(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
        """Count the commits after the position that have something to read, by the table's log."""
        history = self.look(source)
        if not isinstance(end, dict):
            return not_begun(source) if source.start != "earliest" else _whole(history)
        gone_reason, first = is_gone(end, history), int(end["reservoirVersion"])
        if gone_reason is not None:
            return Lag(reason=gone_reason)
        if end.get("isStartingVersion"):
            reason = f"the table as of version {first} is being read, of which only the driver knows the rest"
            return Lag(versions=history.newest + 1 - first, seconds=_age(history, first), reason=reason)
        upto, skips = min(history.newest, first + MOST - 1), source.option("skipChangeCommits") == "true"
        parts = [
            _after(commit, int(end["index"]) + 1 if commit.version == first else 0)
            for commit in commits(history, first, upto, _AT_ONCE)
            if not (skips and commit.removes)
        ]
        unread = [part for part in parts if part.files or part.has_feed]
        beyond, oldest = history.newest - upto, unread[0].version if unread else upto + 1
        versions = len(unread) + beyond
        seconds = _age(history, oldest) if versions else 0.0
        if beyond:
            reason = f"only {MOST:,} commits are read for this"
            return Lag(versions=versions, seconds=seconds, reason=reason)
        rows = [None if part.has_feed else count for part in unread for _, count in part.files or (("", 0),)]
        return Lag(
            sum_known(rows),
            sum(len(part.files) for part in unread),
            sum(part.bytes for part in unread),
            versions,
            seconds,
        )

    def reading(self, source: Source, start: Any, ends: Any) -> Reading:
        """Count the table as it is now: it is read whole, and then what was committed meanwhile. With
        versions, count what their commits added or changed.
        """
        path = path_of(source)
        try:
            history, refused = read_history(path), why_not_by_path(path)
        except StorageError as error:
            raise not_listed(error) from error
        except SourceError as error:
            return Reading(unknown(str(error)))
        if refused is not None:
            raise RequestError(f"The source {source.name}: {refused}.")
        if history is None:
            raise RequestError(
                f"There is no Delta table at {path}, so there is nothing to read. Check path or table."
            )
        if start is not None:
            return _of_versions(source, history, int(start), int(ends))
        amount = _amount_at(path, history.newest)
        if amount.rows is not None and source.option("excludeRegex"):
            amount = replace(amount, at_most=True)
        note = (
            f"Counted is version {history.newest} of {path}. Rows committed before it is read are included"
            " too."
        )
        return Reading(amount, (note,))

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        history = read_history(path_of(source))
        if history is None or history.table_id in (None, offset["reservoirId"]):
            return None
        return (
            f"{key} has read the Delta table {offset['reservoirId']}, and {source.name} reads"
            f" {history.table_id} at {source.path}"
        )


def _of_versions(source: Source, history: History, first: int, last: int) -> Reading:
    """Return how much the commits of some versions added or changed.

    :raises RequestError: the log no longer holds one of them, or the table before the first.
    """
    if last > history.newest or not all(history.holds_snapshot(at) for at in (max(0, first - 1), last)):
        raise RequestError(
            f"The log of {history.path} does not hold the table from version {max(0, first - 1)} to {last}:"
            f" its commits are {history.oldest} to {history.newest}. Choose versions among these."
        )
    chosen = list(with_new_rows(history, first, last, source.option("skipChangeCommits") == "true"))
    row_count = sum_known([commit.new_rows for commit in chosen])
    reason = f"version {next((one.version for one in chosen if one.new_rows is None), None)} does not say it"
    files, size = sum(len(one.files) for one in chosen), sum(one.bytes for one in chosen)
    versions = (
        f"version{'' if len(chosen) == 1 else 's'} {', '.join(str(one.version) for one in chosen) or 'none'}"
    )
    note = f"Read are the rows that {versions} added or changed, each compared with the one before."
    if row_count is None:
        return Reading(Amount(files, size, None, reason), (note,))
    return Reading(Amount(files, size, row_count, at_most=True), (note,))


def _whole(history: History) -> Lag:
    """Return the lag of a flow that read nothing: the table as it is, by the summary of its newest commit."""
    summary, seconds = read_summary(history.path, history.newest), _age(history, 0)
    files, size = (None, None) if summary is None else (summary.files, summary.bytes)
    return Lag(None, files, size, history.newest + 1, seconds)


def _after(commit: Commit, done: int) -> Commit:
    """Return a commit without its first files, which were read."""
    done = max(0, done)
    return replace(commit, files=commit.files[done:], sizes=commit.sizes[done:])


def _age(history: History, version: int) -> float | None:
    """Return the age of a commit, or of the oldest one after it that the log still has."""
    first = max(version, history.oldest)
    return None if first > history.newest else age_of(committed_at(history, first))


def _amount_at(path: str, version: int) -> Amount:
    try:
        return statistics.amount_at(path, version)
    except SourceError as error:
        summary = read_summary(path, version)
        return (
            unknown(str(error)) if summary is None else Amount(summary.files, summary.bytes, None, str(error))
        )
