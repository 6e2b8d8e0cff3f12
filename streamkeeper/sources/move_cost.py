"""Cost of starting after an earlier position of a flow: what is read again, and what of it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper import amounts
from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.checkpoint import files_log
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import describe
from streamkeeper.flows.generations import AFTER_LAST, EMPTY, REBUILT, InitialState, Restart, StartAt
from streamkeeper.flows.past_positions import Place
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.sources.cost import price_of
from streamkeeper.sources.delta import cost as delta_cost
from streamkeeper.sources.files import listing as file_listing
from streamkeeper.sources.files.cost import UNREAD, processed_files, under_other_names
from streamkeeper.sources.files.options import FileOptions
from streamkeeper.sources.kafka import cost as kafka_cost


@dataclass(frozen=True)
class Move:
    """A flow's move from its present position to an earlier one, ``place``.

    ``position`` are its present offsets by source, None if they cannot be read. ``state`` is what the new
    generation begins with; ``stateful`` whether the query keeps any, None if that is unknown. With
    ``restored`` the table is restored to the same place.
    """

    standing: CommittedPosition
    position: Mapping[str, Any] | None
    place: Place
    state: InitialState
    stateful: bool | None
    restored: bool = False


def price_from(source: Source, move: Move) -> SourcePrice:
    """Return the cost of a move in one source: what the start needs, and what is read again.

    :param source: opened (:mod:`streamkeeper.manifest.environment`).
    :raises RequestError: the place's offset does not fit the present source.
    :raises CheckpointError: the list of processed files is damaged.
    :raises StorageError: the source cannot be listed.
    """
    then = move.place.positions()
    asked = Restart(StartAt(AFTER_LAST), REBUILT if move.state == REBUILT else EMPTY)
    found = price_of(source, move.place.standing, then, asked, move.stateful)
    position = None if move.position is None else dict(move.position)
    offset = None if position is None else position.get(source.name)
    where = "unknown: the checkpoint's offsets cannot be read" if position is None else describe(offset)
    found = replace(found, now=where, then=f"after {move.place}: {describe(then.get(source.name))}")
    if source.reads_files:
        return _with_files(source, move, found, offset, then.get(source.name))
    seen = kafka_cost.look(source, move.standing, offset) if source.format == KAFKA else None
    repeated = _repeated(source, seen, offset, then.get(source.name))
    if seen is not None and move.restored and not repeated.nothing and seen.holes:
        found = replace(found, lost=Amount(None, 0, None, seen.holes))
    if move.restored and then.get(source.name) is not None:
        found = _before_put_back(source, seen, found, move, then[source.name])
    if position is None:
        repeated = Amount(None, 0, None, "the checkpoint's offsets cannot be read")
    return _read_again(found, repeated, move)


def _with_files(source: Source, move: Move, price: SourcePrice, offset: Any, then: Any) -> SourcePrice:
    listed = {
        files_log.plain_path(entry.path): entry.timestamp_ms
        for entry in processed_files(move.place.standing, source, then, everything=False)
    }
    since = {
        path: entry.timestamp_ms
        for entry in processed_files(move.standing, source, offset, everything=move.position is None)
        if (path := files_log.plain_path(entry.path)) not in listed
    }
    present = file_listing.list_files(source)
    others = (
        {}
        if listed
        else dict(under_other_names(move.place.standing, source, move.place.positions(), present))
    )
    unlisted = (file for path, file in present.items() if path not in listed)
    skipped = {
        file.path for file in FileOptions.of(source).skipped(max(listed.values(), default=None), unlisted)
    }
    gone = [path for path in since if path not in present]
    anew = sum(path in present and present[path].modified_ms != written for path, written in since.items())
    waiting = len(present.keys() - listed.keys() - since.keys() - others.keys() - skipped)
    # Rows of files that are too old to be read again are not lost if the table keeps them.
    lost = file_listing.amount(
        source, [present[path] for path in skipped if move.restored or path not in since]
    )
    notes = (f"{waiting:,} {UNREAD}", *(note for note in price.notes if not note.endswith(UNREAD)))
    read = since.keys() - others.keys() if move.restored else since.keys() | others.keys()
    again = file_listing.amount(
        source, [present[path] for path in read if path in present and path not in skipped]
    )
    found = _read_again(
        replace(price, lost=lost, notes=notes, otherwise=bool(gone or anew or skipped)), again, move
    )
    if others and move.restored:  # the restored table has them already
        found = replace(found, repeated=file_listing.amount(source, [present[path] for path in others]))
    if anew:
        said = f"{anew:,} files were rewritten since they were read: they are read as they are now"
        found = replace(found, notes=(*found.notes, said))
    if gone and move.restored:
        more = f", and {len(skipped):,} are too old by maxFileAge" if skipped else ""
        lost = Amount(
            len(gone) + len(skipped), 0, None, f"the files no longer exist, such as {gone[0]}{more}"
        )
        return replace(found, lost=lost)
    if gone:
        return replace(
            found,
            notes=(
                *found.notes,
                f"{len(gone):,} files that were read since are gone: they are not read again",
            ),
        )
    return found


def _before_put_back(
    source: Source, seen: kafka_cost.Seen | None, price: SourcePrice, move: Move, then: Any
) -> SourcePrice:
    """Check what a driver would check itself before it begins: with a restore, that would be too late."""
    rebuilt = move.state == REBUILT and move.stateful is not False
    unseen = (
        seen.why if seen is not None else delta_cost.why_unseen(source) if source.format == DELTA else None
    )
    if unseen:
        lost = Amount(None, 0, None, f"it is unknown whether all unread rows still exist: {unseen}")
        history = Amount(
            None, 0, None, f"it is unknown whether all rows that were read still exist: {unseen}"
        )
        return replace(
            price, lost=lost, gone=history if rebuilt and seen is not None else price.gone, notes=()
        )
    why = delta_cost.why_not_rebuilt(source, then) if source.format == DELTA and rebuilt else None
    if why is None or price.blocked is not None:
        return price
    words = f"state cannot be rebuilt: {why}"
    if move.stateful:
        return replace(price, blocked=f"{words}. Choose state `empty`")
    return replace(price, notes=tuple(dict.fromkeys((*price.notes, words))))


def _repeated(source: Source, seen: kafka_cost.Seen | None, offset: Any, then: Any) -> Amount:
    """Return what was read since the place, of a source without a list of files."""
    if seen is not None:
        return kafka_cost.read_again(seen, then)
    if source.format == DELTA:
        return delta_cost.read_again(source, offset, then)
    return NONE if then == offset else Amount(None, 0, None, f"{source.format} keeps no history to count")


def _read_again(price: SourcePrice, amount: Amount, move: Move) -> SourcePrice:
    """Add what is read again: duplicates if the table is kept, no price if it is restored to before them."""
    if not move.restored or amount.nothing:
        return replace(price, repeated=amount)
    said = f"{amounts.in_words(amount)} are read and written again, into the restored table"
    return replace(price, repeated=NONE, notes=(*price.notes, said))
