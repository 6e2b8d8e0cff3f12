"""Start position of a generation in each source: what counts as processed.

That is files, Kafka records, table versions, or seconds of the rate source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import AFTER_LAST, Generation, StartAt, StartMode
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import Before, Resolved
from streamkeeper.sources.kafka.options import fails_on_loss
from streamkeeper.sources.starts import starts_of
from streamkeeper.support.amounts import DATA_LOSS
from streamkeeper_jobs.sources.formats import Looks

_ONWARD = StartAt(AFTER_LAST)


@dataclass(frozen=True)
class Origin:
    """Start position of a generation. A source that is not in ``sources`` is read from its beginning.

    ``notes`` describe what has changed: sources that are new or gone.
    """

    sources: Mapping[str, Any]
    watermark_ms: int = 0
    notes: tuple[str, ...] = field(default=())


def find_origin(
    generation: Generation, sources: tuple[Source, ...], old_position: CommittedPosition | None, looks: Looks
) -> Origin:
    """Return the start position of a generation in each source, according to its decision.

    :param old_position: position of the generation before; None if there was none.
    :raises CheckpointError: the old checkpoint lacks what the decision needs.
    :raises RecoveryError: explicit offsets do not fit the sources, or unread data is gone.
    :raises SourceError: a source cannot be read now.
    """
    origin = _find(generation, sources, old_position, looks)
    positions = {
        source.name: looks.complete(source, origin.sources[source.name])
        for source in sources
        if source.name in origin.sources
    }
    return replace(origin, sources=positions)


def _find(
    generation: Generation, sources: tuple[Source, ...], old_position: CommittedPosition | None, looks: Looks
) -> Origin:
    start = generation.start
    begin = _Beginning(sources, old_position, looks, generation.accepted)
    match start.mode:
        # at its position, or at its position after that batch
        case StartMode.AFTER_LAST | StartMode.BATCH:
            return _after_last(begin)
        case StartMode.EARLIEST if generation.previous is None:
            return begin.as_declared()
        case StartMode.EARLIEST | StartMode.LATEST | StartMode.TIMESTAMP:
            return begin.at(start, {})
        # kept by a backup: the plan asked for consent to the cost
        case StartMode.OFFSETS if start.generation is not None:
            return _after_backup(begin, start.offsets or {})
        case StartMode.OFFSETS:
            return _explicit(begin, start)
        case StartMode.SIDE_TABLE:
            raise RecoveryError(
                f"Generation {generation.number} continues after a side table, and"
                f" {generation.recovery} ended before that table replaced the old one. Continue that"
                " recovery; if it was abandoned, reset the flow from the generation before"
                " (reset_checkpoint)."
            )
        case StartMode.GENERATION | StartMode.ADOPTED:
            raise RecoveryError(
                f"Generation {generation.number} is recorded to start {str(start.mode)!r}, which no driver"
                " carries out: its recovery does."
            )


@dataclass(frozen=True)
class _Beginning:
    """A generation that begins: its sources, and up to where the one before has read, ``old_position``."""

    sources: tuple[Source, ...]
    old_position: CommittedPosition | None
    looks: Looks
    accepted: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        return {source.name for source in self.sources}

    def at(self, start: StartAt, stood: Mapping[str, Any]) -> Origin:
        """Resolve a start in every source.

        :param stood: the processed offset by source name.
        """
        positions: dict[str, Any] = {}
        notes: list[str] = []
        for source in self.sources:
            offset = stood.get(source.name)
            _require_fit(source, offset)
            before = Before.of(self.old_position, source, offset)
            at = self.looks.resolve(source, start, before)
            notes += require(source, at, self.accepted)
            if at.position is not None:
                positions[source.name] = at.position
        return Origin(positions, notes=tuple(notes))

    def as_declared(self) -> Origin:
        """Start where the sources are declared to start; some such starts Spark itself finds."""
        positions = {
            source.name: starts_of(source).declared(source, partial(self.looks.look, source))
            for source in self.sources
        }
        return Origin({name: position for name, position in positions.items() if position is not None})


def require(source: Source, resolved: Resolved[Any], accepted: tuple[str, ...]) -> list[str]:
    """Return the notes of a resolved start, after a check that the driver may begin there.

    :raises RecoveryError: it may not, or unread data is gone and its loss was not accepted.
    """
    if resolved.wrong:
        raise RecoveryError(
            f"The offsets of source {source.name} cannot be used: {resolved.wrong}. Reset the flow again with"
            " others."
        )
    if resolved.blocked:
        raise RecoveryError(
            f"The source {source.name} cannot continue from its position: {resolved.blocked}. Nothing was"
            " changed. Restore them, or reset the flow from a timestamp, latest or earliest: its plan"
            " counts the impact."
        )
    if resolved.lost and fails_on_loss(source) and DATA_LOSS not in accepted:
        raise RecoveryError(
            f"The source {source.name} cannot continue from its position: {resolved.lost}. Nothing was"
            f" changed. reset_checkpoint continues with the rows that still exist, if `{DATA_LOSS}` is"
            " accepted; its plan counts the loss."
        )
    return [f"source {source.name}: {note}" for note in resolved.notes]


def _after_last(begin: _Beginning) -> Origin:
    offsets = begin.old_position.offsets() if begin.old_position is not None else None
    if offsets is None:
        origin = begin.at(_ONWARD, {})
        return replace(origin, notes=("nothing was processed before", *origin.notes))
    assert begin.old_position is not None, "it has offsets"
    notes = []
    for source in sorted(begin.sources, key=lambda item: item.name):
        if source.name not in offsets.sources:
            returned = begin.old_position.returned(source)
            begins = (
                "is new: read from its beginning"
                if returned is None
                else f"goes on after generation {returned[0].generation.number}"
            )
            notes.append(f"source {source.name} {begins}")
    notes += [f"source {name} is no longer read" for name in offsets.sources if name not in begin.names]
    origin = begin.at(_ONWARD, offsets.sources)
    return Origin(origin.sources, offsets.watermark_ms, (*notes, *origin.notes))


def _after_backup(begin: _Beginning, offsets: Mapping[str, Any]) -> Origin:
    """Continue after the offsets of a batch that a backup kept, without its watermark."""
    read = {name for name, offset in offsets.items() if offset is not None}
    notes = [f"source {name} is new: read from its beginning" for name in sorted(begin.names - read)]
    notes += [f"source {name} is no longer read" for name in sorted(read - begin.names)]
    origin = begin.at(_ONWARD, offsets)
    return replace(origin, notes=(*notes, *origin.notes))


def _explicit(begin: _Beginning, start: StartAt) -> Origin:
    offsets, names = start.offsets or {}, begin.names
    missing, unknown = sorted(names - offsets.keys()), sorted(offsets.keys() - names)
    if missing or unknown:
        raise RecoveryError(
            "The explicit offsets do not fit the flow's sources: without an offset are"
            f" {', '.join(missing) or 'none'}; not of the flow are {', '.join(unknown) or 'none'}. Reset the"
            f" flow again with one offset for each of {', '.join(sorted(names))}."
        )
    if begin.old_position is None:
        raise RecoveryError(
            "Explicit offsets need an earlier generation, and there is none. Start from earliest or latest."
        )
    return begin.at(start, offsets)


def _require_fit(source: Source, offset: Any) -> None:
    misfit = check_fits(source.format, offset) if offset is not None else None
    if misfit is not None:
        raise RecoveryError(f"The position of source {source.name} cannot be used: {misfit}")
