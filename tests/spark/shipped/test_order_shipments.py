"""The shipped pipeline order_shipments: its table is the oracle's after each recovery. A real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streamkeeper.exit_codes import Outcome
from streamkeeper.testing import PipelineTest
from tests.oracle import counted
from tests.worlds.flow_world import Flowbed, wait_until
from tests.worlds.shipped.beds import PIPELINES, recover, run, shipped

NAME = "order_shipments.shipped_orders"
COLUMNS = ("order_id", "customer_id", "carrier", "shipped_at")
TOPICS = ("orders", "shipments")
_NUMBERS = count(1)

Row = dict[str, Any]


def order(number: int, at: str) -> Row:
    return {"order_id": f"o{number}", "customer_id": number % 3, "ordered_at": f"2026-01-{at}:00Z"}


def shipment(number: int, at: str) -> Row:
    return {"order_id": f"o{number}", "carrier": f"carrier {number % 2}", "shipped_at": f"2026-01-{at}:00Z"}


BEFORE = [
    {"orders": [order(1, "01T10:00"), order(2, "01T10:30")], "shipments": [shipment(1, "01T12:00")]},
    {"orders": [order(3, "03T09:00"), order(4, "03T09:30")], "shipments": [shipment(4, "03T10:00")]},
]
"""Order 2 is never shipped, and the second part closes its day; order 3 waits."""
AFTER = [
    {
        "orders": [order(5, "03T09:40"), order(7, "05T08:00")],
        "shipments": [shipment(3, "03T20:00"), shipment(3, "04T08:00"), shipment(9, "05T10:00")],
    },
    {"orders": [order(8, "05T08:10")], "shipments": [shipment(7, "05T11:00")]},
]
"""Order 3 comes in two parcels; order 5 is never shipped; order 8 waits still; shipment 9 has no order."""

Parts = Sequence[dict[str, list[Row]]]


def moment(row: Row, column: str) -> datetime:
    return datetime.fromisoformat(row[column].removesuffix("Z"))


def joined(*parts: Parts) -> list[Row]:
    """Return the oracle's rows: those of both watermarks' minimum at the end."""
    orders, shipments = (
        [row for part in parts for batch in part for row in batch[topic]] for topic in TOPICS
    )
    closed = min(
        max(moment(row, "ordered_at") for row in orders) - timedelta(minutes=10),
        max(moment(row, "shipped_at") for row in shipments) - timedelta(hours=1),
    )
    found: list[Row] = []
    for row in orders:
        placed = moment(row, "ordered_at")
        sent = [
            (other["carrier"], moment(other, "shipped_at"))
            for other in shipments
            if other["order_id"] == row["order_id"]
            and placed <= moment(other, "shipped_at") <= placed + timedelta(days=1)
        ]
        if not sent and placed + timedelta(days=1) < closed:
            sent = [(None, None)]
        for one in sent:
            found.append(dict(zip(COLUMNS, (row["order_id"], row["customer_id"], *one), strict=True)))
    return found


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue("brokers") if "topics" in request.fixturenames else "127.0.0.1:1"
    monkeypatch.setenv("SHIPMENTS_BROKERS", at)


@pytest.mark.long
def test_orders_get_their_shipments_and_those_without_one_are_written_after_a_day(
    pipeline_test: Callable[..., PipelineTest],
) -> None:
    test = pipeline_test(PIPELINES / "order_shipments.py")
    for parts in (BEFORE, AFTER):
        for batch in parts:
            for topic, rows in batch.items():
                test.arrive(f"{topic}_topic", [{"value": json.dumps(row)} for row in rows])
        assert test.run("shipped_orders") is Outcome.STOPPED
    assert counted(test.rows("order_shipments"), COLUMNS) == counted(joined(BEFORE, AFTER), COLUMNS)


@dataclass
class Topics:
    """The pipeline with topics of its own, of two partitions each."""

    bed: Flowbed
    brokers: str
    suffix: str = field(default_factory=lambda: f"-to-ship-{next(_NUMBERS)}")

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.brokers})
        made = [NewTopic(f"{topic}{self.suffix}", 2, 1) for topic in TOPICS]
        for future in admin.create_topics(made).values():
            future.result(30)
        wait_until(lambda: {one.topic for one in made} <= admin.list_topics(timeout=10).topics.keys())

    def produce(self, part: dict[str, list[Row]]) -> None:
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})
        for topic, rows in part.items():
            for number, row in enumerate(rows):
                producer.produce(f"{topic}{self.suffix}", json.dumps(row).encode(), partition=number % 2)
        assert producer.flush(30) == 0

    def send(self, parts: Parts) -> None:
        """Send each part when the one before it was read."""
        for part in parts:
            self.produce(part)
            run(self.bed)


@pytest.fixture
def topics(make_bed: Callable[..., Flowbed], brokers: str) -> Topics:
    bed = make_bed(name=NAME, target="order_shipments")
    made = Topics(bed, brokers)
    made.create()
    text = shipped("order_shipments")
    for topic in TOPICS:
        text = text.replace(f'"subscribe": "{topic}"', f'"subscribe": "{topic}{made.suffix}"')
    bed.declare(text)
    return made


def expect(topics: Topics, *parts: Parts) -> None:
    topics.bed.holds(joined(*parts), COLUMNS)


def from_a_generation(bed: Flowbed) -> None:
    recover(bed, "reset_checkpoint", flow=NAME)
    run(bed)
    recover(bed, "reset_checkpoint", flow=NAME, start="generation", generation=1)


RECOVERIES: dict[str, Callable[[Flowbed], None]] = {
    "reset, rebuilt": lambda bed: recover(bed, "reset_checkpoint", flow=NAME),
    "reset, from a generation": from_a_generation,
    "rewind, table restored": lambda bed: recover(bed, "rewind", flow=NAME, batch="0", target="restored"),
    "full refresh": lambda bed: recover(bed, "full_refresh", table="order_shipments.order_shipments"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", RECOVERIES)
def test_each_order_comes_once_through_each_recovery(topics: Topics, how: str) -> None:
    topics.send(BEFORE)
    expect(topics, BEFORE)
    RECOVERIES[how](topics.bed)
    topics.send(AFTER)
    expect(topics, BEFORE, AFTER)


@pytest.mark.long
def test_a_state_that_starts_empty_has_lost_the_orders_that_waited(topics: Topics) -> None:
    topics.send(BEFORE)
    empty = {"state": "empty", "accept": ["unknown-impact"]}
    recover(topics.bed, "reset_checkpoint", flow=NAME, **empty)
    topics.send(AFTER)
    waited = [row for row in joined(BEFORE, AFTER) if row["order_id"] == "o3"]
    assert len(waited) == 2
    topics.bed.holds([row for row in joined(BEFORE, AFTER) if row not in waited], COLUMNS)
