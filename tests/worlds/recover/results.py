"""Update and complete flows, and the oracle of their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.worlds.flow_world import SCHEMA, Flowbed

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


def is_exact(bed: Flowbed, events: Iterable[Mapping[str, Any]]) -> None:
    bed.holds(sums(events), ("user_id", "count", "sum"))
