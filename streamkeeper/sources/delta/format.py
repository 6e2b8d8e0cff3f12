"""A Delta table as a format of source."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from streamkeeper.amounts import Amount, SourcePrice
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.delta.history import History, commits, read_history, require_history
from streamkeeper.delta.summary import read_summary
from streamkeeper.errors import RequestError, SourceError, StorageError
from streamkeeper.sources.base.format import (
    Case,
    Move,
    PlannedFormat,
    Reading,
    Waiting,
    not_inspected,
    not_listed,
)
from streamkeeper.sources.delta import cost, statistics
from streamkeeper.sources.delta.start import DeltaPosition, DeltaStarts, path_of


class Delta(DeltaStarts, PlannedFormat[History, DeltaPosition]):
    """A Delta table; a position is a version, and files of it."""

    def look(self, source: Source) -> History:
        return require_history(path_of(source), source.name)

    def price(self, case: Case) -> SourcePrice:
        if case.position is None:
            return case.unreadable()
        return cost.price_of(case, partial(self.resolve, case.source, case.start, case.before))

    def price_again(self, source: Source, move: Move, price: SourcePrice) -> SourcePrice:
        return cost.price_again(source, move, price)

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

    def held(self, source: Source, start: Any, ends: Any) -> Reading:
        """Count the table as it is now: it is read whole, and then what was committed meanwhile."""
        path = path_of(source)
        try:
            history = read_history(path)
        except StorageError as error:
            raise not_listed(error) from error
        except SourceError as error:
            return Reading(Amount(None, 0, None, str(error)))
        if history is None:
            raise RequestError(
                f"There is no Delta table at {path}, so there is nothing to read. Check path or table."
            )
        found = _amount_at(path, history.newest)
        if found.rows is not None and source.option("excludeRegex"):
            found = replace(found, at_most=True)
        note = (
            f"Counted is version {history.newest} of {path}. Rows committed before it is read are included"
            " too."
        )
        return Reading(found, (note,))

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        history = read_history(source.path) if source.path is not None else None
        if history is None or history.table_id in (None, offset["reservoirId"]):
            return None
        return (
            f"{key} has read the Delta table {offset['reservoirId']}, and {source.name} reads"
            f" {history.table_id} at {source.path}"
        )


def _amount_at(path: str, version: int) -> Amount:
    try:
        return statistics.amount_at(path, version)
    except SourceError as error:
        summary = read_summary(path, version)
        return (
            Amount(None, 0, None, str(error))
            if summary is None
            else Amount(summary.files, summary.bytes, None, str(error))
        )
