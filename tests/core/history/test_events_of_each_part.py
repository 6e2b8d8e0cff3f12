"""Drivers, holds, generations, changes, alerts and recoveries leave exactly their events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.storage import LocalStorage
from streamkeeper.trial import change, last_run
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.last_run import LastRun
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import Alert, AlertKind
from tests.worlds.small_world import World

FLOW = "events.clean_events"


def told(world: World) -> list[tuple[str, str]]:
    """Return kind and author of all events, which are of the one flow."""
    found = events.read(world.home.storage, "events")
    assert {event.flows for event in found} <= {(FLOW,)}
    return [(str(event.kind), event.by) for event in found]


def test_a_start_and_an_end_of_a_driver_are_noted_once(world: World) -> None:
    lease = leases.acquire(world.home, 3, 1.0)
    leases.leave(world.home, lease, "stopped")
    leases.leave(world.home, lease, "stopped")
    leases.acquire(world.home, 3, 1.0)
    assert told(world) == [("started", "driver"), ("stopped", "driver"), ("started", "driver")]
    assert [event.epoch for event in events.read(world.home.storage, "events")] == [1, 1, 2]


def test_a_hold_and_a_release_are_noted_once_with_who_did_it(world: World) -> None:
    holds.put(world.home, holds.PARK, "its schema changed", "driver", {"generation": 4})
    holds.put(world.home, holds.person("ada"), "a look", "ada")
    holds.put(world.home, holds.recovery("r1"), "r1 runs", "bob")
    holds.put(world.home, holds.recovery("r1"), "r1 runs, tried again", "bob")
    assert holds.release(world.home, holds.person("ada"), "eve")
    assert not holds.release(world.home, holds.person("ada"), "eve")
    assert holds.release(world.home, holds.PARK, "bob")
    held = [("parked", "driver"), ("held", "ada"), ("held", "bob")]
    assert told(world) == [*held, ("released", "eve"), ("released", "bob")]
    found = events.read(world.home.storage, "events")
    assert (found[0].text, found[0].generation) == ("its schema changed", 4)
    assert [one.text for one in found[1:]] == ["a look", "r1 runs", "the hold of ada", "the park"]


def test_a_generation_that_is_decided_twice_is_noted_once(world: World) -> None:
    first = generations.first(world.home, "f")
    generations.decide(world.home, first)
    second = replace(generations.with_number(first, world.home, 2), reason="asked", by="ada", recovery="r1")
    for _ in range(2):
        generations.decide(world.home, second)
    assert told(world) == [("generation", "driver"), ("generation", "ada")]


def test_a_change_is_noted_once_when_it_is_refused_accepted_and_taken(world: World) -> None:
    world.begin([], 0, 0)
    verdict = Verdict(FLOW, Compatibility.INCOMPATIBLE, ("a column is gone",))
    found = Change("new", ChangeState.REFUSED, verdict)
    for _ in range(2):
        change.write(world.home, found)
    change.write(world.home, replace(found, state=ChangeState.ACCEPTED), "ada")
    for fingerprint in ("old", "new", "new"):
        last_run.keep(world.home, 1, LastRun(fingerprint, {}, (), ()))
    assert told(world)[1:] == [
        ("change-refused", "driver"),
        ("change-accepted", "ada"),
        ("change-taken", "driver"),
    ]
    assert "a column is gone" in events.read(world.home.storage, "events")[1].text


def test_an_alert_and_its_end_are_noted_once_by_the_first_line_of_their_text(world: World) -> None:
    alert = Alert(AlertKind.PARKED, FLOW, "it is ill\nand more", "park 1", "then", generation=2)
    for _ in range(2):
        alerts.record(world.home, alert)
    alerts.record(world.home, replace(alert, kind=AlertKind.RECOVERED, text="it commits again"))
    assert [(event.kind, event.text) for event in events.read(world.home.storage, "events")] == [
        (Kind.ALERT, "is parked: it is ill"),
        (Kind.RECOVERED, "it commits again"),
    ]


def test_a_recovery_by_its_ledger(world: World) -> None:
    book = ledger.open(world.home.storage, "events", "reset-1")
    asked = {"by": "ada", "reason": "it broke"}
    book.record(ledger.PLANNED, {"recovery": "reset", "request": asked, "flows": [{"flow": FLOW}]})
    book.record("approved", {"by": "bob"})
    book.record("hold.started", {})
    book.record("hold.failed", {"error": "StorageError: no\nmore"})
    book.record("hold.started", {})
    book.record("hold.progress", {"rows": 3})
    book.record("driver.fenced", {})
    book.record("hold.done", {"password": "hunter2"})
    book.record(ledger.ENDED, {})
    by_ada = ("step-began", "step-failed", "step-began", "step-done", "recovery-finished")
    before = [("recovery-planned", "ada"), ("recovery-approved", "bob")]
    assert told(world) == [*before, *((kind, "ada") for kind in by_ada)]
    found = events.read(world.home.storage, "events")
    assert {event.recovery for event in found} == {"reset-1"}
    texts = ["reset-1: it broke", "reset", "reset: hold", "reset: hold: StorageError: no"]
    assert [event.text for event in found[:4]] == texts


def test_a_log_that_cannot_be_written_stops_none_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = LocalStorage.create

    def refused(self: LocalStorage, name: str, content: bytes) -> bool:
        if name.startswith(events.FOLDER):
            raise OSError("the disk is full")
        return create(self, name, content)

    monkeypatch.setattr(LocalStorage, "create", refused)
    lease = leases.acquire(world.home, 1, 1.0)
    holds.put(world.home, holds.PARK, "why", "driver")
    assert holds.release(world.home, holds.PARK)
    ledger.open(world.home.storage, "events", "r1").record(ledger.PLANNED, {"flows": "torn"})
    leases.leave(world.home, lease, "stopped")
    assert told(world) == []
    assert caplog.text.count("was not noted") == 5
