"""A quarantine through recoveries, and through drivers that are killed as processes: each dropped row is
there once for each generation that read it, and the target is the oracle's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from tests.worlds.drivers import batch_of, kill_after_the_sinks_commit
from tests.worlds.flow_world import NAME, SCHEMA, Flowbed
from tests.worlds.rehearsing import for_real, original, planned, rehearse
from tests.worlds.shipped.beds import recover

pytestmark = pytest.mark.long

Make = Callable[..., Flowbed]
ODD = f"""
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{{data}}/events", schema="{SCHEMA}",
                 options={{"maxFilesPerTrigger": 1}})
dp.create_streaming_table("refused")
dp.create_streaming_table("events")


@dp.expect_or_drop("odd", "n % 2 = 1", quarantine="refused")
@dp.append_flow(name="clean_events", target="events", sources=["events_raw"], trigger="200 milliseconds")
def clean_events(events):
    return events.dropDuplicates(["event_id"])
"""


@pytest.fixture
def odd(make_bed: Make) -> Flowbed:
    """The odd ones of three batches are in the table, and the even ones set aside."""
    bed = make_bed(ODD)
    for numbers in ((1, 2), (3, 4), (5, 6)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    assert set_aside(bed) == [(1, 2), (1, 4), (1, 6)]
    return bed


def set_aside(bed: Flowbed) -> list[tuple[int, int]]:
    """Return generation and number of each row of the quarantine."""
    frame = bed.spark.read.format("delta").load(str(bed.root / "warehouse" / "refused"))
    return sorted((row["generation"], json.loads(row["row"])["n"]) for row in frame.collect())


def is_exact(bed: Flowbed) -> None:
    bed.holds([item for item in bed.events if item["n"] % 2])


AGAIN: dict[str, tuple[dict[str, Any], list[int]]] = {
    "rewind": ({"flow": NAME, "batch": "1", "target": "restored"}, [6]),
    "full_refresh": ({"table": "events.events"}, [2, 4, 6]),
    "full_refresh_with_backup": ({"table": "events.events"}, [2, 4, 6]),
    "rebuild_without_downtime": ({"table": "events.events"}, [2, 4, 6]),
    "reset_checkpoint": ({"flow": NAME}, []),
}
"""Recoveries, and the numbers of the rows that each sets aside once more, under its own generation; that
which builds beside has a flow of another name, whose generation is its first.
"""


@pytest.mark.parametrize("kind", AGAIN)
def test_a_recovery_sets_aside_what_it_reads_again_once_and_never_empties_the_quarantine(
    odd: Flowbed, kind: str
) -> None:
    values, again = AGAIN[kind]
    recover(odd, kind, **values)
    odd.arrive(7, 8)
    assert odd.run() is Outcome.STOPPED
    is_exact(odd)
    last = odd.home.generations()[-1]
    beside = 1 if kind == "rebuild_without_downtime" else last
    before = [(1, 2), (1, 4), (1, 6)]
    assert set_aside(odd) == sorted([*before, *((beside, number) for number in again), (last, 8)])


def test_a_rehearsal_sets_aside_in_its_own_warehouse(odd: Flowbed) -> None:
    plan = planned(odd, "rewind", rehearse=True, flow=NAME, batch="0", target="restored")
    before = original(odd.root)
    [table] = rehearse(odd, plan).tables
    assert original(odd.root) == before, "neither the target nor the quarantine is changed"
    for_real(odd, plan)
    assert odd.run() is Outcome.STOPPED
    is_exact(odd)
    assert table.rows_after == len(odd.rows())
    assert set_aside(odd) == [(1, 2), (1, 4), (1, 6), (2, 4), (2, 6)]


def test_a_driver_that_is_killed_sets_nothing_aside_twice(odd: Flowbed) -> None:
    """It is killed once before the target's commit, and once between that and the checkpoint's."""
    aside = odd.root / "warehouse" / "refused"
    with odd.driver() as first:
        first.until(lambda: batch_of(odd) == 2)
        version = delta_log.latest_version(str(aside))
        odd.arrive(9, 10)
        first.until(lambda: delta_log.latest_version(str(aside)) > version)
        first.kill()
    with odd.driver() as second:
        odd.arrive(11, 12)
        second.until(lambda: batch_of(odd) == 4)
        is_exact(odd)
        kill_after_the_sinks_commit(odd, second)
    odd.arrive(13, 14)
    assert odd.run() is Outcome.STOPPED
    is_exact(odd)
    even = sorted({item["n"] for item in odd.events if item["n"] % 2 == 0})
    assert set_aside(odd) == [(1, number) for number in even]
