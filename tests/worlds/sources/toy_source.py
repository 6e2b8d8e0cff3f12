"""A format of source that the product does not have: Spark's ``rate-micro-batch``, whose rows are numbered.

Its offset is ``{"offset": 40, "timestamp": …}``: rows 0 to 39 were read. Nothing expires, and all can be read
again. The class for a driver is in :mod:`tests.worlds.sources.toy_source_in_job`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import FORMATS as DECLARED
from streamkeeper.declare.model import Format, Source
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import SourceError
from streamkeeper.flows.generations import EARLIEST
from streamkeeper.sources.base.format import (
    Before,
    Case,
    PlannedFormat,
    Resolved,
    SourceMove,
    Waiting,
    read_again,
)
from streamkeeper.sources.formats import FORMATS
from streamkeeper.sources.starts import STARTS
from streamkeeper.support.amounts import Amount, SourceImpact

NAME = "rate-micro-batch"

Offset = dict[str, int]


class Numbered(PlannedFormat[None, Offset]):
    """Rows with numbers; a position is the offset as Spark writes it."""

    def look(self, source: Source) -> None:
        return None

    def after(self, source: Source, before: Before, look: Callable[[], None]) -> Resolved[Offset]:
        return Resolved(before.offset)

    def end(self, before: Before, look: Callable[[], None]) -> Offset | None:
        raise SourceError("its rows have no end")

    def moment(self, before: Before, look: Callable[[], None], moment_ms: int) -> Offset | None:
        raise SourceError("its rows have no times")

    def at(
        self, source: Source, before: Before, look: Callable[[], None], wanted: Offset
    ) -> Resolved[Offset]:
        return Resolved(wanted) if wanted["offset"] >= 0 else Resolved(wrong="there is no row before row 0")

    def impact(self, case: Case) -> SourceImpact:
        start = self.resolve(case.source, case.start, case.before, lambda: None).position
        words = "row 0" if case.start.mode == EARLIEST else describe(start)
        return case.impact(words, lost=_rows(case.offset, start), repeated=_rows(start, case.offset))

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        return read_again(impact, _rows(move.then(source), move.offset(source)), move.restored)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        return Waiting(True, f"rows always wait in {source.name}")


def _rows(start: Offset | None, end: Offset | None) -> Amount:
    first, last = (0 if offset is None else offset["offset"] for offset in (start, end))
    return Amount(None, 0, max(0, last - first))


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the format for the length of a test, as lines of the product's tables would."""
    monkeypatch.setitem(DECLARED, NAME, Format("rate", history=False))
    monkeypatch.setitem(STARTS, NAME, Numbered())
    monkeypatch.setitem(FORMATS, NAME, Numbered())
