"""When a failed driver is started again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import RetryAction
from streamkeeper_airflow.flow import retries
from streamkeeper_airflow.flow.retries import (
    JITTER,
    LONGEST_DELAY,
    UNBEGUN_DELAY,
    AfterHealth,
    DriverFailed,
    WrongSettings,
    delay,
    failing_streak,
)

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        pytest.param((1, 0), timedelta(0), id="after a healthy stretch"),
        pytest.param((1, 1), timedelta(seconds=10), id="the first that never worked"),
        pytest.param((1, 4), timedelta(seconds=80), id="the fourth in a row"),
        pytest.param((1, 10), LONGEST_DELAY, id="many in a row"),
        pytest.param((1, None), UNBEGUN_DELAY, id="never took the lease"),
        pytest.param((Outcome.RESTART, 1), timedelta(0), id="asked for a restart"),
        pytest.param((Outcome.RESTART, 3), timedelta(seconds=40), id="asked for a restart again and again"),
        pytest.param((Outcome.RETRY_DECLARED, 2), timedelta(seconds=20), id="retried as declared"),
        pytest.param((Outcome.USAGE, None), LONGEST_DELAY, id="wrong settings"),
        pytest.param((1, 0, True), LONGEST_DELAY, id="crash loop of drivers that look and never commit"),
        pytest.param((Outcome.RESTART, 1, True), LONGEST_DELAY, id="crash loop of restarts"),
    ],
)
def test_the_delay_grows_only_while_drivers_never_get_to_work(
    failed: tuple[Any, ...], expected: timedelta
) -> None:
    assert delay(*failed) == expected
    decision = AfterHealth().evaluate(DriverFailed("ended", *failed), try_number=900_000, max_tries=1_000_000)
    assert decision.action is RetryAction.RETRY
    assert decision.retry_delay is not None
    assert expected * (1 - JITTER) <= decision.retry_delay <= expected


def test_chance_spreads_a_delay_and_never_makes_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    for chance in (0.0, 0.5, 0.999):
        monkeypatch.setattr(retries.random, "random", lambda chance=chance: chance)
        waits.append(AfterHealth().evaluate(DriverFailed("ended", 1, 10), 1, 2).retry_delay)
    assert waits[0] == LONGEST_DELAY
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] is not None
    assert waits[-1] > LONGEST_DELAY * (1 - JITTER)


def test_wrong_settings_are_tried_again_at_the_cap_since_the_next_run_would_follow_at_once() -> None:
    decision = AfterHealth().evaluate(WrongSettings("no"), 1, 2)
    assert decision.action is RetryAction.RETRY
    assert decision.retry_delay is not None
    assert LONGEST_DELAY * (1 - JITTER) <= decision.retry_delay <= LONGEST_DELAY


def test_failures_of_the_task_itself_wait_airflow_s_own_delay() -> None:
    assert AfterHealth().evaluate(OSError("disk full"), 1, 2).action is RetryAction.DEFAULT


@pytest.mark.parametrize(
    ("triggers", "streak"),
    [
        pytest.param([], 0, id="never ran"),
        pytest.param([5], 0, id="healthy"),
        pytest.param([5, 0, 0], 2, id="two failed since"),
        pytest.param([0, 0, 1], 0, id="healthy again"),
        pytest.param([0] * 15, 10, id="counted to ten"),
    ],
)
def test_the_streak_is_counted_from_the_newest_drivers_that_never_looked_for_data(
    triggers: list[int], streak: int, tmp_path: Path
) -> None:
    home = FlowHome(open_storage(str(tmp_path)), "p", "f")
    for epoch, count in enumerate(triggers, start=1):
        home.storage.create(home.lease(epoch), b"{}")
        leases.beat(home, Heartbeat(epoch, 1, "running", 1, now(), triggers=count))
    assert failing_streak(home) == streak
