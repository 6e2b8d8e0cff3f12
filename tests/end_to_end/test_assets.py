"""A batch DAG on a stream, under a real Airflow: the hourly report of ``order_totals`` is built when its hour
is complete, and again after a rewind that changed it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from demo.airflow.api import ApiError, JsonObject
from tests.end_to_end.world import ENDING, STARTING, World
from tests.worlds.shipped.beds import shipped
from tools.waiting import wait_until

pytestmark = pytest.mark.long

FLOW, DAG = "order_totals.hourly_totals", "order_report"
HOURS = ["08", "09", "10", "11"]
"""Those that are complete: the first watermark is ten past eight, the last one twelve."""
NOON = 1_790_000_000
"""When the first file of orders was written; each comes a minute after the one before."""


def put(world: World, number: int, *orders: tuple[int, str, float]) -> None:
    """Let a file of orders arrive, or put another in its place: customer, time, amount."""
    folder = Path(world.settings.data) / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"order_id": f"{number}-{row}", "customer_id": customer, "ordered_at": f"2026-01-01T{at}:00Z"}
        | {"amount": amount}
        for row, (customer, at, amount) in enumerate(orders)
    ]
    aside = folder / f".{number}"
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(aside, (NOON + 60 * number,) * 2)
    aside.replace(folder / f"{number}.json")


def report(world: World, hour: str) -> dict[int, str] | None:
    """Give the amounts of an hour by customer; None without a report of it."""
    file = Path(world.settings.data) / "order_reports" / f"2026-01-01T{hour}.json"
    return (
        {row["customer_id"]: row["amount"] for row in json.loads(file.read_text())} if file.exists() else None
    )


def offered(world: World) -> bool | None:
    """Say whether Airflow has the DAG that the table is to schedule."""
    try:
        return bool(world.api.read(f"/dags/{DAG}")["timetable_summary"])
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def posted(world: World) -> list[JsonObject]:
    """Give the events that Airflow has of the table, the oldest first."""
    uri = quote("streamkeeper://tables/order_totals", safe="")
    (asset,) = world.api.read(f"/assets?uri_pattern={uri}")["assets"]
    assert [task["dag_id"] for task in asset["producing_tasks"]] == ["flow__order_totals__hourly_totals"]
    return list(
        world.api.read(f"/assets/events?asset_id={asset['id']}&order_by=timestamp&limit=100")["asset_events"]
    )


def hours(events: list[JsonObject]) -> list[str]:
    """Give the hours of events, sorted: those of one look have no order."""
    return sorted(str(event["partition_key"])[11:13] for event in events if event["partition_key"])


def runs(world: World) -> list[Any]:
    return sorted(run["partition_key"] for run in world.api.runs(DAG))


def test_the_report_of_an_hour_is_built_when_it_is_complete_and_again_after_a_rewind(world: World) -> None:
    text = shipped("order_totals", maxFilesPerTrigger=("100", "1"))
    world.declare("order_totals", text.replace('dp.only_where_set("ORDER_TOTALS")\n', ""))
    wait_until(lambda: offered(world), 2 * STARTING, f"Airflow has {DAG}", interval=5.0)
    put(world, 1, (1, "10:05", 1.25), (2, "10:10", 2.5))
    put(world, 2, (1, "11:20", 4.0))
    put(world, 3, (3, "14:00", 8.0))
    wait_until(
        lambda: all(report(world, hour) is not None for hour in HOURS) or None,
        2 * STARTING,
        "all reports are there",
    )
    assert (report(world, "10"), report(world, "11")) == ({1: "1.25", 2: "2.50"}, {1: "4.00"})
    assert report(world, "12") is None, "orders of it may still come"
    told = posted(world)
    assert hours(told) == HOURS
    assert runs(world) == [f"2026-01-01T{hour}" for hour in HOURS]

    put(world, 2, (1, "11:20", 5.0), (4, "11:30", 6.0))
    form = {
        "flow": FLOW,
        "batch": "1/0",
        "target": "restored",
        "approval": False,
        "reason": "a file was wrong",
    }
    run = world.trigger("rewind", form)
    assert world.api.wait_for_run("rewind", run, 4 * ENDING) == "success"
    recovery = world.api.xcom("rewind", run, "plan")["recovery"]
    wait_until(
        lambda: report(world, "11") == {1: "5.00", 4: "6.00"} or None, 2 * ENDING, "the report is built again"
    )
    events = posted(world)
    said = [event["extra"]["recoveries"] for event in events if event["extra"]["recoveries"]]
    assert said == [[{"kind": "rewind", "id": recovery}]], "once, without an hour"
    assert hours(events) == sorted(HOURS + HOURS)
    world.withdraw("order_totals")
