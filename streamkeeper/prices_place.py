"""What it costs to begin after a place in a flow's past: what is read again, and what of it is not there any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper import plans, prices_delta, prices_kafka, probes
from streamkeeper.declarations import DELTA, KAFKA, Source
from streamkeeper.generations import AFTER_LAST, EMPTY, REBUILT, StartAt
from streamkeeper.places import Place
from streamkeeper.plans import NONE, Amount, SourcePrice
from streamkeeper.positions import describe
from streamkeeper.prices import UNREAD, price_of, processed_files
from streamkeeper.reset_requests import ResetRequest
from streamkeeper.standing import Standing


@dataclass(frozen=True)
class Move:
    """A flow's move from where it stands to a place.

    ``position`` are its present offsets by source, None where they cannot be read. ``state`` is what the new generation begins with;
    ``stateful`` whether the query keeps any, None where that is not known. With ``restored`` the table is put back to the same place.
    """

    standing: Standing
    position: Mapping[str, Any] | None
    place: Place
    state: str
    stateful: bool | None
    restored: bool = False


def price_from(source: Source, move: Move) -> SourcePrice:
    """Say what a move costs in one source: what a start after the place's batch needs, and what is read that was read since.

    :param source: opened (:mod:`streamkeeper.opening`).
    :raises RequestError: the place's offset is none of the source as it is now.
    :raises CheckpointError: the list of processed files is damaged.
    :raises StorageError: the source cannot be listed.
    """
    then = move.place.positions()
    asked = ResetRequest((), StartAt(AFTER_LAST), state=REBUILT if move.state == REBUILT else EMPTY)
    found = price_of(source, move.place.standing, then, asked, move.stateful)
    position = None if move.position is None else dict(move.position)
    offset = None if position is None else position.get(source.name)
    where = "unknown: the checkpoint's offsets cannot be read" if position is None else describe(offset)
    found = replace(found, now=where, then=f"after {move.place}: {describe(then.get(source.name))}")
    if source.reads_files:
        return _with_files(source, move, found, offset, then.get(source.name))
    repeated = _repeated(source, move, offset, then.get(source.name))
    if position is None:
        repeated = Amount(None, 0, None, "the checkpoint's offsets cannot be read")
    return _read_again(found, repeated, move)


def _with_files(source: Source, move: Move, price: SourcePrice, offset: Any, then: Any) -> SourcePrice:
    before = {probes.plain_path(entry.path) for entry in processed_files(move.place.standing, source, then, everything=False)}
    since = {
        path: entry.timestamp_ms
        for entry in processed_files(move.standing, source, offset, everything=move.position is None)
        if (path := probes.plain_path(entry.path)) not in before
    }
    present = probes.list_files(source)
    gone = [path for path in since if path not in present]
    anew = sum(path in present and present[path].modified_ms != written for path, written in since.items())
    waiting = len(present.keys() - before - since.keys())
    price = replace(price, notes=(f"{waiting:,} {UNREAD}", *(note for note in price.notes if not note.endswith(UNREAD))))
    found = _read_again(price, probes.amount(source, [present[path] for path in since if path in present]), move)
    if anew:
        said = f"{anew:,} files were written anew since they were read: they are read as they are now"
        found = replace(found, notes=(*found.notes, said))
    if gone and move.restored:
        lost = Amount(len(gone), 0, None, f"the files are not there any more, such as {gone[0]}")
        return replace(found, lost=lost)
    if gone:
        return replace(found, notes=(*found.notes, f"{len(gone):,} files that were read since are gone: they are not read again"))
    return found


def _repeated(source: Source, move: Move, offset: Any, then: Any) -> Amount:
    """Give what was read of a source that lists no files between a place and now."""
    if source.format == KAFKA:
        return prices_kafka.read_again(prices_kafka.look(source, move.standing, offset), then)
    if source.format == DELTA:
        return prices_delta.read_again(source, offset, then)
    return NONE if then == offset else Amount(None, 0, None, f"{source.format} keeps no history to count")


def _read_again(price: SourcePrice, amount: Amount, move: Move) -> SourcePrice:
    """Add what is read again: repeated where the table keeps it, and no price where the table is put back to before it."""
    if not move.restored or amount.nothing:
        return replace(price, repeated=amount)
    said = f"{plans.in_words(amount)} are read and written again, into the table as it was before them"
    return replace(price, repeated=NONE, notes=(*price.notes, said))
