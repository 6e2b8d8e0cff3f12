"""Spark's socket source: the lines of a connection, of which nothing can be read again.

A position is the number of the last line of its connection, counted from 0; -1 is none. Each driver makes a
connection of its own, whose lines are counted anew (docs/decisions/0053).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows.generations import AFTER_LAST
from streamkeeper.sources.base.format import (
    UNREADABLE,
    Before,
    Case,
    PlannedFormat,
    Resolved,
    SourceMove,
    Waiting,
)
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, unknown

BEFORE_ALL = -1
"""Offset of a connection of which no line was read."""

_NEW_CONNECTION = "a new connection, and its lines"


class Socket(PlannedFormat[None, None]):
    """The socket source. Every generation starts with a new connection: it has no position to begin at."""

    def after(self, source: Source, before: Before, look: Callable[[], None]) -> Resolved[None]:
        return Resolved()

    def end(self, before: Before, look: Callable[[], None]) -> None:
        return None

    def moment(self, before: Before, look: Callable[[], None], moment_ms: int) -> None:
        return None

    def at(self, source: Source, before: Before, look: Callable[[], None], offset: Any) -> Resolved[None]:
        if offset == BEFORE_ALL:
            return Resolved()
        return Resolved(wrong=f"lines are counted anew by each connection, so that only {BEFORE_ALL} is one")

    def impact(self, case: Case) -> SourceImpact:
        if case.start.offsets is not None:
            wrong = self.resolve(case.source, case.start, case.before, lambda: None).wrong
            if wrong:
                raise RequestError(f"The offset of {case.source.name} cannot be used: {wrong}.")
        impact = replace(case.impact(_NEW_CONNECTION), now=_read(case.offset))
        if case.start.mode != AFTER_LAST:
            return replace(impact, lost=_gone(case.source))
        gone = _gone(case.source) if case.rebuilds else NONE
        return replace(impact, lost=_under_way(case), gone=gone)

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        standing, place = move.standing, move.place
        same = (standing.generation.number, standing.batch) == (place.generation.number, place.batch)
        since = NONE if same else _gone(source)
        return replace(impact, now=_read(move.offset(source)), then=_NEW_CONNECTION, lost=since)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        return Waiting(False, f"whether lines wait in {source.name} ({source.format}), nobody can tell")


def _read(offset: Any) -> str:
    if not isinstance(offset, int) or offset <= BEFORE_ALL:
        return "no line of its connection"
    return f"line {offset + 1} of its connection"


def _under_way(case: Case) -> Amount:
    """Return the lines of a batch that was planned and is not in the sink: no restart reads them either."""
    standing = case.standing
    planned = standing.checkpoint.offset_batches()[-1:]
    if case.position is None or not planned or planned[0] == standing.batch:
        return UNREADABLE if case.position is None else NONE
    try:
        until = standing.checkpoint.offsets(planned[0]).sources.get(case.before.key)
    except CheckpointError:
        return UNREADABLE
    first = BEFORE_ALL if case.offset is None else int(case.offset)
    return Amount(None, 0, max(0, (BEFORE_ALL if until is None else int(until)) - first))


def _gone(source: Source) -> Amount:
    """Return the amount of the lines that were read, which nobody keeps or counts."""
    return unknown(f"{source.format} keeps no line: what was read cannot be read again")
