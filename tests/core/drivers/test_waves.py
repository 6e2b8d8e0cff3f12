"""Releasing flows in waves: which flows are in one, when the next one begins, and which flow ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from streamkeeper.drivers import waves
from streamkeeper.drivers.waves import NotRunning, Released, in_waves
from streamkeeper.errors import RequestError
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.recover.requests.hold_flows import ReleaseRequest, release
from streamkeeper.storage import open_storage, to_json
from tests.worlds.small_world import EVENTS, World, write_manifest

NAMES = [f"p.f{number}" for number in range(5)]
ADA = holds.person("ada")


@dataclass
class Flows:
    """Five held flows. At each wait ``then`` is called, which plays their drivers; time goes on by hand."""

    root: Path
    now: float = 0.0
    then: Callable[[], None] = lambda: None
    lines: list[str] = field(default_factory=list)

    def home(self, name: str) -> FlowHome:
        return FlowHome(open_storage(str(self.root)), *name.split("."))

    def held(self) -> list[str]:
        return [name for name in NAMES if ADA in self.home(name).owners()]

    def start(self, name: str, phase: str = "running", triggers: int = 1) -> None:
        """Let a new driver of a flow beat."""
        home = self.home(name)
        lease = leases.current(home)
        epoch = 1 if lease is None else lease.epoch + 1
        home.storage.create(
            home.lease(epoch),
            to_json(asdict(Lease(epoch, Process.current(), 1, "2026-11-21T10:00:00+00:00"))),
        )
        leases.beat(home, Heartbeat(epoch, 1, phase, 1, "2026-11-21T10:00:00+00:00", triggers=triggers))

    def release(self, drivers: int) -> list[Released]:
        by_wave = [NAMES[first : first + drivers] for first in range(0, len(NAMES), drivers)]
        return waves.release_in_waves(
            self.home(NAMES[0]),
            by_wave,
            lambda home: release(home, ADA, "ada"),
            60,
            say=self.lines.append,
            monotonic=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    made = Flows(tmp_path)
    for name in NAMES:
        made.start(name)
        holds.put(made.home(name), ADA, "upgrade", "ada")
    return made


def test_the_next_wave_is_released_when_each_flow_of_the_one_before_runs(flows: Flows) -> None:
    held_then: list[list[str]] = []

    def start_one() -> None:
        held_then.append(flows.held())
        free = [name for name in NAMES if name not in held_then[-1]]
        waiting = [name for name in free if leases.present_heartbeat(flows.home(name)).epoch == 1]  # type: ignore[union-attr]
        flows.start(waiting[0])

    flows.then = start_one
    assert [one.home.full_name for one in flows.release(2)] == NAMES
    assert held_then == [NAMES[2:], NAMES[2:], NAMES[4:], NAMES[4:]], "two waits a wave, none after the last"
    assert flows.held() == []
    assert flows.lines == [
        "Wave 1 of 3 is released: p.f0, p.f1.",
        "Wave 2 of 3 is released: p.f2, p.f3.",
    ]


def test_a_driver_that_only_starts_is_waited_for_and_named_after_all(flows: Flows) -> None:
    flows.start("p.f0", phase="starting", triggers=0)
    flows.start("p.f1")
    flows.then = lambda: flows.start("p.f1")
    with pytest.raises(NotRunning) as error:
        flows.release(2)
    assert "- p.f0 does not run 60 s after" in str(error.value)
    assert "Still held are p.f2, p.f3, p.f4." in str(error.value)
    assert "p.f1" not in str(error.value)
    assert flows.held() == NAMES[2:]


def test_a_flow_that_is_parked_ends_it_at_once(flows: Flows) -> None:
    def park_one() -> None:
        flows.start("p.f0")
        holds.put(flows.home("p.f1"), holds.PARK, "its schema", "driver")

    flows.then = park_one
    with pytest.raises(NotRunning, match=r"- p\.f1 was parked: its schema"):
        flows.release(2)
    assert flows.now == waves.LOOK
    assert flows.held() == NAMES[2:]


def test_flows_that_somebody_else_holds_or_that_were_free_are_not_waited_for(flows: Flows) -> None:
    holds.put(flows.home("p.f0"), holds.person("grace"), "a look", "grace")
    holds.release(flows.home("p.f1"), ADA)

    def start_two() -> None:
        flows.start("p.f2")
        flows.start("p.f3")

    flows.then = start_two
    released = flows.release(2)
    assert [one.is_free for one in released] == [False, False, True, True, True]
    assert flows.now == waves.LOOK, "only for the second wave"


def test_flows_of_a_shared_driver_are_in_one_wave(world: World) -> None:
    more = """
@dp.append_flow(name="other", target="events", sources=["events_raw"])
def other(raw):
    return raw
"""
    for name, shared in (("a", True), ("b", False), ("c", False)):
        text = (EVENTS + more).replace('"events"', f'"{name}"').replace("events_raw", f"{name}_raw")
        head = "dp.configure_pipeline(shared_driver=True)\n" if shared else ""
        world.declare(
            text.replace("import pipelines as dp\n", f"import pipelines as dp\n{head}"), f"{name}.py"
        )
    (world.settings.pipelines / "events.py").unlink()
    manifest = write_manifest(world.settings)
    flows = list(manifest.flows())
    assert in_waves(flows, 2) == [
        ["a.clean_events", "a.other", "b.clean_events"],
        ["b.other", "c.clean_events"],
        ["c.other"],
    ]
    assert in_waves(flows, None) == [[flow.full_name for flow in flows]]
    assert manifest.matching(["b.*", "*.other", "c.clean_events"]) == [
        *("b.clean_events", "b.other", "a.other", "c.other", "c.clean_events"),
    ]
    with pytest.raises(
        RequestError, match=r"No flow fits the pattern 'd\.\*'\. Declared are: a\.clean_events"
    ):
        manifest.matching(["d.*"])
    request = ReleaseRequest.parse({"all": True, "wave": 4}, manifest, "ada")
    assert [len(names) for names in request.waves] == [5, 1]
