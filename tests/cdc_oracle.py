"""What an AUTO CDC table must hold, computed from the *set* of changes by plain Python, as
docs/reference/auto-cdc-semantics.md says it: no order, no batches.

Rows are dicts of the stored columns, keys among them; structs are dicts, too. Sequences are anything that
Python orders.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

Row = Mapping[str, Any]
Key = tuple[Hashable, ...]
Versions = list[tuple[dict[str, Any], Any, Any]]
"""Each version of a key: its row, where it starts, where it ends (None: it is the present one)."""


@dataclass(frozen=True)
class Change:
    """One row of a source: of which key (of none, if it truncates), at which sequence, and an upsert's
    row.
    """

    kind: str
    key: Key
    at: Any
    row: Row | None = None


def newest(changes: Iterable[Change], ignore_nulls: bool = False) -> list[dict[str, Any]]:
    """SCD type 1: the rows of the table."""
    changes = list(changes)
    truncated = max((change.at for change in changes if change.kind == TRUNCATE), default=None)
    rows = []
    for history in _by_key(changes).values():
        living = _living(history, truncated)
        if living:
            rows.append(_merged(living) if ignore_nulls else _newest(living))
    return rows


def versions(
    changes: Iterable[Change], tracked: Sequence[str] | None = None, ignore_nulls: bool = False
) -> Versions:
    """SCD type 2: the versions of all keys; ``tracked`` None is all columns."""
    return [
        version
        for history in _by_key(changes).values()
        for version in _versions(history, tracked, ignore_nulls)
    ]


def larger(value: Any) -> tuple[Any, ...]:
    """Give what values of one type are compared by: a null is smaller than any value, columns are compared in
    order.
    """
    if value is None:
        return (0,)
    return (1, tuple(larger(item) for item in value.values())) if isinstance(value, Mapping) else (1, value)


def _by_key(changes: Iterable[Change]) -> dict[Key, list[Change]]:
    keys: dict[Key, list[Change]] = {}
    for change in changes:
        if change.kind != TRUNCATE:
            keys.setdefault(change.key, []).append(change)
    return keys


def _living(history: Sequence[Change], truncated: Any) -> list[Change]:
    """Give the upserts that neither a delete at the same or a later sequence ends, nor a truncate at a later
    one.
    """
    deleted = [change.at for change in history if change.kind == DELETE]
    upserts = [change for change in history if change.kind == UPSERT]
    return [
        one
        for one in upserts
        if not any(one.at <= at for at in deleted) and (truncated is None or one.at >= truncated)
    ]


def _newest(upserts: Sequence[Change]) -> dict[str, Any]:
    return dict(max(upserts, key=lambda change: (change.at, larger(change.row))).row or {})


def _merged(upserts: Sequence[Change]) -> dict[str, Any]:
    rows = [(change.at, change.row or {}) for change in upserts]
    return {name: _newest_value([(at, row[name]) for at, row in rows]) for name in rows[0][1]}


def _newest_value(values: Sequence[tuple[Any, Any]]) -> Any:
    """Give the newest value that is not null; of structs, field by field."""
    known = [(at, value) for at, value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0][1], Mapping):
        return {name: _newest_value([(at, value[name]) for at, value in known]) for name in known[0][1]}
    return max(known, key=lambda pair: (pair[0], larger(pair[1])))[1]


def _versions(history: Sequence[Change], tracked: Sequence[str] | None, ignore_nulls: bool) -> Versions:
    found: Versions = []
    since_delete: list[Change] = []
    for at in sorted({change.at for change in history}):
        here = [change for change in history if change.at == at]
        present = found and found[-1][2] is None
        if any(change.kind == DELETE for change in here):
            since_delete = []
            if present:
                found[-1] = (*found[-1][:2], at)
            continue
        since_delete += here
        row = _merged(since_delete) if ignore_nulls else _newest(here)
        if present and all(found[-1][0][name] == row[name] for name in (row if tracked is None else tracked)):
            found[-1] = (row, *found[-1][1:])
        else:
            if present:
                found[-1] = (*found[-1][:2], at)
            found.append((row, at, None))
    return found
