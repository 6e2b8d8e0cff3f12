"""The plan of a flow whose table is restored: a generation that starts after the last batch in that table.

A query id is never used again: Delta would skip what it writes again (PROTOCOL.md, "Transaction
Identifiers"). The start is that batch if the checkpoint still has its offsets. Spark keeps those of the last
batches only (``spark.sql.streaming.minBatchesToRetain``). For an older batch the backup has kept the offsets;
they refer to that generation's checkpoint and its list of processed files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.delta.log import FENCE, Transactions
from streamkeeper.errors import CheckpointError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import OFFSETS, StartAt
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe import past_positions
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.past_positions import Place
from streamkeeper.recover.moves.next_generation import held_meanwhile, plan_beginning, plan_move
from streamkeeper.recover.moves.present import look_at
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Planned, Refusal
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import DUPLICATES, IMPACTS, UNKNOWN_IMPACT, unknown
from streamkeeper.tables.flows_at_version import FlowAt, flow_at, query_ids


@dataclass(frozen=True)
class KeptPlace(Place):
    """A place whose offsets a backup has kept: ``kept_offsets``, by the sources' names then."""

    kept_offsets: dict[str, Any] = field(default_factory=dict)
    watermark_ms: int = 0

    @property
    def start_at(self) -> StartAt:
        """The start of a generation that begins there."""
        return StartAt(OFFSETS, offsets=self.kept_offsets, generation=self.generation.number)

    def lacking_state(self) -> str | None:
        """Return the file of its offsets, without which no checkpoint can be copied, whatever its state."""
        return self.checkpoint.path(f"offsets/{self.batch}")

    def offsets(self) -> OffsetEntry:
        """Return up to where its batch reads."""
        read = {name: offset for name, offset in self.kept_offsets.items() if offset is not None}
        return OffsetEntry(self.batch, 2, self.watermark_ms, 0, {}, read)


def plan_restored(
    settings: Settings, flow: Flow, stood: FlowAt | None, way: Move, wrote: Mapping[str, int] | None = None
) -> Planned:
    """Plan what one flow does after its table was restored to where it stood so.

    :param stood: None where the flow is not named: it was declared later, or was not declared while the
        backup was made.
    :param wrote: the last transaction of every writer in what is restored, which tells the one from the
        other.
    :raises RequestError: where it stood cannot be gone back to any more.
    :raises CheckpointError: its checkpoint cannot be read.
    """
    home = open_home(settings, flow.full_name)
    if Observed(home).begun is None:
        return held_meanwhile(settings, flow), ()
    if stood is None and wrote and not wrote.keys().isdisjoint(query_ids(home).values()):
        stood = _by_transactions(home, wrote)
        if stood is None:
            return _from_an_unknown_batch(
                plan_beginning(settings, flow, way),
                flow.declaration.replaces or look_at(settings, flow, strict=False).is_safe_to_repeat,
                way,
            )
    # Done then and now, but in a later generation: what that one wrote is undone, too.
    stays_done = stood is not None and stood.done and generations.finished(home) == stood.generation
    if flow.declaration.once and stays_done:
        return held_meanwhile(settings, flow), ()
    if stood is None or stood.generation is None or stood.batch is None:
        return plan_beginning(settings, flow, way)
    path = settings.table_path(flow.declaration.target)
    try:
        place = past_positions.at_batch(home, path, stood.generation, stood.batch)
        return plan_move(settings, flow, replace(way, place=place))
    except RequestError:
        kept_place = _kept_place(home, stood)
        if kept_place is None:
            raise
        move = replace(way, place=kept_place)
        return _with_kept(plan_move(settings, flow, move), kept_place, way)


def _by_transactions(home: FlowHome, wrote: Mapping[str, int]) -> FlowAt | None:
    """Return a flow's position by the transactions alone of what is restored; None where they do not tell.

    A fence does not say what was the last batch before it, nor which generation had taken over by then.
    """

    def last(app_id: str) -> Transactions:
        version = wrote.get(app_id)
        if version == FENCE:
            raise CheckpointError(f"{app_id} was shut out")
        return Transactions(version, None, complete=True)

    try:
        return flow_at(home, last)
    except CheckpointError:
        return None


def _from_an_unknown_batch(planned: Planned, safe: bool, way: Move) -> Planned:
    """Return the refusal for what a flow that begins from its beginning brings again: rows of it are in what
    is put back.

    :param safe: whether rows that are read again change nothing in the table.
    """
    flow, refused = planned
    note = (
        "The backup has rows of it and does not say up to which batch: it starts with all that its sources"
        " have."
    )
    doubt = None if safe else unknown("the backup does not say up to which batch it has rows of the flow")
    flow = replace(flow, notes=(note, *flow.notes[1:]), written_again=doubt)
    if safe or DUPLICATES in way.accept:
        return flow, refused
    message = (
        f"{IMPACTS[DUPLICATES]}: the backup has rows of {flow.flow}, which was not declared when it was made,"
        " and does not say up to which batch. The flow starts with all that its sources have, so an unknown"
        f" number of rows is duplicated. Choose another backup. To continue anyway, accept `{DUPLICATES}`."
    )
    return flow, (
        *(item for item in refused if item.impact != DUPLICATES),
        Refusal(DUPLICATES, message, flow.flow),
    )


def _kept_place(home: FlowHome, stood: FlowAt) -> KeptPlace | None:
    """Return the place of the kept offsets; None if none were kept, or their checkpoint is gone."""
    assert stood.generation is not None and stood.batch is not None, (
        "a flow that had written something stood after a batch"
    )
    generation, start = (
        generations.read(home, stood.generation),
        generations.read_start(home, stood.generation),
    )
    if not stood.offsets or generation is None or start is None:
        return None
    if stood.generation not in past_positions.begun(home):
        return None
    found_by = "its offsets were kept with the backup"
    return KeptPlace(
        generation,
        start,
        Checkpoint(home.storage, start.checkpoint),
        stood.batch,
        found_by,
        stood.offsets,
        stood.watermark_ms,
    )


def _with_kept(planned: Planned, place: KeptPlace, way: Move) -> Planned:
    """Return the refusal for what a query may emit again, as its watermark then is not continued."""
    flow, refused = planned
    if not place.watermark_ms or flow.stateful is False or UNKNOWN_IMPACT in way.accept:
        return flow, refused
    message = (
        f"{IMPACTS[UNKNOWN_IMPACT]}: batch {place.batch} is no longer in the checkpoint, and the query has a"
        " watermark: rows it had emitted by then may be emitted again. To continue anyway, accept"
        f" `{UNKNOWN_IMPACT}`."
    )
    return flow, (*refused, Refusal(UNKNOWN_IMPACT, message, flow.flow))
