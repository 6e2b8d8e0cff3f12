"""Recoveries of the small world, step by step, and the driver that begins what they decided."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Start, StartAt
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.storage import to_json
from tests.worlds.small_world import World

FLOW = "events.clean_events"


def plan(world: World, start: str = "after-last", recovery: str = "r1", **request: Any) -> Plan:
    made = engine.plan(
        world.settings, KIND, ResetRequest((FLOW,), StartAt(start), by="ada", **request), recovery
    )
    engine.propose(world.settings, made)
    engine.approve(world.settings, "events", recovery, "ada")
    return made


def carry_out(world: World, *steps: str, recovery: str = "r1") -> dict[str, Any]:
    """Carry out some steps, and give the evidence of the last one; what it says of the one flow or table is
    laid flat.
    """
    evidence: dict[str, Any] = {}
    for step in steps:
        evidence = engine.carry_out(world.settings, "events", recovery, step)
    return {
        **evidence,
        **evidence.get("flows", {}).get(FLOW, {}),
        **evidence.get("tables", {}).get("events", {}),
    }


def of(world: World, name: str) -> World:
    return replace(world, name=name, table="aside" if name.startswith("aside") else "events")


def drive(home: FlowHome) -> None:
    """Be a flow's driver, if nothing forbids it: begin the generation that is decided, and look at the
    sources.
    """
    generation = generations.latest(home)
    assert generation is not None
    if home.owners() or generations.read_start(home, generation.number):
        return
    epoch = (home.epochs() or [0])[-1] + 1
    lease = Lease(epoch, Process.current(), generation.number, "then")
    home.storage.create(home.lease(epoch), to_json(asdict(lease)))
    generations.begin(
        home,
        Start(generation.number, home.checkpoint(generation.number, 1), 0, {}, {}, (), None, epoch, "then"),
    )
    leases.beat(home, Heartbeat(epoch, 1, "running", generation.number, "then", batch=1, triggers=1))
    leases.leave(home, lease, "done")
