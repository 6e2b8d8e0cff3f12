"""Recoveries of the small world, step by step, and the driver that begins what they decided."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Start, StartAt
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.engine import InSpark
from streamkeeper.recover.kinds.reset_checkpoint import KIND as RESET
from streamkeeper.recover.plans.kind import Kind, Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.storage import to_json
from streamkeeper.support.amounts import SourceImpact
from tests.worlds.small_world import World

FLOW = "events.clean_events"


def asked(world: World, of: str, /, **values: Any) -> Any:
    """Return the request that a form with these values makes."""
    return kind(of).parse(values, read_manifest(world.settings), "ada")


def look(world: World, of: Kind, request: Any, recovery: str = "r1") -> Plan:
    """Plan a recovery, and make sure that this changed no file."""
    read_manifest(world.settings)  # made before, which is no change of the flow
    before = world.tree()
    try:
        return engine.plan(world.settings, of, request, recovery)
    finally:
        assert world.tree() == before


def planned(world: World, of: str, recovery: str = "r1", /, **values: Any) -> Plan:
    """Plan a recovery as a form asks for it, and make sure that this changed no file."""
    return look(world, kind(of), asked(world, of, **values), recovery)


def plan_reset(
    world: World,
    start: StartAt | str = "after-last",
    recovery: str = "r1",
    flows: tuple[str, ...] = (FLOW,),
    **request: Any,
) -> Plan:
    """Plan a reset, and make sure that this changed no file."""
    wanted = StartAt(start) if isinstance(start, str) else start
    return look(world, RESET, ResetRequest(flows, wanted, by="ada", **request), recovery)


def approve(world: World, made: Plan) -> Plan:
    """Propose a plan, and approve it."""
    engine.propose(world.settings, made)
    engine.approve(world.settings, made.pipeline, made.recovery_id, "ada")
    return made


def refused(found: Plan) -> list[str | None]:
    """Return the impacts that a plan asks for; None is an obstacle, which nobody can accept."""
    return [item.impact for item in found.refusals]


def impact(found: Plan) -> SourceImpact:
    """Return what becomes of the first source of a plan's first flow."""
    return found.flows[0].impacts[0]


def notes(found: Plan) -> str:
    """Return what a plan notes of its first flow, a line each."""
    return "\n".join(found.flows[0].notes)


def carry_out(
    world: World, *steps: str, recovery: str = "r1", in_spark: InSpark | None = None
) -> dict[str, Any]:
    """Carry out some steps, and give the evidence of the last one."""
    evidence: dict[str, Any] = {}
    for step in steps:
        evidence = engine.carry_out(world.settings, "events", recovery, step, in_spark)
    return evidence


@dataclass
class Submits:
    """Plays spark-submit for the command line, and keeps what it was asked: a step in Spark gives
    ``evidence``, but fails the first ``failures`` times, for the reason ``why``.
    """

    world: World
    evidence: dict[str, Any]
    failures: int = 0
    why: str = ""
    commands: list[list[str]] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        _, pipeline, _, recovery, _, step = command[-6:]
        try:
            engine.carry_out(self.world.settings, pipeline, recovery, step, self._in_spark)
        except RecoveryError:
            return subprocess.CompletedProcess(command, 1)
        return subprocess.CompletedProcess(command, 0)

    def _in_spark(self, act: str, _: Work) -> dict[str, Any]:
        self.acts.append(act)
        if len(self.acts) <= self.failures:
            raise RecoveryError(self.why)
        return self.evidence


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
    lease = Lease(epoch, Process.current(), generation.number, "2026-11-21T10:00:00+00:00")
    home.storage.create(home.lease(epoch), to_json(asdict(lease)))
    generations.begin(
        home,
        Start(
            generation.number,
            home.checkpoint(generation.number, 1),
            0,
            {},
            {},
            (),
            None,
            epoch,
            "2026-11-21T10:00:00+00:00",
        ),
    )
    leases.beat(home, Heartbeat(epoch, 1, "running", generation.number, "then", batch=1, triggers=1))
    leases.leave(home, lease, "done")
