"""What each flow is doing, found by looking."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import pytest

from streamkeeper.errors import StorageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.manifest.manifest import UNREADABLE
from streamkeeper.observe import status
from streamkeeper.observe.status import FlowStatus
from streamkeeper.storage import to_json
from tests.worlds.small_world import CHANGES, EVENTS, World

HERE = Process.current()
DEAD = replace(HERE, started=HERE.started - 1)
ELSEWHERE = replace(HERE, boot_id="another-boot")


def look(world: World) -> FlowStatus:
    flow = world.flow
    before = world.tree()
    found = status.look(world.home.storage, flow)
    assert world.tree() == before, "looking changes nothing"
    return found


def driver(world: World, process: Process, phase: str | None = "running") -> Lease:
    lease = Lease(1, process, 1, "2026-11-21T10:00:00+00:00")
    world.home.storage.create(world.home.lease(1), to_json(asdict(lease)))
    if phase:
        leases.beat(world.home, Heartbeat(1, 1, phase, 1, "then"))
    return lease


def test_a_flow_that_never_started_is_declared(world: World) -> None:
    assert look(world) == FlowStatus(
        "events.clean_events", "declared", None, None, None, None, "never started"
    )


STATES = {
    "running": (HERE, "running", [], "running"),
    "starting": (HERE, "starting", [], "starting"),
    "seeding": (HERE, "seeding", [], "starting"),
    "no heartbeat yet": (HERE, None, [], "starting"),
    "died": (DEAD, "running", [], "down"),
    "held while it runs": (HERE, "running", [holds.person("ada")], "stopping"),
    "held": (DEAD, "running", [holds.person("ada")], "held"),
    "parked": (DEAD, "running", [holds.PARK], "parked"),
    "parked and held": (DEAD, "running", [holds.PARK, holds.person("ada")], "parked"),
    "on another host": (ELSEWHERE, "running", [], "running"),
}


@pytest.mark.parametrize(("process", "phase", "owners", "state"), STATES.values(), ids=STATES.keys())
def test_the_state_is_told_by_holds_lease_and_heartbeat(
    process: Process, phase: str | None, owners: list[str], state: str, world: World
) -> None:
    driver(world, process, phase)
    for owner in owners:
        holds.put(world.home, owner, f"because\nof {owner}", "ada")
    found = look(world)
    assert (found.state, found.epoch) == (state, 1)
    said = {holds.PARK: "because", holds.person("ada"): "by ada: because"}
    assert all(said[owner] in found.detail.split("; ") for owner in owners)


@pytest.mark.parametrize(
    ("outcome", "state"), [(Outcome.STOPPED, "stopped"), (Outcome.FAILED, "down"), (Outcome.RESTART, "down")]
)
def test_a_flow_whose_driver_left_is_stopped_where_it_had_done_what_it_was_asked_for(
    outcome: Outcome, state: str, world: World
) -> None:
    leases.leave(world.home, driver(world, HERE), outcome.name.lower())
    found = look(world)
    how = "normally" if state == "stopped" else f"({outcome.name.lower()})"
    assert (found.state, found.detail.partition(": ")[0]) == (state, f"its driver ended {how}")
    holds.put(world.home, holds.person("ada"), "later", "ada")
    assert look(world).state == "held"


def test_a_driver_on_another_boot_that_is_long_silent_is_not_called_running(world: World) -> None:
    driver(world, ELSEWHERE)
    beat = world.root / "state" / world.home.heartbeat(1)
    os.utime(beat, (1_790_000_000, 1_790_000_000))
    found = look(world)
    assert (found.state, "last heartbeat" in found.detail) == ("down", True)


def test_batch_and_age_come_from_the_checkpoint(world: World) -> None:
    start = world.processed(3)
    os.utime(world.root / "state" / start.checkpoint / "commits" / "2", (1_000_000, 1_000_000))
    found = look(world)
    assert (found.generation, found.batch) == (1, 2)
    assert found.age is not None and found.age > 1_000_000


def test_a_flow_whose_parked_declaration_changed_is_about_to_be_tried(world: World) -> None:
    world.processed(1)
    world.park()
    assert look(world).state == "parked"
    world.declare(EVENTS.replace("return raw", "return raw.distinct()"))
    found = look(world)
    assert (found.state, "declaration changed" in found.detail) == ("down", True)


def test_a_flow_stays_parked_while_its_file_raises(world: World) -> None:
    world.processed(1)
    for failed in (UNREADABLE, "an earlier declaration"):
        holds.put(world.home, holds.PARK, "it broke", "driver", {"fingerprint": failed})
        world.declare(EVENTS)
        assert "declaration changed" in look(world).detail
        world.declare(EVENTS + "\nraise ValueError('half written')\n")
        assert (look(world).state, look(world).detail) == ("parked", "it broke")


def test_a_status_is_json(world: World) -> None:
    assert look(world).to_json()["flow"] == "events.clean_events"


def test_a_hold_that_cannot_be_read_is_an_error_that_names_it(world: World) -> None:
    world.home.storage.overwrite(world.home.hold(holds.PARK), b"{")
    with pytest.raises(StorageError, match=r"holds/park.json"):
        look(world)


def test_a_once_flow_that_has_read_all_there_was_is_done_until_a_next_generation(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(1)
    driver(world, DEAD)
    assert look(world).state == "down"
    generations.finish(world.home, 1, 0)
    found = look(world)
    assert (found.state, found.detail) == (
        "done",
        "it runs once and has read all its input, in generation 1",
    )
    generations.decide(world.home, generations.with_number(generations.first(world.home, "f"), world.home, 2))
    assert look(world).state == "down"
