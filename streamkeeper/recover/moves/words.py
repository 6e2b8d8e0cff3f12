"""What a plan says of a flow's move to its next generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamkeeper.declare.model import UPDATE, quarantine_of
from streamkeeper.flows.generations import AFTER_LAST, COPIED, EMPTY, REBUILT, given_before
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.recover.moves import pinned_settings
from streamkeeper.recover.moves.present import FlowNow
from streamkeeper.recover.plans.move import Move, TableEffect
from streamkeeper.support.amounts import Amount


def of_move(flow: Flow, present: FlowNow, move: Move, again: Amount | None, reason: str) -> Iterator[str]:
    """Yield where the flow begins, with which state, and what becomes of its table.

    :param again: rows of its table that are written again; None where that is not counted.
    :param reason: why the state after a place is what it is.
    """
    standing = present.standing
    if move.place is not None:
        standing = move.place.standing
        yield f"It begins after {move.place} ({move.place.found_by})."
        yield f"Its state is {move.state}: {reason}."
        yield from _of_table(flow, present, move, again)
    elif move.of_nothing:
        yield "It had written nothing at that version. It starts with all that its sources have."
        yield from _of_table(flow, present, move, again)
        return
    elif move.table is TableEffect.EMPTIED:
        yield from (("It runs once, and will be run again.",) if flow.declaration.once else ())
    else:
        yield from _of_start(flow, present, move)
    if move.state != COPIED:
        yield from pinned_settings.changes(flow, standing)


def _of_start(flow: Flow, present: FlowNow, move: Move) -> Iterator[str]:
    standing, safe = present.standing, present.is_safe_to_repeat
    batch = standing.batch
    if batch is None:
        yield ("No batch was ever committed: the new generation starts with the first input of the old one.")
    elif standing.ruled_by == "sink":
        yield (
            f"The table has batch {batch}, the checkpoint only {standing.last_commit}: the table's log"
            f" counts, so that batch {batch} is not written twice."
        )
    elif not standing.sink_known:
        yield (
            f"The checkpoint's last batch is {batch}; the table's log does not go back far enough to read"
            " its own without Spark. The driver reads it with Spark before it starts, and the later of"
            " both counts."
        )
    elif standing.missing_in_sink is not None:
        yield (
            f"The checkpoint's last batch is {batch}, but the table lacks {standing.missing_in_sink}: it"
            " was replaced or restored from an older copy. Only `earliest` reads those rows again."
        )
    else:
        yield f"Checkpoint and table agree: batch {batch} is the last."
    if present.position is not None and standing.is_implied:
        yield (
            f"{standing.checkpoint.path(f'offsets/{batch}')} cannot be read. What was read up to batch"
            f" {batch} is known all the same: from the lists of processed files, one for each batch, from"
            " the batches before and after, or from what the driver wrote down after it."
        )
    if safe:
        yield (
            f"The table {flow.declaration.target} is updated by key and sequence: changes that are read"
            " again have no effect, whether the state is rebuilt or starts empty."
        )
    if present.stateful is False:
        yield "The query, as declared now, keeps no state."
    elif move.state == EMPTY and not safe and not flow.declaration.replaces:
        yield (
            "State starts empty: rows that the old state would have dropped as duplicates count as new, so"
            " the target may get them again."
        )
    old_sources = set(standing.start.positions) | set(present.position or {})
    new = [source.name for source in flow.sources if old_sources and source.name not in old_sources]
    if new and move.start.mode == AFTER_LAST:
        yield from _of_new_sources(flow, standing, new)
    dropped_sources = sorted(old_sources - {source.name for source in flow.sources})
    if dropped_sources:
        yield (
            f"Sources that the flow no longer reads: {', '.join(dropped_sources)}. Unread rows in them are"
            " not read."
        )
    yield f"The table {flow.declaration.target} and the old checkpoint {standing.start.checkpoint} are kept."


def _of_new_sources(flow: Flow, standing: CommittedPosition, new: Sequence[str]) -> Iterator[str]:
    returned = {source.name for source in flow.sources if standing.returned(source) is not None}
    if again := [name for name in new if name in returned]:
        yield (
            f"Sources that an earlier generation read go on where it ended: {', '.join(again)}. The table has"
            " their rows of then."
        )
    if others := [name for name in new if name not in returned]:
        yield f"New sources start at their beginning: {', '.join(others)}."


def of_results(flow: Flow) -> Iterator[str]:
    """Yield what becomes of results that a later generation replaces."""
    target = flow.declaration.target
    if flow.declaration.mode == UPDATE:
        yield (
            f"A row of {target} is replaced when the new generation writes its key, whatever an older one"
            " wrote; rows of keys that it never writes stay."
        )
    else:
        yield f"The first batch of the new generation replaces all rows of {target}."


def of_initial_state(flow: Flow, present: FlowNow, move: Move) -> Iterator[str]:
    """Yield whether a flow's initial state is given to the next generation."""
    initial_state = flow.declaration.initial_state
    if initial_state is None:
        return
    before, read = given_before(present.standing.start.evidence, initial_state, move.restart), ""
    if initial_state.table is not None:
        read = " It is read as it is when the generation begins."
        if before is not None:
            number = present.standing.generation.number
            read = f" It is read at version {before['version']}, as for generation {number}."
    if move.state == COPIED:
        yield f"Initial state {initial_state}: not given again, since the copied state began with its own."
    elif move.state == REBUILT:
        yield f"Initial state {initial_state}: given again, and history after it.{read}"
    else:
        yield f"Initial state {initial_state}: given again; the state starts with it and nothing else.{read}"


def of_quarantine(flow: Flow) -> Iterator[str]:
    """Yield what becomes of the rows that the flow has set aside."""
    table = quarantine_of(flow.declaration)
    if table is not None:
        yield (
            f"The quarantine {table} is kept: rows that are read again and dropped again are set aside again,"
            " under the new generation's number."
        )


def _of_table(flow: Flow, present: FlowNow, move: Move, again: Amount | None) -> Iterator[str]:
    target = flow.declaration.target
    if move.restores_table:
        yield f"The table {target} is restored with it."
    elif present.is_safe_to_repeat:
        yield (
            f"The table {target} is kept. It is updated by key and sequence, so changes that are read again"
            " have no effect."
        )
    elif flow.declaration.replaces:
        yield f"The table {target} is kept: rows that are read again are counted into the state as of there."
    elif again is None:
        yield f"The table {target} is kept: rows that are read again are duplicated."
    else:
        yield (
            f"The table {target} is kept, with all that was written since: rows that the flow writes again"
            " are duplicated."
        )
    yield f"The old checkpoint {present.standing.start.checkpoint} stays."
