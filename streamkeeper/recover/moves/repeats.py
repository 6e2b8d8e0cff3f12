"""Number of rows that a new generation writes to its table again, counted in the table's log.

The rows that are read again are not enough: a batch without input may write too, such as closed windows,
nulls of outer joins, timers. The batches that led to a flow's position are its *line*: those of its
generation, of the one that it followed up to that start, and so on. The batches after the start of the new
generation are undone, and their rows stay in the table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.declare.offsets import is_reached
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE, LogCommit
from streamkeeper.errors import CheckpointError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import (
    ADOPTED,
    AFTER_LAST,
    BATCH,
    COPIED,
    EARLIEST,
    EMPTY,
    OFFSETS,
    SIDE_TABLE,
    Generation,
    Start,
    StartAt,
)
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.past_positions import Place
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.recover.moves.present import FlowNow
from streamkeeper.recover.plans.move import Move
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, unknown
from streamkeeper.tables import past_versions

EMPTY_STATE = (
    "the state starts empty: rows it had collected but not written are lost, and later rows of the same"
    " groups give other results; no log can count them"
)
_AT_ONCE = 8
"""Commits of a log that are read together."""


@dataclass(frozen=True)
class _Part:
    """The batches of one generation on the way to a flow's position: above ``after``, up to ``upto``."""

    number: int
    writer: str
    after: int
    upto: int
    place: Place | None = None


@dataclass(frozen=True)
class _Line:
    """The parts that lead to where a flow stands, newest first. ``whole`` says that each continues exactly
    where the one before it ended.

    ``gap`` says what of it is no longer known.
    """

    parts: tuple[_Part, ...]
    whole: bool = True
    gap: str | None = None


def written_again(
    settings: Settings, flow: Flow, present: FlowNow, impacts: Sequence[SourceImpact], move: Move
) -> Amount | None:
    """Return the rows of a flow's table that its next generation writes once more; None for a table that is
    kept by key and sequence, or replaced, and for a sink, whose rows nobody counts.

    The amount is exact where the very rows come again, and ``at_most`` where fewer may; it is unknown, with
    the reason, where the table's log does not tell.

    :param impacts: of what is read again, by source.
    :raises CheckpointError: the table's log is damaged.
    """
    if flow.declaration.spec is not None or flow.declaration.replaces:
        return None
    if flow.sink is not None:
        return None
    forgets = move.state == EMPTY and present.stateful is not False and move.start.mode != EARLIEST
    if forgets and not present.lets_rows_through:
        return unknown(EMPTY_STATE)
    if not forgets and all(impact.repeated.nothing for impact in impacts):
        elsewhere = move.place is None and move.start.mode not in (AFTER_LAST, EARLIEST)
        if move.restores_table or move.start.mode == AFTER_LAST or (elsewhere and present.lets_rows_through):
            return NONE
    home = open_home(settings, flow.full_name)
    line = _line_of(home, present.standing)
    undone, exact = _undone(home, line, present, impacts, move)
    if forgets and not move.restores_table:  # each of its rows may be sent once more, and is then known again
        undone, exact = list(line.parts), False
    if line.gap is not None and (not undone or undone[-1] is line.parts[-1]):
        return unknown(line.gap)
    again = all(
        impact.repeated.rows_unknown is None and not impact.repeated.at_most and not impact.otherwise
        for impact in impacts
    )
    amount = _rows_of(settings.table_path(flow.declaration.target), undone)
    return (
        amount
        if (exact and again) or amount.nothing or amount.rows_unknown
        else replace(amount, at_most=True)
    )


def _undone(
    home: FlowHome, line: _Line, present: FlowNow, impacts: Sequence[SourceImpact], move: Move
) -> tuple[list[_Part], bool]:
    """Return the parts of a line that are written again, and whether they are so exactly."""
    if move.restores_table:
        # Files that are read under another name than they were: the table that is put back has their rows.
        back = line if move.place is None else _line_of(home, move.place.standing)
        return list(back.parts), False
    if move.place is not None:
        undone, met = _after_place(line, _line_of(home, move.place.standing), move.place)
        return undone, met and (move.state == COPIED or present.stateful is False)
    if move.start.mode == EARLIEST:
        return list(line.parts), line.whole and present.stateful is not None
    if move.start.mode == AFTER_LAST or not present.lets_rows_through:
        return list(line.parts), False
    position = _read_from(impacts, move.start)
    return (list(line.parts) if position is None else list(_beyond(line, position))), False


def _after_place(line: _Line, other: _Line, place: Place) -> tuple[list[_Part], bool]:
    """Return the batches of a line after it left the line to a place, and whether it left at that place."""
    shared = {part.number: part.upto for part in other.parts}
    undone: list[_Part] = []
    for part in line.parts:
        if part.number not in shared:
            undone.append(part)
            continue
        parted = max(part.after, min(part.upto, shared[part.number]))
        if parted < part.upto:
            undone.append(replace(part, after=parted))
        return undone, line.whole and (part.number, parted) == (place.generation.number, place.batch)
    return undone, False


def _read_from(impacts: Sequence[SourceImpact], start: StartAt) -> dict[str, Any] | None:
    """Return a position before all that is read again, by source, without unread ones; None if unknown."""
    position: dict[str, Any] = {}
    for impact in impacts:
        if impact.repeated.nothing:
            continue
        if start.mode == OFFSETS and start.offsets is not None:
            position[impact.source] = start.offsets.get(impact.source)
        elif impact.first_again is not None:
            position[impact.source] = {"logOffset": impact.first_again - 1}
        else:
            return None
    return position


def _beyond(line: _Line, position: Mapping[str, Any]) -> Iterator[_Part]:
    """Return what of a line read beyond a position."""
    for part in line.parts:
        upto = _last_within(part, position)
        if upto is None:
            yield part
            continue
        if upto < part.upto:
            yield replace(part, after=upto)
        return


def _last_within(part: _Part, position: Mapping[str, Any]) -> int | None:
    """Return the last batch of a part that read no further than a position; None if none, or unknown."""
    if part.place is None:
        return None

    def is_beyond(batch: int) -> bool:
        assert part.place is not None, "asked for parts whose checkpoint is known"
        positions = replace(part.place, batch=batch).positions()
        return not all(is_reached(positions.get(name), offset) for name, offset in position.items())

    try:
        batches = [
            batch for batch in part.place.checkpoint.offset_batches() if part.after <= batch <= part.upto
        ]
        count = bisect_right(batches, False, key=is_beyond)
    except CheckpointError:
        return None
    return batches[count - 1] if count else None


def _line_of(home: FlowHome, standing: CommittedPosition) -> _Line:
    parts: list[_Part] = []
    whole = True
    generation: Generation | None = standing.generation
    start: Start | None = standing.start
    upto = standing.batch
    number = standing.generation.number
    while True:
        if generation is None or start is None:
            return _Line(
                tuple(parts),
                whole,
                f"generation {number} of {home.full_name}, which it followed, is not kept any more",
            )
        seed = -1 if start.seed_batch is None else start.seed_batch
        if upto is not None and upto > seed:
            place = Place(generation, start, replace(standing.checkpoint, folder=start.checkpoint), upto, "")
            parts.append(_Part(generation.number, generation.query_id, seed, upto, place))
        mode, before = generation.start.mode, start.evidence.get("generation")
        if mode == ADOPTED and generation.start.query_id is not None:
            parts.append(_Part(0, generation.start.query_id, -1, seed))
            return _Line(tuple(parts), whole)
        if mode in (EARLIEST, SIDE_TABLE) or before is None:
            return _Line(tuple(parts), whole)
        whole = whole and mode in (AFTER_LAST, BATCH)
        number, upto = int(before), start.evidence.get("batch")
        generation, start = generations.read(home, number), generations.read_start(home, number)


def _rows_of(path: str, undone: Sequence[_Part]) -> Amount:
    """Count the rows that batches wrote, in the log of their table."""
    if not undone:
        return NONE
    parts_by_writer = {part.writer: part for part in undone}
    rows, at_most, last = 0, False, undone[-1]
    named: set[str] = set()
    version: int | None = None
    for commit in delta_log.commits(path, _AT_ONCE):
        version = commit.version
        ours = {
            app: batch
            for app, batch in commit.transactions.items()
            if app in parts_by_writer and batch < FENCE
        }
        named.update(ours)
        if any(
            parts_by_writer[app].after < batch <= parts_by_writer[app].upto for app, batch in ours.items()
        ):
            if commit.rows is None:
                return unknown(f"version {version} of {path} does not say how many rows it added")
            rows += commit.rows
            at_most = at_most or _holds_more(commit, ours, parts_by_writer)
        elif commit.removed and past_versions.is_of_others(commit, parts_by_writer):
            at_most = True  # somebody took rows away, or changed some
        if last.writer in ours and ours[last.writer] <= last.after + 1:
            break
    else:
        if version != 0:
            reason = (
                "there is no table"
                if version is None
                else f"it starts at version {version} now, since Delta removes old commits"
            )
            return unknown(f"the log of {path} does not say how many rows the batches wrote: {reason}")
    strange = [part for part in undone if part.number == 0 and part.writer not in named]
    if strange:
        return unknown(f"the log of {path} does not name the query {strange[0].writer}, which was adopted")
    return Amount(None, 0, rows, at_most=at_most and rows > 0)


def _holds_more(commit: LogCommit, ours: Mapping[str, int], parts_by_writer: Mapping[str, _Part]) -> bool:
    """Return whether a commit has rows of more batches than the undone: it put a side table in place."""
    whole = commit.version == 0 or past_versions.changed_by(commit) is not None
    return whole and any(batch > 0 for app, batch in ours.items() if batch <= parts_by_writer[app].upto)
