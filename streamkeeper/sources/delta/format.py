"""A Delta table as a format of source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamkeeper.amounts import SourcePrice
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.history import History, commits, read_history, require_history
from streamkeeper.errors import SourceError
from streamkeeper.sources.base.format import Before, Case, Move, Resolved, SourceFormat, Waiting
from streamkeeper.sources.delta import cost, start
from streamkeeper.sources.delta.start import DeltaPosition

Look = Callable[[], History]


class Delta(SourceFormat[History, DeltaPosition]):
    """A Delta table; a position is a version, and files of it."""

    expires = True

    def look(self, source: Source) -> History:
        return require_history(path_of(source), source.name)

    def after(self, source: Source, before: Before, look: Look) -> Resolved[DeltaPosition]:
        if before.offset is None:
            return Resolved(self.declared(source, look))
        return start.after_last(before.offset, look())

    def declared(self, source: Source, look: Look) -> DeltaPosition | None:
        return None if source.start == "earliest" else start.as_declared(source, look())

    def end(self, before: Before, look: Look) -> DeltaPosition:
        return start.at_end(look(), before.offset)

    def moment(self, before: Before, look: Look, moment_ms: int) -> DeltaPosition:
        return start.at_moment(look(), moment_ms, before.offset)

    def at(self, source: Source, before: Before, look: Look, wanted: Any) -> Resolved[DeltaPosition]:
        return start.at(wanted, look())

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
            return Waiting(
                True, f"the source {source.name} cannot be looked at, and so hardly be read: {error}"
            )
        return Waiting(False)

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        history = read_history(source.path) if source.path is not None else None
        if history is None or history.table_id in (None, offset["reservoirId"]):
            return None
        return (
            f"{key} has read the Delta table {offset['reservoirId']}, and {source.name} reads"
            f" {history.table_id} at {source.path}"
        )

    def is_there(self, source: Source) -> bool:
        return delta_log.exists(path_of(source))


def path_of(source: Source) -> str:
    """Return the path or URL of an opened Delta source."""
    assert source.path is not None, "an opened Delta source has a path"
    return source.path
