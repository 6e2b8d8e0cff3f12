"""What people are told, and that they are told once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamkeeper.declare.model import Notifier
from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome, storage_now
from streamkeeper.storage import LocalStorage
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import PAUSE, Alert, AlertKind, Pending

PARKED = Alert(
    AlertKind.PARKED,
    "events.clean_events",
    "it broke",
    "park of 10:00",
    "2026-11-21T10:00:00+00:00",
    None,
    1,
    7,
)


@pytest.fixture
def home(tmp_path: Path) -> FlowHome:
    return FlowHome(LocalStorage(str(tmp_path)), "events", "clean_events")


def test_an_occasion_is_recorded_once_and_stays_pending_until_everyone_was_told(home: FlowHome) -> None:
    assert alerts.record(home, PARKED)
    assert not alerts.record(home, PARKED)
    assert alerts.pending(home) == [Pending(PARKED)]
    alerts.settle(home, PARKED)
    assert alerts.pending(home) == []
    assert not alerts.record(home, PARKED)
    assert alerts.pending(home) == []


def test_a_trouble_stays_open_until_it_is_closed_and_a_recovery_s_end_is_none(home: FlowHome) -> None:
    alerts.record(home, PARKED)
    alerts.record(home, Alert(AlertKind.RECOVERY_FINISHED, PARKED.flow, "done", "r1", PARKED.at))
    assert alerts.open_troubles(home) == [PARKED]
    alerts.close_trouble(home, PARKED)
    assert alerts.open_troubles(home) == []


def test_an_alert_is_not_lost_where_its_process_ended_before_it_was_recorded(home: FlowHome) -> None:
    alerts.record(home, PARKED)
    home.storage.remove(home.alert(PARKED.name))
    assert alerts.pending(home) == [Pending(PARKED)]
    assert alerts.record(home, PARKED)


def test_of_many_at_once_one_records(home: FlowHome) -> None:
    start = threading.Barrier(8)

    def race(_: int) -> bool:
        start.wait()
        return alerts.record(home, PARKED)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1


def test_the_next_attempt_follows_after_the_pause_whatever_became_of_the_process(home: FlowHome) -> None:
    def begun(at: float) -> int | None:
        [waiting] = alerts.pending(home)
        attempt = alerts.begin_attempt(home, waiting, at)
        return None if attempt is None else attempt.attempts

    alerts.record(home, PARKED)
    now = storage_now(home.storage)
    assert [begun(now), begun(now + PAUSE - 5), begun(now + PAUSE)] == [1, None, 2]
    assert begun(now - 30 * 86400) == 3, "the clock was set back"


def test_a_notifier_with_other_arguments_is_another_one(home: FlowHome) -> None:
    alerts.record(home, PARKED)
    alerts.note_delivered(home, Pending(PARKED), Notifier("a.B", {"to": "x", "cc": ["y"]}))
    [waiting] = alerts.pending(home)
    assert waiting.was_delivered_to(Notifier("a.B", {"cc": ["y"], "to": "x"}))
    assert not waiting.was_delivered_to(Notifier("a.B", {"to": "x", "cc": ["z"]}))


def test_an_alert_in_words_is_safe_to_put_into_a_mail() -> None:
    said = Alert(
        AlertKind.CRASH_LOOP, "p.f", "<b>3 & 4</b>", "o", PARKED.at, "http://host/dags/x?a=1&b=2"
    ).for_templates()
    assert said.subject == "p.f is in a crash loop"
    assert said.html == (
        '<pre>&lt;b&gt;3 &amp; 4&lt;/b&gt;</pre><p><a href="http://host/dags/x?a=1&amp;b=2">http://host/dags/x?a=1&amp;b=2</a></p>'
    )


def test_a_pending_file_that_is_no_alert_is_named(home: FlowHome) -> None:
    home.storage.create(home.alert("pending/x.json"), b'{"kind": "rumour"}')
    with pytest.raises(StorageError, match=r"alerts/pending/x\.json is not an alert.*Remove it"):
        alerts.pending(home)
