"""What one application of changes works on: a pair of tables, a step of a generation, and the writers'
turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

Turn = Callable[[], AbstractContextManager[None]]
"""Gives the writers' turn on a target and its tombstones; it is held while both are read and written."""


@dataclass(frozen=True)
class CdcTables:
    """Paths or URLs of a target, and of the sibling that remembers what it cannot show: deletes, truncates,
    changes shown as one.
    """

    target: str
    tombstones: str


@dataclass(frozen=True)
class Step:
    """One micro-batch of a generation: its query id and its batch's number, by which Delta knows a repeated
    commit.
    """

    query_id: str
    batch_id: int


def app_ids(tables: CdcTables, query_id: str) -> tuple[tuple[str, str], ...]:
    """Give every pair of table and ``txnAppId`` that a generation commits under, in the order in which a
    batch writes them.

    The last is the target under the bare query id. It is committed with every batch, an empty one too, so it
    rules the position.
    """
    return (tables.tombstones, tombstones_app(query_id)), (tables.target, query_id)


def tombstones_app(query_id: str) -> str:
    """Give the ``txnAppId`` of a generation in the tombstones: one pair of id and version is one commit, so
    it cannot be the target's.
    """
    return f"{query_id}/tombstones"
