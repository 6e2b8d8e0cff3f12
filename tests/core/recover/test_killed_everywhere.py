"""Every kind of recovery, killed right after each change that it makes to the storage, and run again: the
same end, told the same way.

What its steps do in Spark is played here, and killed in tests/spark/recover/test_killed_recoveries.py.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.flows import generations, ledger
from streamkeeper.flows.generations import Start, StartAt
from streamkeeper.history import events as pipeline_events
from streamkeeper.history.events import Kind
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import KINDS, Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import open_storage
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.backups import COMMIT
from tests.killing import Killed, Mortal
from tests.worlds.recover import recoveries
from tests.worlds.recover.asked import ASKED, SET_APART
from tests.worlds.recover.recoveries import approve, drive
from tests.worlds.small_world import World
from tests.worlds.suites import long_but

NOT_PLAYED = {"rebuild_without_downtime": "tests/spark/recover/full_refresh/test_rebuild_without_downtime.py"}
"""Kinds whose steps in Spark are more than can be played here, and where they are killed instead."""

BY_DRIVERS = (Kind.STARTED, Kind.COMMITTED, Kind.STOPPED)
"""Events of the played driver."""


def test_every_kind_is_killed_here_or_elsewhere() -> None:
    assert {*ASKED, *SET_APART} == set(KINDS) and set(NOT_PLAYED) <= set(KINDS)


@pytest.fixture
def stands(world: World) -> World:
    """A flow that has done three batches, and is parked; of its generation before, begun long ago, the
    checkpoint is there.
    """
    world.processed(3)
    first = generations.read(world.home, 1)
    assert first is not None
    second = generations.with_number(replace(first, previous=1, start=StartAt("after-last")), world.home, 2)
    generations.decide(world.home, second)
    folder = world.home.checkpoint(2, 2)
    old = generations.read_start(world.home, 1)
    assert old is not None
    shutil.copytree(
        world.home.storage.path(old.checkpoint), world.home.storage.path(folder), dirs_exist_ok=True
    )
    generations.begin(world.home, Start(2, folder, None, {}, {}, (), None, 2, "2026-01-02T10:00:00+00:00"))
    world.write_table(second.query_id, 3)
    world.park(2)
    return world


def in_spark(act: str, work: Work) -> dict[str, Any]:
    """Play what a step does in Spark, as far as the steps after it look for it."""
    match act.rpartition(":")[2]:
        case "pin":
            [copying] = work.plan.details["copied"]
            folder = copying["folder"]
            open_storage(folder).overwrite(COMMIT, b'{"metaData":{"id":"copy"}}\n')
            source = work.settings.table_path("events")
            place = {"source": source, "path": f"{folder}/target"}
            copied = {"version": 3, "table_id": "copy", "files": 0, "bytes": 0, "rows": 0}
            return {"pinned": [{"table": {**place, **copied}, "flows": []}]}
        case "verify":
            return {"verified": [{"checksum": {"rows": 0, "sum": "0", "xor": 0}, "schema": "{}"}]}
        case "fill_step":
            return {"flow": "", "query_id": "", "done": True, "batch": 0, "missing": None}
    return {"tables": []}


def planned(world: World, name: str) -> Plan:
    asked = ASKED[name] | {"rewind": {"batch": "2/1"}, "restore_table": {"version": 5}}.get(name, {})
    return approve(world, recoveries.planned(world, name, **asked))


def to_the_end(world: World, plan: Plan, process: Mortal | None = None) -> None:
    """Carry out all steps; before the look for progress the flow's driver does its part, in a process of its
    own.
    """
    process = process or Mortal(0)
    for step in plan.steps:
        if step == "verify_progress":
            process.idle = True
            drive(world.home)
            process.idle = False
        engine.carry_out(world.settings, "events", "r1", step, in_spark)


def end_state(world: World) -> dict[str, Any]:
    """Everything that is left behind, but for moments, how often it had to try, and how often the played
    driver came.
    """
    newest = generations.latest(world.home)
    assert newest is not None
    folders = [world.root / name for name in ("state", "warehouse")]
    names = {
        re.sub(r"/0+[0-9]+", "/#", str(file))
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and "ledger/events" not in str(file)
    }
    happened = [
        (event.kind, event.text, event.by)
        for event in pipeline_events.read(world.home.storage, "events")
        if event.kind not in BY_DRIVERS
    ]
    events = [event.event for event in ledger.open(world.home.storage, "events", "r1").events()]
    return {
        "files": sorted(name for name in names if not name.endswith(".started.json")),
        "generations": world.home.generations(),
        "newest": replace(newest, at=""),
        "told": [event for event in events if not event.endswith(".started")],
        "started": sorted({event for event in events if event.endswith(".started")}),
        "happened": sorted({event for event in happened if event[0] == Kind.STEP_BEGAN}),
        "happened once": [event for event in happened if event[0] != Kind.STEP_BEGAN],
        "holds": world.home.owners(),
        "lock": recovery_lock.holder(world.home.storage, "events", "events"),
        "open": engine.is_open(world.settings, "events", "r1"),
    }


def put_back(world: World, kept: Path) -> None:
    for name in ("state", "warehouse"):
        shutil.rmtree(world.root / name)
        shutil.copytree(kept / name, world.root / name)


@pytest.mark.parametrize(
    "name",
    long_but(sorted(set(ASKED) - set(NOT_PLAYED)), "reset_checkpoint", "restore_table", "full_refresh"),
)
def test_a_recovery_that_is_killed_after_any_change_and_run_again_comes_to_the_same_end(
    name: str, stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_steps, "PROGRESS_SECONDS", 20.0)  # who waits for what does not come says so
    plan = planned(stands, name)
    kept = stands.root / "kept"
    for folder in ("state", "warehouse"):
        shutil.copytree(stands.root / folder, kept / folder)
    to_the_end(stands, plan)
    expected = end_state(stands)
    assert expected["lock"] is None and not expected["open"]
    assert expected["told"] == ["planned", "approved", *(f"{step}.done" for step in plan.steps), "ended"]
    for at in range(1, 1_000):
        put_back(stands, kept)
        with monkeypatch.context() as patch:
            process = Mortal(at)
            process.watch(patch)
            try:
                to_the_end(stands, plan, process)
                break
            except Killed:
                pass
        to_the_end(stands, plan)
        assert end_state(stands) == expected, f"killed after change {at}"
    assert at > 2 * len(plan.steps), "every step's start and end was among the changes"
