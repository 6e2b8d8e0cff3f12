"""Alerts about rows that fail expectations: told once, open across restarts, and taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.declare.model import WARN, Expectation, Location
from streamkeeper.flows.files import FlowHome
from streamkeeper.storage import LocalStorage
from streamkeeper.watch import alerts, progress
from streamkeeper.watch.expectations import Shares
from streamkeeper.watch.progress import Position

ODD = Expectation("odd", "n % 2 = 1", WARN, Location("p.py", 3), alert_above=0.25)
WIDE = Expectation("wide", "n < 9", WARN, Location("p.py", 4), alert_above=0.25, alert_window=3)


@pytest.fixture
def home(tmp_path: Path) -> FlowHome:
    return FlowHome(LocalStorage(str(tmp_path)), "events", "clean_events")


def told(home: FlowHome) -> list[str]:
    return sorted(f"{one.alert.kind.value} {one.alert.batch}" for one in alerts.pending(home))


def test_an_alert_is_told_once_while_a_share_is_exceeded_and_taken_back_after(home: FlowHome) -> None:
    shares = Shares(home, [ODD], 2)
    shares.add(0, {"odd": [3, 1]})
    assert told(home) == [], "a quarter is allowed"
    shares.add(1, {"odd": [2, 1]})
    shares.add(2, {"odd": [0, 5]})
    shares.add(3, {"odd": [0, 0]})
    assert told(home) == ["expectation 1"], "once, and a batch without rows changes nothing"
    (alert,) = alerts.open_troubles(home)
    assert alert.text == (
        "1 of 3 rows (33.33%) fail the expectation 'odd' (n % 2 = 1) in batch 1; allowed are 25.00%."
    )
    assert alert.generation == 2
    shares.add(4, {"odd": [4, 0]})
    assert told(home) == ["expectation 1", "expectation-met 4"]
    assert alerts.open_troubles(home) == []
    shares.add(5, {"odd": [0, 1]})
    assert told(home) == ["expectation 1", "expectation 5", "expectation-met 4"], "it is told anew"


def test_an_open_alert_is_known_to_the_next_driver_and_a_commit_does_not_end_it(home: FlowHome) -> None:
    Shares(home, [ODD], 1).add(7, {"odd": [0, 1]})
    Shares(home, [ODD], 1).add(8, {"odd": [0, 1]})
    assert told(home) == ["expectation 7"]
    (alert,) = alerts.open_troubles(home)
    assert not progress.is_over(alert, Position(1, 9, None))
    Shares(home, [ODD], 2).add(0, {"odd": [1, 0]})
    assert alerts.open_troubles(home) == []


def test_a_share_is_taken_over_the_last_batches_once_there_are_so_many(home: FlowHome) -> None:
    shares = Shares(home, [WIDE], 1)
    shares.add(0, {"wide": [0, 4]})
    shares.add(1, {"wide": [4, 0]})
    assert told(home) == []
    shares.add(2, {"wide": [4, 0]})
    assert told(home) == ["expectation 2"], "4 of 12"
    shares.add(3, {"wide": [4, 0]})
    assert told(home) == ["expectation 2", "expectation-met 3"], "0 of 12"


def test_an_alert_of_an_expectation_that_is_gone_is_taken_back(home: FlowHome) -> None:
    Shares(home, [ODD], 1).add(0, {"odd": [0, 1]})
    Shares(home, [ODD], 1).end_undeclared()
    assert len(alerts.open_troubles(home)) == 1
    Shares(home, [WIDE], 1).end_undeclared()
    assert alerts.open_troubles(home) == []
    assert told(home) == ["expectation 0", "expectation-met 0"]
