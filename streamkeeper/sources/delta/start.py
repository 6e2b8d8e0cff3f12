"""Start position of a generation in a Delta source. Pure: the table's history is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.source_options import moment_ms
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.history import (
    History,
    is_gone,
    next_held,
    offset_before,
    vacuumed,
    version_at,
)
from streamkeeper.errors import RecoveryError, SourceError
from streamkeeper.sources.base.format import Before, Resolved, SourceFormat


@dataclass(frozen=True)
class DeltaPosition:
    """The offset after which a generation reads, as Spark writes it.

    ``first_read`` is the version with which the flow began, if its source is declared to start later than
    with the whole table: only versions from there on are its history.
    """

    offset: dict[str, Any]
    first_read: int | None = None

    @property
    def version(self) -> int:
        """The version that is read next, or was being read."""
        return int(self.offset["reservoirVersion"])

    def version_before(self, history: History) -> int:
        """Return the version before the position; the position's own if the former is no longer held."""
        return self.version - 1 if self.version > 0 and history.holds_from(self.version - 1) else self.version

    def replay_options(self, history: History) -> dict[str, str]:
        """Return the reader options that limit a replay up to the offset to the flow's own history."""
        if self.first_read is None:
            return {}
        if self.first_read < self.version:
            return {"startingVersion": str(self.first_read)}
        return {
            "startingVersion": str(self.version_before(history)),
            "excludeRegex": ".*",
        }  # nothing was read yet

    @property
    def replayed_version(self) -> int:
        """The table's version that a replay up to the offset reads first (DeltaSource.getBatch)."""
        return self.version if self.offset.get("isStartingVersion") else self.version - 1


def after_last(
    offset: dict[str, Any], history: History, change_feed: bool = False
) -> Resolved[DeltaPosition]:
    """Continue after an old offset; without a position if a table that was created again is read whole."""
    reason = is_gone(offset, history)
    if reason is None:
        gone = vacuumed(offset, history, change_feed)
        return Resolved(DeltaPosition(offset)) if gone is None else Resolved(blocked=gone)
    if history.table_id is not None and offset["reservoirId"] != history.table_id:
        return Resolved(None, (f"{reason}; the new table is read from its beginning",), lost=reason)
    version = next_held(offset, history)
    position = DeltaPosition(before(history, version, offset))
    return Resolved(position, (f"{reason}; it continues with version {version}",), lost=reason)


def at_end(history: History, old: Mapping[str, Any] | None = None) -> DeltaPosition:
    """Continue with the next commit."""
    return DeltaPosition(before(history, history.newest + 1, old))


def at_moment(history: History, moment: int, old: Mapping[str, Any] | None = None) -> DeltaPosition:
    """Continue with the first version committed at a time (epoch ms) or later.

    :raises SourceError: the commits of that time were removed from the log.
    """
    return DeltaPosition(before(history, version_at(history, moment), old))


def as_declared(source: Source, history: History) -> DeltaPosition | None:
    """Start where the source is declared to start; None for its beginning.

    :raises RecoveryError: it is declared to start at a version that is not held.
    :raises SourceError: the commits of the declared time were removed from the log.
    """
    kind, _, argument = str(source.start).partition(":")
    if kind == "latest":
        return at_end(history)
    if kind == "timestamp":
        moment = moment_ms(argument)
        assert moment is not None, "it was checked when the source was declared"
        return at_moment(history, moment)
    if kind == "version":
        if not history.holds_from(int(argument)):
            raise RecoveryError(
                f"The source {source.name} is declared to start at version {argument}, and its table holds"
                f" {history.oldest} to {history.newest}. Correct its start."
            )
        return DeltaPosition(before(history, int(argument)))
    return None


def before(history: History, version: int, old: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the offset from which a version and all later ones are read.

    :param old: an offset of the same table, whose id counts if the remaining log does not name one. A driver
        finds the id itself.
    """
    return offset_before(history.table_id or str((old or {}).get("reservoirId", "")), version)


Look = Callable[[], History]


class DeltaStarts(SourceFormat[History, DeltaPosition]):
    """Starts in a Delta table."""

    expires = True

    def after(self, source: Source, before: Before, look: Look) -> Resolved[DeltaPosition]:
        if before.offset is None:
            return Resolved(self.declared(source, look))
        return after_last(before.offset, look(), source.reads_change_feed)

    def declared(self, source: Source, look: Look) -> DeltaPosition | None:
        return None if source.start == "earliest" else as_declared(source, look())

    def end(self, before: Before, look: Look) -> DeltaPosition:
        return at_end(look(), before.offset)

    def moment(self, before: Before, look: Look, moment_ms: int) -> DeltaPosition:
        return at_moment(look(), moment_ms, before.offset)

    def at(self, source: Source, before: Before, look: Look, offset: Any) -> Resolved[DeltaPosition]:
        history = look()
        reason = is_gone(offset, history) or vacuumed(offset, history, source.reads_change_feed)
        return Resolved(DeltaPosition(offset)) if reason is None else Resolved(wrong=reason)

    def is_there(self, source: Source) -> bool:
        return delta_log.exists(path_of(source))


def path_of(source: Source) -> str:
    """Return the path or URL of an opened Delta source.

    :raises SourceError: it has a name of the session catalog, which no driver has looked up yet.
    """
    if source.path is None:
        raise SourceError(
            f"The source {source.name} reads {source.registered_as} of the session catalog, and no driver has"
            " looked up yet where that is. Start the flow, and ask again."
        )
    return source.path
