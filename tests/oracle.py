"""What a table must hold, computed from the events in their order of arrival by plain Python: no Spark, no
batches, no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def all_rows(events: Iterable[Row]) -> list[Row]:
    """A stateless flow: every event, once for each time that it arrived."""
    return list(events)


def first_per(events: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """``dropDuplicates(keys)``: the first event of each key. Events of one key must be equal if they come in
    one batch.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for event in events:
        found.setdefault(tuple(event[key] for key in keys), event)
    return list(found.values())


def counted(rows: Iterable[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], int]:
    """How often each combination of some columns is there: what two tables without an order are compared
    by.
    """
    counts: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = tuple(row[column] for column in columns)
        counts[key] = counts.get(key, 0) + 1
    return counts
