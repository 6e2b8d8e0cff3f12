"""Impact of a reset in a Delta source, in rows by the statistics of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.delta.history import Between, History, between, commits, is_gone, read_history, skipped
from streamkeeper.errors import RequestError, SourceError, StorageError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, LATEST
from streamkeeper.sources.base.format import UNREADABLE, Case, Resolved, SourceMove
from streamkeeper.sources.base.format import read_again as with_read_again
from streamkeeper.sources.delta import statistics as delta_statistics
from streamkeeper.sources.delta.start import DeltaPosition, after_last, before, path_of
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, unknown
from streamkeeper.tables import past_versions

Resolve = Callable[[Callable[[], History]], Resolved[DeltaPosition]]

_AT_ONCE = 16
"""Commits that are read together."""
_READS_CHANGES = ("skipChangeCommits", "ignoreChanges")


@dataclass(frozen=True)
class _Table:
    """A source's table: its history, and the flow's old offset; None if the flow has read nothing."""

    source: Source
    history: History
    offset: dict[str, Any] | None

    @property
    def end(self) -> dict[str, Any]:
        return self.at(self.history.newest + 1)

    @property
    def position(self) -> dict[str, Any]:
        """The flow's position; before version 0 if it has read nothing."""
        return self.offset if self.offset is not None else self.at(0)

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> Between:
        return between(self.history, start, end, self.source.option("skipChangeCommits") == "true")

    @property
    def made_anew(self) -> str | None:
        """Why the table is another than the one that was read; None if it is the same, or that is unknown."""
        another = self.offset is not None and self.history.table_id not in (None, self.offset["reservoirId"])
        return is_gone(self.offset, self.history) if another and self.offset is not None else None

    def at(self, version: int) -> dict[str, Any]:
        return before(self.history, version, self.offset)


def impact_of(case: Case, resolve: Resolve) -> SourceImpact:
    """Return the impact of a reset in a Delta source.

    :raises RequestError: the requested offset belongs to another table, or to a version that is not held; or
        the commits after the requested time are unknown.
    """
    table = _look(case.source, case.offset)
    if isinstance(table, str):
        return _unseen(case, table)
    try:
        resolved = resolve(lambda: table.history)
    except SourceError as error:
        raise RequestError(str(error)) from error
    if resolved.wrong:
        raise RequestError(f"offsets of {case.source.name} cannot be used: {resolved.wrong}. Give another.")
    impact = _impact_of(case, table, resolved)
    return _with_state(impact, case, table, resolved.position) if case.rebuilds else impact


def _impact_of(case: Case, table: _Table, resolved: Resolved[DeltaPosition]) -> SourceImpact:
    """Return the impact without that of a rebuilt state."""
    words = _words(case, resolved)
    if case.start.mode == AFTER_LAST:
        return _after_last(case.impact(words), table, resolved)
    reason = table.made_anew
    if reason is not None:  # nothing of this table was read
        lost = unknown(reason)
        return case.impact(words, lost=lost, notes=(reason,))
    if resolved.position is None:
        changed = _changed(table)
        notes = () if changed is None else (changed,)
        return case.impact(words, repeated=_read_so_far(table), notes=notes, otherwise=changed is not None)
    return _moved(case.impact(words), table, resolved.position.offset)


def _words(case: Case, resolved: Resolved[DeltaPosition]) -> str:
    """Return in words where a start begins to read."""
    after_last = "what is there" if resolved.lost else "after the last processed batch"
    if case.offset is None:
        after_last = "the beginning, as the source declares it"
    position = resolved.position
    version = "a version" if position is None else f"version {position.version}"
    return case.words(
        after_last,
        "the whole current table, then new commits",
        "versions that are committed",
        f"{version}, the first that was committed",
    )


def _with_state(
    impact: SourceImpact, case: Case, table: _Table, position: DeltaPosition | None
) -> SourceImpact:
    """Add the impact of rebuilding state from history: the table of that version is read again."""
    if table.offset is None:
        return impact
    if table.made_anew is not None:
        return replace(impact, gone=unknown(f"{table.made_anew}, and so is what was read"))
    if position is None:
        return impact
    version, stateful = position.replayed_version, case.stateful
    if not table.history.holds_snapshot(version):
        words = f"state cannot be rebuilt: {_no_snapshot(case.source, version)}"
        return (
            replace(impact, blocked=f"{words}. Choose state `empty`")
            if stateful
            else replace(impact, notes=(*impact.notes, words))
        )
    note = "a rebuilt state lacks rows that were deleted from the source since they were read"
    count = _rows(table, version)
    if stateful is None:
        rows_in_words = "the rows" if count.rows is None else f"{count.rows:,} rows"
        again = (
            f"if the query keeps state, {rows_in_words} of version {version} are read again, without writing"
        )
        return replace(impact, notes=(*impact.notes, again, note))
    return replace(impact, replayed=count, notes=(*impact.notes, note)) if stateful else impact


def _no_snapshot(source: Source, version: int) -> str:
    return f"the table of {source.name} cannot be reconstructed at version {version}"


def impact_again(source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
    """Return the impact of a move to an earlier place: see :class:`SourceFormat`."""
    then = move.then(source)
    again = UNREADABLE if move.position is None else read_again(source, move.offset(source), then)
    if move.restored and then is not None:
        impact = _before_restore(source, move, impact, then)
    return with_read_again(impact, again, move.restored)


def _before_restore(
    source: Source, move: SourceMove, impact: SourceImpact, then: dict[str, Any]
) -> SourceImpact:
    """Check what the driver would check itself before it begins: with a restore, that would be too late."""
    table = _look(source, then)
    if isinstance(table, str):
        reason = f"it is unknown whether all unread rows still exist: {table}"
        return replace(impact, lost=unknown(reason), notes=())
    obstacle = _why_not_rebuilt(source, table, then) if move.rebuilds else None
    if obstacle is None or impact.blocked is not None:
        return impact
    words = f"state cannot be rebuilt: {obstacle}"
    if move.stateful:
        return replace(impact, blocked=f"{words}. Choose state `empty`")
    return replace(impact, notes=tuple(dict.fromkeys((*impact.notes, words))))


def _why_not_rebuilt(source: Source, table: _Table, offset: dict[str, Any]) -> str | None:
    """Return why the driver could not rebuild state up to its position; None if it can, or need not.

    Files are checked if the state is made from the whole table: a source that is declared to start later is
    replayed by its commits.
    """
    position = after_last(offset, table.history, source.reads_change_feed).position
    if table.made_anew is not None or position is None:
        return None
    version = position.replayed_version
    if not table.history.holds_snapshot(version):
        return _no_snapshot(source, version)
    lacking = past_versions.lacking_files(table.history.path, version) if source.start == "earliest" else []
    return (
        f"VACUUM removed files that version {version} of the table of {source.name} needs, such as"
        f" {lacking[0]}"
        if lacking
        else None
    )


def read_again(source: Source, offset: dict[str, Any] | None, then: dict[str, Any] | None) -> Amount:
    """Return the rows read since an earlier offset that are read again.

    Unknown, with the reason, without commits.

    :param offset: the present offset; None if nothing was read.
    :param then: the earlier one; None if nothing had been read.
    """
    table = _look(source, offset)
    if offset is None:
        return NONE
    if isinstance(table, str):
        return unknown(table)
    if table.made_anew is not None:
        return unknown(table.made_anew)
    if then is None:
        return _read_so_far(table)
    reason = is_gone(then, table.history)
    return (
        unknown(reason)
        if reason is not None
        else _moved(SourceImpact(source.name, "", ""), table, then).repeated
    )


def _look(source: Source, offset: dict[str, Any] | None) -> _Table | str:
    try:
        history = read_history(path_of(source))
    except (SourceError, StorageError) as error:
        return str(error)
    return f"there is no Delta table at {source.path}" if history is None else _Table(source, history, offset)


def _after_last(impact: SourceImpact, table: _Table, resolved: Resolved[DeltaPosition]) -> SourceImpact:
    if table.offset is None:
        return impact
    if resolved.lost:
        return replace(impact, lost=unknown(resolved.lost), notes=resolved.notes, expired=True)
    if resolved.blocked:
        problem = f"source {table.source.name} cannot continue: {resolved.blocked}"
        blocked = f"{problem}. Choose a timestamp, latest or earliest"
        return replace(impact, blocked=blocked)
    return replace(impact, notes=tuple(_waiting(table)))


def _unseen(case: Case, reason: str) -> SourceImpact:
    """Return the impact while the table's log cannot be read."""
    doubt, mode = unknown(reason), case.start.mode
    if mode == AFTER_LAST:
        note = (
            f"it is unknown whether all unread rows still exist: {reason}. The driver checks before it"
            " changes anything"
        )
        return case.impact("after the last processed batch", notes=(note,))
    return case.impact(
        f"start {mode}", lost=NONE if mode == EARLIEST else doubt, repeated=NONE if mode == LATEST else doubt
    )


def _waiting(table: _Table) -> Iterator[str]:
    unread = table.between(table.position, table.end)
    rows = (
        f"rows unknown: {unread.reason}"
        if unread.rows is None
        else f"{unread.rows:,} rows in {unread.files:,} files"
    )
    following, newest = int(table.position["reservoirVersion"]), table.history.newest
    if following > newest:
        yield f"no version waits: {newest} is the newest, and {following} is to be read next"
        return
    yield f"unread versions up to {newest} will be read: {rows}"
    if table.source.option("skipChangeCommits") == "true" and table.offset is not None:
        passed = skipped(table.history, table.offset, table.end)
        if passed is not None:
            yield f"the source skips {passed}; a backfill of these versions brings them"
    reads = table.source.reads_change_feed or any(
        table.source.option(name) == "true" for name in _READS_CHANGES
    )
    if unread.changing and not reads:
        yield (
            f"version {unread.changing[0]} changes or deletes rows: the flow will stop there, unless the"
            " source declares skipChangeCommits or readChangeFeed"
        )


def _moved(impact: SourceImpact, table: _Table, target: dict[str, Any]) -> SourceImpact:
    lost = _amount(table.between(table.position, target))
    repeated = _amount(table.between(target, table.position)) if table.offset is not None else NONE
    return replace(impact, lost=lost, repeated=repeated)


def _read_so_far(table: _Table) -> Amount:
    """Return the part of the present table that was read before: all but what is unread."""
    if table.offset is None:
        return NONE
    if table.history.oldest == 0 and not table.offset.get("isStartingVersion"):
        return _amount(table.between(table.at(0), table.offset))
    waits = table.between(table.offset, table.end)
    if waits.rows is None or waits.changing:
        return unknown(waits.reason or "rows were changed since")
    whole = _rows(table, None)
    return whole if whole.rows is None else Amount(None, 0, max(0, whole.rows - waits.rows))


def _changed(table: _Table) -> str | None:
    """Return why rows that were read may be gone, or may have changed; None if all are as they were."""
    history = table.history
    if table.offset is None:
        return None
    if history.oldest > 0:
        return (
            f"the log of {table.source.name} starts at version {history.oldest}: whether rows were deleted or"
            " changed since they were read is unknown"
        )
    removes = (commit.version for commit in commits(history, 0, history.newest, _AT_ONCE) if commit.removes)
    version = next(removes, None)
    return (
        None
        if version is None
        else f"rows of {table.source.name} were deleted or changed, for example by version {version}: the"
        " rows read before cannot be read again"
    )


def _rows(table: _Table, version: int | None) -> Amount:
    try:
        return Amount(None, 0, delta_statistics.rows_of(table.history.path, version))
    except SourceError as error:
        return unknown(str(error))


def _amount(interval: Between) -> Amount:
    return (
        unknown(interval.reason or "") if interval.rows is None else Amount(interval.files, 0, interval.rows)
    )
