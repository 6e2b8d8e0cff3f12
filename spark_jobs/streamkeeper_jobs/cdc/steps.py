"""What one application of changes works on: a pair of tables, a step of a generation, the writers' turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

Turn = Callable[[], AbstractContextManager[None]]
"""Returns the writers' turn on a target and its tombstones; it is held while both are read and written."""


@dataclass(frozen=True)
class CdcTables:
    """Paths or URLs of a target and of its sibling.

    The sibling stores what the target cannot show: deletes, truncates, changes shown as one.
    """

    target: str
    tombstones: str


@dataclass(frozen=True)
class Step:
    """One micro-batch of a generation: query id and batch number. Delta detects repeated commits by them."""

    query_id: str
    batch_id: int


def app_ids(tables: CdcTables, query_id: str) -> tuple[tuple[str, str], ...]:
    """Return every table and ``txnAppId`` of a generation's commits, in the order of a batch.

    The last is the target under the bare query id. It is committed with every batch, also an empty one, so it
    determines the position.
    """
    return (tables.tombstones, tombstones_app(query_id)), (tables.target, query_id)


def tombstones_app(query_id: str) -> str:
    """Return the ``txnAppId`` of a generation in the tombstones.

    One pair of id and version is one commit, so it cannot be the target's.
    """
    return f"{query_id}/tombstones"
