"""What becomes of a flow whose table is put back: it goes on after the batch that the table then holds last, in a generation of its own.

A query id is never used again (FACTS-spark, "Delta sink"): what it would write a second time Delta would leave out.
"""

from __future__ import annotations

from streamkeeper import generations, places
from streamkeeper.generations import EARLIEST, REBUILT, StartAt
from streamkeeper.going_back import Planned, Way, held_meanwhile, plan_beginning, plan_place
from streamkeeper.home import FlowHome
from streamkeeper.manifest import Flow
from streamkeeper.plans import FlowPlan
from streamkeeper.settings import Settings
from streamkeeper.standing import last_begun
from streamkeeper.storage import open_storage
from streamkeeper.table_versions import FlowAt


def plan_restored(settings: Settings, flow: Flow, stood: FlowAt | None, way: Way) -> Planned:
    """Plan what one flow does after its table was put back to where it stood so.

    :param stood: None where the flow is not named: it was declared later.
    :raises RequestError: where it stood cannot be gone back to any more.
    :raises CheckpointError: its checkpoint cannot be read.
    """
    home = FlowHome(open_storage(settings.state), flow.pipeline.name, flow.name)
    if last_begun(home) is None:
        return _never_begun(home, flow), ()
    if stood is not None and stood.done and flow.declaration.once and generations.finished(home) is not None:
        return held_meanwhile(settings, flow), ()
    if stood is None or stood.generation is None or stood.batch is None:
        return plan_beginning(settings, flow, way)
    path = settings.table_path(flow.declaration.target)
    return plan_place(settings, flow, places.at_batch(home, path, stood.generation, stood.batch), way)


def _never_begun(home: FlowHome, flow: Flow) -> FlowPlan:
    """Plan no generation: the flow is held meanwhile, and begins afterwards as it would have."""
    newest = generations.latest(home)
    return FlowPlan(
        flow=flow.full_name,
        target=flow.declaration.target,
        generation=newest.number if newest else None,
        next_generation=None,
        previous=None,
        fingerprint=flow.fingerprint,
        start=newest.start if newest else StartAt(EARLIEST),
        state=REBUILT,
        notes=("It never began: it is held meanwhile, and begins afterwards as it would have.",),
        once=flow.declaration.once,
    )
