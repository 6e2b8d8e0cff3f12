"""Spark's rate source: its rows are made as time passes, and there is no history to count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import describe
from streamkeeper.flows.generations import AFTER_LAST, OFFSETS
from streamkeeper.sources.base.format import (
    UNREADABLE,
    Before,
    Case,
    Lag,
    PlannedFormat,
    Resolved,
    SourceMove,
    Waiting,
    age_of,
    read_again,
)
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, unknown


@dataclass(frozen=True)
class RatePosition:
    """Seconds of the rate source that count as processed, from the time that the file ``key`` holds."""

    checkpoint: Checkpoint
    key: str
    seconds: int

    def started(self) -> bytes:
        """Return the content of that file."""
        return self.checkpoint.read(f"sources/{self.key}/0")


class Rate(PlannedFormat[None, RatePosition]):
    """The rate source."""

    def after(self, source: Source, before: Before, look: Callable[[], None]) -> Resolved[RatePosition]:
        return self.at(source, before, look, before.offset)

    def end(self, before: Before, look: Callable[[], None]) -> RatePosition | None:
        return None

    def moment(self, before: Before, look: Callable[[], None], moment_ms: int) -> RatePosition | None:
        began = before.initial()
        return None if began is None else self._position(before, max(0, (moment_ms - int(began)) // 1000))

    def at(
        self, source: Source, before: Before, look: Callable[[], None], offset: Any
    ) -> Resolved[RatePosition]:
        return Resolved(None if offset is None else self._position(before, int(offset)))

    def impact(self, case: Case) -> SourceImpact:
        source, offset, mode = case.source, case.offset, case.start.mode
        unknown = no_history(source)
        if mode == AFTER_LAST:
            return case.impact("after the last processed batch")
        if mode == OFFSETS:
            position = self.resolve(source, case.start, case.before, lambda: None).position
            seconds = 0 if position is None else position.seconds
            has_offset = isinstance(offset, int)  # only then the direction of the move is known
            return case.impact(
                describe(seconds),
                lost=unknown if not has_offset or seconds > offset else NONE,
                repeated=unknown if not has_offset or seconds < offset else NONE,
            )
        return case.impact("the beginning", repeated=unknown)

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        if move.position is None:
            return read_again(impact, UNREADABLE, move.restored)
        again = NONE if move.then(source) == move.offset(source) else no_history(source)
        return read_again(impact, again, move.restored)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        return Waiting(True, f"the source {source.name} ({source.format}) has new rows all the time")

    def lag(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
        """Count the whole seconds since the last row that was read, and their rows."""
        began = None if checkpoint is None else checkpoint.initial_offsets(key)
        if began is None:  # rows are made from its first batch on
            return Lag(records=0, seconds=0.0)
        seconds = int(age_of(int(began) + 1000 * int(end or 0)))
        if source.option("rampUpTime"):
            return Lag(seconds=float(seconds), reason="with rampUpTime its rate changes")
        return Lag(records=seconds * int(source.option("rowsPerSecond") or 1), seconds=float(seconds))

    def _position(self, before: Before, seconds: int) -> RatePosition | None:
        if before.checkpoint is None:
            return None
        return RatePosition(before.checkpoint, before.key, seconds)


def no_history(source: Source) -> Amount:
    """Return the amount of a source whose rows cannot be read again."""
    return unknown(f"{source.format} keeps no history to count")
