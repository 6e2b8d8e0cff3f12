"""What becomes of a flow whose table is put back: it goes on after the batch that the table then holds last, in a generation of its own.

A query id is never used again (FACTS-spark, "Delta sink"): what it would write a second time Delta would leave out. The batch is named
where its offsets are still in the checkpoint. Spark keeps those of the last batches alone; for an older one the backup has kept them, and
they are read in that generation's checkpoint, whose list of processed files they speak of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streamkeeper import generations, places
from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.errors import RequestError
from streamkeeper.generations import OFFSETS, StartAt
from streamkeeper.going_back import Planned, Way, held_meanwhile, plan_beginning, plan_place
from streamkeeper.home import FlowHome
from streamkeeper.manifest import Flow
from streamkeeper.places import Place
from streamkeeper.plans import Refusal
from streamkeeper.requests import PRICES, UNKNOWN_PRICE
from streamkeeper.settings import Settings
from streamkeeper.standing import last_begun
from streamkeeper.storage import open_storage
from streamkeeper.table_versions import FlowAt


@dataclass(frozen=True)
class KeptPlace(Place):
    """A place whose offsets a backup has kept: ``kept``, by the names that the flow's sources had then."""

    kept: dict[str, Any] = field(default_factory=dict)
    watermark_ms: int = 0

    @property
    def start_at(self) -> StartAt:
        """The start of a generation that begins there."""
        return StartAt(OFFSETS, offsets=self.kept, generation=self.generation.number)

    def lacking_state(self) -> str | None:
        """Give the file of its offsets: without it no checkpoint can be copied, whatever there is of the state."""
        return self.checkpoint.path(f"offsets/{self.batch}")

    def offsets(self) -> OffsetEntry:
        """Give up to where its batch reads."""
        read = {name: offset for name, offset in self.kept.items() if offset is not None}
        return OffsetEntry(self.batch, 2, self.watermark_ms, 0, {}, read)


def plan_restored(settings: Settings, flow: Flow, stood: FlowAt | None, way: Way) -> Planned:
    """Plan what one flow does after its table was put back to where it stood so.

    :param stood: None where the flow is not named: it was declared later.
    :raises RequestError: where it stood cannot be gone back to any more.
    :raises CheckpointError: its checkpoint cannot be read.
    """
    home = FlowHome(open_storage(settings.state), flow.pipeline.name, flow.name)
    if last_begun(home) is None:
        return held_meanwhile(settings, flow), ()
    if stood is not None and stood.done and flow.declaration.once and generations.finished(home) is not None:
        return held_meanwhile(settings, flow), ()
    if stood is None or stood.generation is None or stood.batch is None:
        return plan_beginning(settings, flow, way)
    path = settings.table_path(flow.declaration.target)
    try:
        return plan_place(settings, flow, places.at_batch(home, path, stood.generation, stood.batch), way)
    except RequestError:
        place = _kept(home, stood)
        if place is None:
            raise
        return _with_kept(plan_place(settings, flow, place, way), place, way)


def _kept(home: FlowHome, stood: FlowAt) -> KeptPlace | None:
    """Give the place that the kept offsets say; None where nothing was kept, or the checkpoint that they speak of is gone."""
    assert stood.generation is not None and stood.batch is not None, "a flow that had written something stood after a batch"
    generation, start = generations.read(home, stood.generation), generations.read_start(home, stood.generation)
    if not stood.offsets or generation is None or start is None:
        return None
    if stood.generation not in places.begun(home):
        return None
    said = "its offsets were kept with the backup"
    return KeptPlace(generation, start, Checkpoint(home.storage, start.checkpoint), stood.batch, said, stood.offsets, stood.watermark_ms)


def _with_kept(planned: Planned, place: KeptPlace, way: Way) -> Planned:
    """Ask for what a query may emit once more: the watermark that it had by then is not gone on with."""
    flow, refused = planned
    if not place.watermark_ms or flow.stateful is False or UNKNOWN_PRICE in way.accept:
        return flow, refused
    said = (
        f"{PRICES[UNKNOWN_PRICE]}: the checkpoint does not have batch {place.batch} any more, and the query has a watermark: what it had "
        f"emitted by then may be emitted once more. To go on all the same, accept `{UNKNOWN_PRICE}`."
    )
    return flow, (*refused, Refusal(UNKNOWN_PRICE, said, flow.flow))
