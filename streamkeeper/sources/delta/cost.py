"""Cost of a reset in a Delta source, in rows by the statistics of its log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import describe
from streamkeeper.delta.history import (
    Between,
    History,
    between,
    is_gone,
    next_held,
    offset_before,
    read_history,
    vacuumed,
    version_at,
)
from streamkeeper.errors import RequestError, SourceError, StorageError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, LATEST, OFFSETS, Restart, StartAt
from streamkeeper.sources.delta import statistics as delta_statistics
from streamkeeper.tables import past_versions

_READS_CHANGES = ("skipChangeCommits", "ignoreChanges", "readChangeFeed", "readChangeData")


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
    def stands(self) -> dict[str, Any]:
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
        known = self.history.table_id or (self.offset or {}).get("reservoirId", "")
        return offset_before(known, version)


def price_of(
    source: Source, price: SourcePrice, offset: dict[str, Any] | None, restart: Restart
) -> SourcePrice:
    """Return the cost of a reset in a Delta source.

    The cost of rebuilt state is added by :func:`with_state`.

    :param price: has the flow's position in words.
    :param offset: the old offset; None if nothing was committed.
    :raises RequestError: the requested offset belongs to another table, or to a version that is not held; or
        the commits after the requested time are unknown.
    """
    table = _look(source, offset)
    start = restart.start
    if isinstance(table, str):
        return _unseen(price, table, start.mode)
    if start.mode == AFTER_LAST:
        return _after_last(price, table)
    if table.made_anew is not None:  # nothing of this table was read
        found = _elsewhere(price, replace(table, offset=None), start)
        return replace(
            found,
            lost=Amount(None, 0, None, table.made_anew),
            repeated=NONE,
            notes=(*found.notes, table.made_anew),
        )
    return _elsewhere(price, table, start)


def _elsewhere(price: SourcePrice, table: _Table, start: StartAt) -> SourcePrice:
    source = table.source
    if start.mode == EARLIEST:
        return replace(
            price,
            then="the beginning: the whole current table, then new commits",
            repeated=_read_so_far(table),
        )
    if start.mode == LATEST:
        return _moved(
            price, table, table.end, "only versions that are committed after the new generation has begun"
        )
    if start.mode == OFFSETS:
        wanted: dict[str, Any] = (start.offsets or {})[source.name]
        why = is_gone(wanted, table.history)
        if why is not None:
            raise RequestError(f"offsets of {source.name} cannot be used: {why}. Give another.")
        return _moved(price, table, wanted, describe(wanted))
    assert start.timestamp_ms is not None, "a request by timestamp has one"
    return _from_moment(price, table, start.timestamp_ms)


def with_state(
    price: SourcePrice, source: Source, offset: dict[str, Any] | None, stateful: bool | None
) -> SourcePrice:
    """Add the cost of rebuilding state from history: the table of that version is read again."""
    table = _look(source, offset)
    if offset is None or isinstance(table, str):
        return price
    if table.made_anew is not None:
        return replace(price, gone=Amount(None, 0, None, f"{table.made_anew}, and so is what was read"))
    if is_gone(offset, table.history) is not None:
        return price
    version = int(offset["reservoirVersion"]) - (0 if offset.get("isStartingVersion") else 1)
    if not table.history.holds_snapshot(version):
        words = (
            f"state cannot be rebuilt: the table of {source.name} cannot be reconstructed at version"
            f" {version}"
        )
        return (
            replace(price, blocked=f"{words}. Choose state `empty`")
            if stateful
            else replace(price, notes=(*price.notes, words))
        )
    told = "a rebuilt state lacks rows that were deleted from the source since they were read"
    count = _rows(table, version)
    if stateful is None:
        said = "the rows" if count.rows is None else f"{count.rows:,} rows"
        again = f"if the query keeps state, {said} of version {version} are read again, without writing"
        return replace(price, notes=(*price.notes, again, told))
    return replace(price, replayed=count, notes=(*price.notes, told)) if stateful else price


def why_unseen(source: Source) -> str | None:
    """Return why the contents of a source's table are unknown; None if its log can be read."""
    found = _look(source, None)
    return found if isinstance(found, str) else None


def why_not_rebuilt(source: Source, offset: dict[str, Any]) -> str | None:
    """Return why the driver could not rebuild state up to its position; None if it can, or need not.

    Files are checked if the state is made from the whole table: a source that is declared to start later is
    replayed by its commits.
    """
    table = _look(source, offset)
    if isinstance(table, str) or table.made_anew is not None:
        return None
    upto = offset if is_gone(offset, table.history) is None else table.at(next_held(offset, table.history))
    version = int(upto["reservoirVersion"]) - (0 if upto.get("isStartingVersion") else 1)
    if not table.history.holds_snapshot(version):
        return f"the table of {source.name} cannot be reconstructed at version {version}"
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
        return Amount(None, 0, None, table)
    if table.made_anew is not None:
        return Amount(None, 0, None, table.made_anew)
    if then is None:
        return _read_so_far(table)
    why = is_gone(then, table.history)
    return (
        Amount(None, 0, None, why)
        if why is not None
        else _moved(SourcePrice(source.name, "", ""), table, then, "").repeated
    )


def _look(source: Source, offset: dict[str, Any] | None) -> _Table | str:
    assert source.path is not None, "an opened Delta source has a path"
    try:
        history = read_history(source.path)
    except (SourceError, StorageError) as error:
        return str(error)
    return f"there is no Delta table at {source.path}" if history is None else _Table(source, history, offset)


def _after_last(price: SourcePrice, table: _Table) -> SourcePrice:
    then = "after the last processed batch"
    if table.offset is None:
        return replace(price, then="the beginning, as the source declares it")
    why = is_gone(table.offset, table.history)
    if why is not None:
        return replace(price, then="what is there", lost=Amount(None, 0, None, why), notes=(why,))
    gone = vacuumed(table.offset, table.history)
    if gone is not None:
        return replace(
            price,
            then=then,
            blocked=(
                f"source {table.source.name} cannot continue: {gone}. Choose a timestamp, latest or earliest"
            ),
        )
    return replace(price, then=then, notes=tuple(_waiting(table)))


def _unseen(price: SourcePrice, why: str, mode: str) -> SourcePrice:
    doubt = Amount(None, 0, None, why)
    if mode == AFTER_LAST:
        told = (
            f"it is unknown whether all unread rows still exist: {why}. The driver checks before it changes"
            " anything"
        )
        return replace(price, then="after the last processed batch", notes=(told,))
    return replace(
        price,
        then=f"start {mode}",
        lost=NONE if mode == EARLIEST else doubt,
        repeated=NONE if mode == LATEST else doubt,
    )


def _from_moment(price: SourcePrice, table: _Table, moment_ms: int) -> SourcePrice:
    try:
        version = version_at(table.history, moment_ms)
    except SourceError as error:
        raise RequestError(str(error)) from error
    moment = datetime.fromtimestamp(moment_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    return _moved(
        price,
        table,
        table.at(version),
        f"version {version}, the first that was committed at or after {moment}",
    )


def _waiting(table: _Table) -> Iterator[str]:
    found = table.between(table.stands, table.end)
    rows = (
        f"rows unknown: {found.why}"
        if found.rows is None
        else f"{found.rows:,} rows in {found.files:,} files"
    )
    yield f"unread versions up to {table.history.newest} are unread and will be read: {rows}"
    if found.changing and not any(table.source.option(name) == "true" for name in _READS_CHANGES):
        yield (
            f"version {found.changing[0]} changes or deletes rows: the flow will stop there, unless the"
            " source declares skipChangeCommits or readChangeFeed"
        )


def _moved(price: SourcePrice, table: _Table, target: dict[str, Any], then: str) -> SourcePrice:
    lost = _amount(table.between(table.stands, target))
    repeated = _amount(table.between(target, table.stands)) if table.offset is not None else NONE
    return replace(price, then=then, lost=lost, repeated=repeated)


def _read_so_far(table: _Table) -> Amount:
    """Return the part of the present table that was read before: all but what is unread."""
    if table.offset is None:
        return NONE
    if table.history.oldest == 0 and not table.offset.get("isStartingVersion"):
        return _amount(table.between(table.at(0), table.offset))
    waits = table.between(table.offset, table.end)
    if waits.rows is None or waits.changing:
        return Amount(None, 0, None, waits.why or "rows were changed since")
    whole = _rows(table, None)
    return whole if whole.rows is None else Amount(None, 0, max(0, whole.rows - waits.rows))


def _rows(table: _Table, version: int | None) -> Amount:
    try:
        return Amount(None, 0, delta_statistics.rows_of(table.history.path, version))
    except SourceError as error:
        return Amount(None, 0, None, str(error))


def _amount(found: Between) -> Amount:
    return Amount(None, 0, None, found.why) if found.rows is None else Amount(found.files, 0, found.rows)
