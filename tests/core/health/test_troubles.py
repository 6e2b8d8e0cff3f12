"""Troubles of a flow that runs: told at their bound, over below a lower one; quiet flows never have any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.declare.model import DEFAULT_NO_PROGRESS, Pipeline
from streamkeeper.health.flows import IDLE, FlowHealth
from streamkeeper.health.troubles import SLOW_FOR, TROUBLES, Judgement, judge, span
from streamkeeper.history.rows import Row
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch.alerts import JUDGED as ALERTED
from streamkeeper.watch.alerts import Alert, AlertKind
from streamkeeper.watch.batch_numbers import Batch, Machinery
from streamkeeper.watch.behind import Behind

NOW = 1_790_000_000.0
PIPELINE = Pipeline("p", "p.py", "", behind_above=300.0, behind_for=600.0)
FLOW = FlowHealth(
    "p.f", "p", "t", "flow__p__f", "10 seconds", "running", "", batch_numbers=Batch(1, 0.0, 2.0, 9)
)
RAN_ON = Machinery(1, 2, 1, memory=1_000_000_000)


def minutes(count: int, **each: Any) -> list[Row]:
    """Return rows of the last minutes, oldest first; a list gives each row its own value."""
    return [
        Row(
            at=NOW - 60 * (count - 1 - number),
            seconds=60.0,
            epoch=1,
            drivers=0,
            **{name: value[number] if isinstance(value, list) else value for name, value in each.items()},
        )
        for number in range(count)
    ]


def behind(seconds: float, trend: float | None = None, records: int | None = None) -> FlowHealth:
    return replace(FLOW, lag=Behind(NOW, {"raw": Lag(records=records, seconds=seconds)}, trend=trend))


def said(
    row: FlowHealth, rows: Sequence[Row], kind: AlertKind, pipeline: Pipeline = PIPELINE
) -> Judgement | None:
    found = {one.kind: one for one in judge(row, rows, pipeline, RAN_ON, NOW)}
    return found.get(kind)


def there(
    row: FlowHealth, rows: Sequence[Row], kind: AlertKind, pipeline: Pipeline = PIPELINE
) -> bool | None:
    found = said(row, rows, kind, pipeline)
    return None if found is None else found.is_open


def test_a_flow_is_behind_once_it_was_so_for_the_declared_time() -> None:
    far = behind(400.0, trend=0.5, records=1234)
    assert there(far, minutes(30, lag_seconds=400.0), AlertKind.BEHIND) is True
    assert there(far, minutes(9, lag_seconds=400.0), AlertKind.BEHIND) is None
    broken = [400.0] * 20 + [299.0] + [400.0] * 9
    assert there(far, minutes(30, lag_seconds=broken), AlertKind.BEHIND) is None
    assert there(behind(299.0), minutes(30, lag_seconds=400.0), AlertKind.BEHIND) is None
    assert there(behind(149.0), minutes(30, lag_seconds=400.0), AlertKind.BEHIND) is False
    unknown = [400.0] * 20 + [None] + [400.0] * 9
    assert there(far, minutes(30, lag_seconds=unknown), AlertKind.BEHIND) is True, (
        "a minute without a measure"
    )
    held = ["held"] * 25 + ["running"] * 5
    assert there(far, minutes(30, lag_seconds=400.0, state=held), AlertKind.BEHIND) is None, "after a hold"
    long = replace(PIPELINE, behind_for=5 * 3600.0)
    assert there(far, minutes(310, lag_seconds=400.0), AlertKind.BEHIND, long) is True
    undeclared = replace(PIPELINE, behind_above=None)
    assert there(far, minutes(30, lag_seconds=400.0), AlertKind.BEHIND, undeclared) is None


def test_its_text_says_how_long_how_much_whether_it_grows_and_what_fits() -> None:
    rows = minutes(30, lag_seconds=400.0)
    growing = said(behind(400.0, trend=0.5, records=1234), rows, AlertKind.BEHIND)
    assert growing is not None
    assert "more than 5 min behind for 30 min: the oldest input that waits is 7 min old, 1,234 records" in (
        growing.text
    )
    assert "It grows by 30 s a minute." in growing.text
    assert "let each read more" in growing.text
    idle = said(replace(behind(400.0), batch_numbers=None), rows, AlertKind.BEHIND)
    assert idle is not None and idle.text.endswith("Its driver has run no batch yet.")
    slow = replace(behind(400.0, trend=-2.0), batch_numbers=Batch(1, 0.0, 20.0, 9))
    shrinking = said(slow, rows, AlertKind.BEHIND)
    assert shrinking is not None
    assert "At this pace it has caught up in 3 min." in shrinking.text
    assert "took 20 s, longer than its trigger (10 seconds): give it more cores" in shrinking.text


def test_a_quiet_flow_is_in_no_trouble_however_long_it_is_quiet() -> None:
    quiet = replace(behind(0.0, records=0), state=IDLE, age=86400.0)
    found = list(judge(quiet, minutes(60, lag_seconds=0.0), PIPELINE, RAN_ON, NOW))
    assert [one for one in found if one.is_open] == []
    assert (
        list(judge(replace(quiet, state="held"), minutes(60, lag_seconds=9e9), PIPELINE, RAN_ON, NOW)) == []
    )
    assert list(judge(replace(FLOW, lag=None), [], PIPELINE, None, NOW)) != [], (
        "unknown is no trouble, either"
    )
    assert not any(one.is_open for one in judge(replace(FLOW, lag=None), [], PIPELINE, None, NOW))


def test_a_trouble_is_not_over_because_its_source_cannot_be_measured_any_more() -> None:
    lags = {"raw": Lag(reason="no broker answers"), "other": Lag(seconds=0.0)}
    blind = replace(FLOW, lag=Behind(NOW, lags))
    rows = minutes(16, batches=2, batch_seconds=30.0, lag_seconds=0.0)
    assert [there(blind, rows, kind) for kind in (AlertKind.BEHIND, AlertKind.SLOW)] == [None, None]


def test_a_state_grows_if_it_will_not_fit_within_a_day() -> None:
    def sizes(first: float, last: float, count: int = 121) -> list[Row]:
        step = (last - first) / (count - 1)
        return minutes(count, state_bytes=[int(first + number * step) for number in range(count)])

    assert there(FLOW, sizes(100e6, 200e6), AlertKind.STATE_GROWS) is True  # 50 MB an hour, 1.4 GB tomorrow
    assert there(FLOW, sizes(100e6, 110e6), AlertKind.STATE_GROWS) is False
    assert there(FLOW, sizes(500e6, 520e6), AlertKind.STATE_GROWS) is None, "between the bounds"
    assert there(FLOW, sizes(100e6, 200e6, 50), AlertKind.STATE_GROWS) is None, "not an hour yet"
    text = said(FLOW, sizes(100e6, 200e6), AlertKind.STATE_GROWS)
    assert text is not None and "has 200.0 MB in memory, and grew by 100.0 MB in 2 h" in text.text
    rocks = replace(RAN_ON, operators=[{"customMetrics": {"rocksdbPutCount": 1}}])
    kinds = {one.kind for one in judge(FLOW, sizes(100e6, 200e6), PIPELINE, rocks, NOW)}
    assert AlertKind.STATE_GROWS not in kinds


def test_batches_longer_than_the_trigger_are_told_after_a_quarter_of_an_hour() -> None:
    waits = behind(60.0)
    assert there(waits, minutes(16, batches=2, batch_seconds=30.0), AlertKind.SLOW) is True
    assert there(waits, minutes(8, batches=2, batch_seconds=30.0), AlertKind.SLOW) is None
    once = [30.0] * 10 + [12.0] + [30.0] * 5
    assert there(waits, minutes(16, batches=2, batch_seconds=once), AlertKind.SLOW) is None
    assert there(waits, minutes(16, batches=2, batch_seconds=8.0), AlertKind.SLOW) is False
    assert there(behind(0.0), minutes(16, batches=2, batch_seconds=30.0), AlertKind.SLOW) is False
    assert there(behind(0.0), minutes(16), AlertKind.SLOW) is False
    assert there(waits, minutes(16), AlertKind.SLOW) is None, "it ran no batch yet, and may still be slow"


def test_late_rows_are_told_by_their_share_of_an_hour() -> None:
    def share(late: int) -> bool | None:
        return there(FLOW, minutes(30, rows=100, late=[late] + [0] * 29), AlertKind.LATE_ROWS)

    assert [share(31), share(30), share(16), share(15), share(0)] == [True, None, None, False, False]
    none = replace(PIPELINE, late_above=None)
    assert there(FLOW, minutes(30, rows=100, late=90), AlertKind.LATE_ROWS, none) is None


def test_prometheus_has_a_rule_of_each_trouble_that_the_monitor_judges_with_its_bounds_and_advice() -> None:
    by_kind = {trouble.kind: trouble for trouble in TROUBLES if trouble.kind is not None}
    assert {kind for kind, trouble in by_kind.items() if trouble.judge is not None} == set(ALERTED)
    slow, waits, late = (
        by_kind[kind] for kind in (AlertKind.SLOW, AlertKind.NO_PROGRESS, AlertKind.LATE_ROWS)
    )
    assert (slow.lasts, f"> {DEFAULT_NO_PROGRESS:.0f}" in waits.expr) == (SLOW_FOR, True)
    told = said(FLOW, minutes(30, rows=100, late=[31] + [0] * 29), AlertKind.LATE_ROWS)
    assert told is not None and told.text.endswith(late.advice)
    assert [span(seconds) for seconds in (7200, 600, 90)] == ["2h", "10m", "90s"]


@pytest.mark.parametrize(
    ("kind", "occasion", "ends", "of"),
    [
        (AlertKind.BEHIND, "since 1", AlertKind.RELIEVED, "behind since 1"),
        (AlertKind.PARKED, "then", AlertKind.RECOVERED, "parked then"),
        (AlertKind.EXPECTATION, '["x", 1]', AlertKind.EXPECTATION_MET, '["x", 1]'),
    ],
)
def test_an_incident_has_one_key_from_its_beginning_to_its_end(
    kind: AlertKind, occasion: str, ends: AlertKind, of: str
) -> None:
    begins, over = Alert(kind, "p.f", "", occasion, "then"), Alert(ends, "p.f", "", of, "later")
    assert (begins.action, over.action) == ("trigger", "resolve")
    assert begins.incident == over.incident
    assert begins.incident != replace(begins, occasion="another").incident
