"""Expectations: rows are counted, dropped, set aside or refused, each once, whenever the driver is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from delta.tables import DeltaTable
from streamkeeper_jobs.driver.progress import Progress
from streamkeeper_jobs.sinks import append as append_sink
from streamkeeper_jobs.sinks import auto_cdc as cdc_sink
from streamkeeper_jobs.sinks import expectations as sink

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import AlertKind
from streamkeeper.watch.batch_numbers import Batch
from tests.worlds.drivers import cut_off
from tests.worlds.flow_world import SCHEMA, Flowbed, event
from tests.worlds.suites import long_after

EVENTS = """
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{{data}}/events", schema="{schema}",
                 options={{"maxFilesPerTrigger": 1}})
dp.create_streaming_table("refused")
dp.create_streaming_table("events"{of_table})

{expect}
@dp.append_flow(name="clean_events", target="events", sources=["events_raw"], trigger="200 milliseconds")
def clean_events(events):
    return events{query}
"""
CHANGES = """
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{{data}}/events", schema="{schema}",
                 options={{"maxFilesPerTrigger": 1}})
dp.create_streaming_table("refused")
dp.create_streaming_table("events", expect_all_or_drop={{"odd": "n % 2 = 1"}}, quarantine="refused",
                          expect_all={{"small": "n < 4"}})
dp.create_auto_cdc_flow(name="clean_events", target="events", source="events_raw", keys=["event_id"],
                        sequence_by="n")
"""
QUARANTINED = """
@dp.expect("small", "n < 4")
@dp.expect_or_drop("odd", "n % 2 = 1", quarantine="refused")
@dp.expect_or_drop("known", "user_id IS NOT NULL")"""


def declared(expect: str = "", query: str = "", of_table: str = "") -> str:
    return EVENTS.format(schema=SCHEMA, expect=expect.strip(), query=query, of_table=of_table)


def set_aside(bed: Flowbed) -> list[dict[str, Any]]:
    frame = bed.spark.read.format("delta").load(str(bed.root / "warehouse" / "refused"))
    return [row.asDict() for row in frame.orderBy("generation", "batch", "row").collect()]


def numbers(bed: Flowbed) -> list[int]:
    return [json.loads(row["row"])["n"] for row in set_aside(bed)]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[int]]]:
    """What the numbers of batches said of expectations."""
    found: list[dict[str, list[int]]] = []
    note = Progress._note

    def noted(self: Progress, batch: Batch) -> None:
        if batch.expectations:
            found.append({name: list(counts) for name, counts in batch.expectations.items()})
        note(self, batch)

    monkeypatch.setattr(Progress, "_note", noted)
    return found


def test_rows_are_counted_and_dropped_as_an_oracle_says(
    bed: Flowbed, counts: list[dict[str, list[int]]]
) -> None:
    conditions: dict[str, Callable[[dict[str, Any]], bool | None]] = {
        "small": lambda row: row["n"] < 4,
        "odd": lambda row: row["n"] % 2 == 1,
        "not the third user": lambda row: None if row["user_id"] is None else row["user_id"] != 3,
    }
    bed.declare(
        declared(
            '@dp.expect("small", "n < 4")\n@dp.expect_all_or_drop({"odd": "n % 2 = 1"})',
            of_table=', expect_all={"not the third user": "user_id != 3"}',
        )
    )
    bed.arrive(1, 2, 3)
    first = list(bed.events)
    file = bed.arrive(4, 5, 6, 7)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["user_id"] = None
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    batches = [first, lines]
    assert bed.run() is Outcome.STOPPED
    bed.holds([row for batch in batches for row in batch if row["n"] % 2])
    assert counts == [
        {
            name: [sum(met(row) is True for row in batch), sum(met(row) is not True for row in batch)]
            for name, met in ((name, conditions[name]) for name in ("not the third user", "small", "odd"))
        }
        for batch in batches
    ]


def test_what_is_dropped_is_set_aside_with_its_reasons(
    bed: Flowbed, counts: list[dict[str, list[int]]]
) -> None:
    bed.declare(declared(QUARANTINED))
    bed.arrive(1, 2, 3)
    bed.arrive(5)
    bed.arrive(6, 8, 7)
    assert bed.run() is Outcome.STOPPED
    bed.holds([event(number) for number in (1, 3, 5, 7)])
    found = set_aside(bed)
    assert [(row["flow"], row["generation"], row["batch"], row["failed"]) for row in found] == [
        ("events.clean_events", 1, batch, ["odd"]) for batch in (0, 2, 2)
    ]
    assert numbers(bed) == [2, 6, 8]
    assert counts[-1] == {"small": [0, 3], "odd": [1, 2], "known": [3, 0]}
    history = DeltaTable.forPath(bed.spark, str(bed.table)).history().collect()
    assert {row["operation"] for row in history} <= {"CREATE TABLE", "STREAMING UPDATE"}, (
        "the target is written by Delta's own sink"
    )


@pytest.mark.parametrize(
    ("module", "name", "after"),
    long_after(1, [(sink.Quarantine, "_set_aside", True), (append_sink, "_delta_sink", False)]),
    ids=["after the quarantine's commit", "before the target's"],
)
def test_a_batch_cut_off_between_its_two_commits_is_in_each_table_once(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: bool
) -> None:
    bed.declare(declared(QUARANTINED, query='.dropDuplicates(["event_id"])'))
    bed.arrive(1, 2, 3)
    bed.arrive(4, 5, 3)
    with monkeypatch.context() as patch:
        cut_off(module, name, 2, patch, after=after)
        assert bed.run() is Outcome.FAILED
    assert numbers(bed) == [2, 4], "the second batch is set aside already"
    bed.holds([event(1), event(3)])
    bed.arrive(6, 7)
    assert bed.run() is Outcome.STOPPED
    assert numbers(bed) == [2, 4, 6]
    bed.holds([event(number) for number in (1, 3, 5, 7)])


@pytest.mark.long
def test_a_repeated_batch_is_set_aside_anew_if_its_expectations_changed_meanwhile(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.declare(declared(QUARANTINED))
    bed.arrive(1, 2, 3)
    with monkeypatch.context() as patch:
        cut_off(append_sink, "_delta_sink", 1, patch, after=False)
        assert bed.run() is Outcome.FAILED
    assert numbers(bed) == [2]
    bed.declare(declared(QUARANTINED.replace("n % 2 = 1", "n != 3")))
    assert bed.run() is Outcome.STOPPED
    assert numbers(bed) == [3]
    bed.holds([event(1), event(2)])


@pytest.mark.long
def test_a_reset_sets_nothing_aside_twice(bed: Flowbed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.declare(declared(QUARANTINED))
    bed.arrive(1, 2)
    bed.arrive(3, 4)
    with monkeypatch.context() as patch:
        cut_off(append_sink, "_delta_sink", 2, patch, after=False)
        assert bed.run() is Outcome.FAILED
    assert numbers(bed) == [2, 4], "4 is of a batch that its target lacks"
    decided = bed.reset()
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    assert [(row["generation"], json.loads(row["row"])["n"]) for row in set_aside(bed)] == [
        (1, 2), (2, 4), (2, 6)
    ]  # fmt: skip
    bed.holds([event(number) for number in (1, 3, 5)])
    late = bed.spark.range(1).selectExpr("'late' AS flow")
    path = str(bed.root / "warehouse" / "refused")
    old = generations.read(bed.home, decided.number - 1)
    assert old is not None
    late.write.format("delta").mode("append").option("txnAppId", old.query_id).option("txnVersion", 9).save(
        path
    )
    assert len(set_aside(bed)) == 3, "the earlier generation is fenced in the quarantine, too"


def test_a_row_that_must_not_fail_parks_the_flow_with_the_row_and_nothing_is_written(
    bed: Flowbed, counts: list[dict[str, list[int]]]
) -> None:
    guarded = QUARANTINED + '\n@dp.expect_or_fail("known event", "event_id <> \'bad\'")'
    for expect in (guarded.replace(', quarantine="refused"', ""), guarded):
        bed.declare(declared(expect))
        bed.arrive(1, 2)
        assert bed.run() is Outcome.STOPPED
        bed.arrive(4, event_id="bad")
        before = bed.rows()
        assert bed.run() is Outcome.PARKED
        park = bed.park()
        assert park.details["condition"] == "USER_RAISED_EXCEPTION"
        assert "an expectation that each row must meet, and nothing of its batch was written" in park.reason
        said = str(park.details["message"])
        assert "The expectation 'known event' (event_id <> 'bad') fails for the row " in said
        assert '"event_id":"bad","user_id":4,"n":4' in said
        assert bed.rows() == before
        bed.declare(declared(expect.replace("<> 'bad'", "IS NOT NULL")))
        assert bed.run() is Outcome.STOPPED, "a corrected declaration is tried"


@pytest.mark.long
def test_auto_cdc_applies_what_meets_its_tables_expectations(
    bed: Flowbed, counts: list[dict[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.declare(CHANGES.format(schema=SCHEMA))
    bed.arrive(1, 2, 3)
    bed.arrive(5, event_id="e1")
    bed.arrive(6, 7)
    with monkeypatch.context() as patch:
        cut_off(cdc_sink, "apply_changes", 3, patch, after=False)
        assert bed.run() is Outcome.FAILED
    assert bed.run() is Outcome.STOPPED
    bed.holds([event(5, event_id="e1"), event(3), event(7)])
    assert numbers(bed) == [2, 6]
    assert counts == [
        {"small": [3, 0], "odd": [2, 1]},
        {"small": [0, 1], "odd": [1, 0]},
        {"small": [0, 2], "odd": [1, 1]},
    ], "each row is counted once, however often the engine looks at it"


def test_an_alert_is_recorded_by_the_driver_and_taken_back(bed: Flowbed) -> None:
    bed.declare(declared('@dp.expect("odd", "n % 2 = 1", alert_above=0.4)'))
    bed.arrive(1, 2)
    bed.arrive(4, 6)
    assert bed.run() is Outcome.STOPPED
    (alert,) = alerts.open_troubles(bed.home)
    assert alert.kind is AlertKind.EXPECTATION
    assert alert.batch == 0
    bed.arrive(1, 3)
    assert bed.run() is Outcome.STOPPED
    assert not alerts.open_troubles(bed.home)
    assert [item.alert.kind for item in alerts.pending(bed.home)].count(AlertKind.EXPECTATION_MET) == 1


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("n >", "PARSE_SYNTAX_ERROR"),
        ("m > 1", "UNRESOLVED_COLUMN"),
        ("n + 1", "gives int and no truth value"),
        ("max(n) > 1", "Spark refuses"),
    ],
)
def test_a_condition_that_spark_refuses_parks_before_anything_is_written(
    bed: Flowbed, condition: str, why: str
) -> None:
    bed.declare(declared(f'@dp.expect("odd", "{condition}")'))
    bed.arrive(1)
    assert bed.run() is Outcome.PARKED
    said = str(bed.park().details["message"])
    assert said.startswith(
        "events.py, line 9: the expectation 'odd' of the flow clean_events has the condition"
    )
    assert why in said
    assert "the columns event_id, user_id, n, event_time" in said
    assert not bed.table.exists()
