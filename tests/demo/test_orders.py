"""The demo's orders, without their broker: some late, some sent again exactly as they were."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from random import Random

import pytest

from demo.data.orders import NEW, Orders

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def test_orders_are_sent_again_as_they_were_and_some_come_late() -> None:
    orders, random = Orders("nowhere:9092"), Random(7)
    sent = [order for _ in range(20) for order in orders._orders(random, NOW)]
    found = [json.loads(order) for order in sent]
    assert len(set(sent)) == 20 * NEW == len({order["order_id"] for order in found}), (
        "one content for each order"
    )
    assert len(sent) > len(set(sent)), "some come again"
    ages = [NOW - datetime.fromisoformat(order["ordered_at"].replace("Z", "+00:00")) for order in found]
    assert any(age > timedelta(minutes=3) for age in ages) and all(
        timedelta() <= age < timedelta(hours=1) for age in ages
    )


def test_an_order_that_kafka_does_not_take_ends_the_demo() -> None:
    orders = Orders("nowhere:9092")
    orders._delivered(None, None)
    orders.check()
    orders._delivered("queue full", None)
    with pytest.raises(RuntimeError, match="Kafka did not take an order: queue full"):
        orders.check()
    assert orders.written == 1
