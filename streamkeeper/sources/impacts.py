"""Impact of a reset, and of a move to an earlier place, in each source: what is lost, repeated, replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import CheckpointError, RequestError, StorageError
from streamkeeper.flows.generations import AFTER_LAST, EMPTY, LATEST, REBUILT, Restart, StartAt
from streamkeeper.observe.position import CommittedPosition, sources_of
from streamkeeper.sources.base.format import Case, SourceMove
from streamkeeper.sources.files.impacts import path_then
from streamkeeper.sources.formats import format_of
from streamkeeper.support.amounts import NONE, SourceImpact, in_words, unknown

UNREAD = "unknown: the checkpoint's offsets cannot be read"
"""A flow's position, in words, that its checkpoint no longer tells."""
_HISTORY = "rows that the sources no longer have cannot be read again"


def impact_of(
    source: Source,
    standing: CommittedPosition,
    position: dict[str, Any] | None,
    restart: Restart,
    stateful: bool | None,
) -> SourceImpact:
    """Return the impact of a reset in one source.

    :param source: opened (:mod:`streamkeeper.manifest.environment`); an environment variable that is not set
        here makes its impact unknown.
    :param position: the old checkpoint's offsets by source, or None if they cannot be read.
    :param stateful: whether the query as declared now keeps state; None if that is unknown.
    :raises RequestError: the requested position does not belong to the old checkpoint.
    :raises CheckpointError: the list of processed files is damaged, and the new generation is to start right
        after it.
    :raises StorageError: the source cannot be listed.
    """
    offset = position.get(source.name) if position is not None else None
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        if restart.start.mode == AFTER_LAST:
            raise RequestError(
                f"The source {source.name} was another kind of source in the old checkpoint: {misfit} It"
                " cannot continue from there. Give the new source another name, or choose earliest,"
                " latest, a timestamp or explicit offsets."
            )
        offset = None
    position_text = UNREAD if position is None else "nothing processed yet"
    returned = standing.returned(source) if position is not None and offset is None else None
    if returned is not None:
        # It is read again after a time without: the rows of before are in the table.
        standing, offset = returned
        position = {**(position or {}), source.name: offset}
    if offset is not None:
        position_text = describe(offset)
    if standing.is_older_copy:
        doubt = unknown(
            "the table has batches that this checkpoint never planned; it is an older copy, or was recreated"
        )
        return SourceImpact(
            source.name, position_text, f"start {restart.start.mode}", lost=doubt, repeated=doubt
        )
    case = Case(source, standing, position, offset, restart, stateful, position_text)
    impact = format_of(source).impact(case)
    number = None if position is None else forgotten(source, standing, is_new=offset is None)
    if number is None or restart.start.mode == LATEST:
        return impact
    doubt = unknown(f"generation {number} read it, and its checkpoint was removed: how far is not known")
    return replace(impact, repeated=doubt)


def forgotten(source: Source, standing: CommittedPosition, is_new: bool) -> int | None:
    """Return the newest earlier generation that read a source, or the path at which it reads now, and whose
    checkpoint was removed; None if there is none, or what it read is known otherwise.

    :param is_new: whether the position has no offset of the source.
    """
    is_elsewhere = path_then(standing.start.evidence, source) not in (None, source.path)
    for position in standing.removed() if is_new or is_elsewhere else ():
        assert position.home is not None, "only a generation with a home has earlier ones"
        number = position.generation.number
        if is_new and source.name in sources_of(position.home, number):
            return number
        if not is_new and path_then(position.start.evidence, source) == source.path:
            return number
    return None


def impact_from(source: Source, move: SourceMove) -> SourceImpact:
    """Return the impact of a move to an earlier place in one source: what the start needs, what is read
    again.

    :param source: opened (:mod:`streamkeeper.manifest.environment`).
    :raises RequestError: the place's offset does not fit the present source.
    :raises CheckpointError: the list of processed files is damaged.
    :raises StorageError: the source cannot be listed.
    """
    restart = Restart(StartAt(AFTER_LAST), REBUILT if move.state == REBUILT else EMPTY)
    impact = impact_of(source, move.place.standing, move.place.positions(), restart, move.stateful)
    position_text = UNREAD if move.position is None else describe(move.offset(source))
    impact = replace(impact, now=position_text, then=f"after {move.place}: {describe(move.then(source))}")
    return format_of(source).impact_again(source, move, impact)


def impact_of_emptied(
    source: Source,
    standing: CommittedPosition,
    position: dict[str, Any] | None,
    restart: Restart,
    stateful: bool | None,
) -> SourceImpact:
    """Return what a source has lost since it was read. What it still has is read again into a table that is
    empty: nothing comes twice. Parameters and errors as of :func:`impact_of`.

    What is gone is what a rebuild of all state from the history would lack.
    """
    again = impact_of(source, standing, position, restart, stateful)
    if not source.kind.history:
        doubt = unknown(f"{source.format} keeps no history: {_HISTORY}")
        return replace(again, lost=doubt, repeated=doubt)
    try:
        rebuilt = impact_of(source, standing, position, Restart(StartAt(AFTER_LAST), restart.state), True)
    except (CheckpointError, RequestError, StorageError) as error:
        rebuilt = replace(again, gone=unknown(f"the rows read before cannot be counted: {error}"))
    lost = rebuilt.gone
    if rebuilt.blocked is not None and lost.nothing:
        lost = unknown(rebuilt.blocked)
    if again.otherwise and lost.nothing:
        lost = unknown("rows that were read before are gone or have changed since")
    if not again.lost.nothing:
        lost = (
            again.lost
            if lost.nothing
            else unknown(f"{in_words(again.lost)} unread, and {in_words(lost)} read before")
        )
    notes = (f"{in_words(again.repeated)} of the rows read before are read again", *again.notes)
    return replace(
        again,
        lost=lost,
        repeated=lost if lost.files is None and lost.rows is None else NONE,
        gone=NONE,
        notes=notes,
    )
