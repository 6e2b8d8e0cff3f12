"""Update and complete flows: totals in a table are those of an oracle, whenever the driver is killed, and after
each recovery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from streamkeeper_jobs.sinks import auto_cdc

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.generations import AFTER_LAST, BATCH, EARLIEST, EMPTY, REBUILT, StartAt
from tests.spark.sinks.test_expectations import cut_off
from tests.worlds.flow_world import SCHEMA, Flowbed, event

TOTALS = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{{data}}/events", schema="{schema}",
                 options={{"maxFilesPerTrigger": 1}})
dp.create_streaming_table("events"{of_table})

@dp.{mode}_flow(name="clean_events", target="events", sources=["events_raw"], trigger="200 milliseconds")
def clean_events(events):
    return events{query}
"""
SUMS = '.groupBy("user_id").agg(F.count("*").alias("count"), F.sum("n").alias("sum"))'
KEYS = ', keys=["user_id"]'
MODES = [("update", KEYS), ("complete", "")]
both = pytest.mark.parametrize(("mode", "of_table"), MODES, ids=[mode for mode, _ in MODES])


def totals(mode: str, of_table: str, query: str = SUMS) -> str:
    return TOTALS.format(schema=SCHEMA, mode=mode, of_table=of_table, query=query)


def sums(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the oracle's rows."""
    count: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for item in events:
        count[item["user_id"]] += 1
        total[item["user_id"]] += item["n"]
    return [{"user_id": user, "count": count[user], "sum": total[user]} for user in count]


def holds(bed: Flowbed, events: Iterable[Mapping[str, Any]]) -> None:
    bed.holds(sums(events), ("user_id", "count", "sum"))


@both
def test_totals_are_those_of_an_oracle_after_each_kind_of_start(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2, 8)
    bed.arrive(3, 9)
    assert bed.run() is Outcome.STOPPED
    holds(bed, bed.events)
    bed.arrive(1, 4)
    bed.reset(state=REBUILT)
    assert bed.run() is Outcome.STOPPED
    holds(bed, bed.events)
    bed.arrive(5, 15)
    bed.reset(StartAt(BATCH, generation=1, batch=0), state="copied")
    assert bed.run() is Outcome.STOPPED
    holds(bed, bed.events)
    bed.reset(StartAt(EARLIEST), state=EMPTY)
    assert bed.run() is Outcome.STOPPED
    holds(bed, bed.events)


@both
def test_a_state_that_starts_empty_makes_new_totals(
    make_bed: Callable[..., Flowbed], mode: str, of_table: str
) -> None:
    """Of an updated key the later generation's row wins, even if it has counted less."""
    bed = make_bed(totals(mode, of_table))
    bed.arrive(1, 2, 8)
    assert bed.run() is Outcome.STOPPED
    bed.reset(StartAt(AFTER_LAST), state=EMPTY)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    left = sums([event(2)]) if mode == "update" else []
    bed.holds([*sums([event(1)]), *left], ("user_id", "count", "sum"))


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
def test_an_update_that_is_cut_off_is_made_once(
    make_bed: Callable[..., Flowbed], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    bed = make_bed(totals("update", KEYS))
    bed.arrive(1, 2, 8)
    bed.arrive(1, 3)
    with monkeypatch.context() as patch:
        cut_off(auto_cdc, "apply_changes", 2, patch, after=after)
        assert bed.run() is Outcome.FAILED
    version = delta_log.latest_version(str(bed.table))
    bed.arrive(9)
    assert bed.run() is Outcome.STOPPED
    holds(bed, bed.events)
    assert delta_log.latest_version(str(bed.table)) == (version or 0) + (1 if after else 2)


def test_what_no_update_can_be_made_of_is_refused_before_anything_is_touched(
    make_bed: Callable[..., Flowbed],
) -> None:
    for query, keys, words in (
        (SUMS, ', keys=["nope"]', "keys names the column nope, which is not there"),
        ("", KEYS, "has a query that updates nothing"),
        (".dropDuplicates(['event_id'])", KEYS, "has a query that updates nothing"),
    ):
        bed = make_bed(totals("update", keys, query)) if "bed" not in locals() else bed  # noqa: F821
        bed.declare(totals("update", keys, query))
        bed.arrive(1)
        assert bed.run() is Outcome.PARKED
        assert words in bed.park().why, bed.park()
        assert not bed.table.exists()


def test_two_rows_of_a_key_are_refused_and_a_table_of_another_flow_too(
    make_bed: Callable[..., Flowbed],
) -> None:
    bed = make_bed(totals("update", KEYS, '.groupBy("user_id", "n").count()'))
    bed.arrive(1, 8)
    assert bed.run() is Outcome.PARKED
    assert 'several rows of the key {"user_id":1}' in bed.park().why
    assert bed.rows() == []


def test_a_table_with_other_rows_is_not_replaced(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(totals("append", "", ""))
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.declare(totals("complete", ""))
    bed.reset(state=EMPTY)
    assert bed.run() is Outcome.PARKED
    assert "no complete flow made it" in bed.park().why
    bed.holds(bed.events)
