"""The shipped pipeline order_totals: its table is the oracle's after each recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.testing import PipelineTest
from tests.oracle import counted
from tests.worlds.flow_world import Flowbed
from tests.worlds.shipped.beds import PIPELINES, recover, run, shipped

NAME = "order_totals.hourly_totals"
COLUMNS = ("customer_id", "hour", "orders", "amount")
NUMBERS = count(1)


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDER_TOTALS", "1")


@dataclass(frozen=True)
class Order:
    number: int
    customer: int
    at: datetime
    late: bool

    @property
    def amount(self) -> Decimal:
        return Decimal(self.number) / 100

    @property
    def row(self) -> dict[str, Any]:
        body = {"customer_id": self.customer, "amount": float(self.amount), "ordered_at": f"{self.at}Z"}
        return {"order_id": f"o{self.number}", **body}


def order(customer: int, at: str, late: bool = False) -> Order:
    return Order(next(NUMBERS), customer, datetime.fromisoformat(f"2026-01-{at}"), late)


def totals(*parts: Iterable[Sequence[Order]]) -> list[dict[str, Any]]:
    """Return the oracle's rows."""
    found: dict[tuple[int, datetime], tuple[int, Decimal]] = {}
    for one in (one for batches in parts for batch in batches for one in batch if not one.late):
        key = one.customer, one.at.replace(minute=0)
        number, amount = found.get(key, (0, Decimal(0)))
        found[key] = number + 1, amount + one.amount
    return [dict(zip(COLUMNS, (*key, *value), strict=True)) for key, value in found.items()]


BEFORE = [
    [order(1, "01T10:05"), order(2, "01T10:10"), order(1, "01T10:30"), order(1, "01T11:00")],
    [order(3, "01T20:00"), order(1, "01T19:30")],
    [order(3, "01T20:10")],
]
"""Orders by batch."""
AFTER = [
    [
        order(2, "01T10:20", late=True),
        order(4, "01T11:20", late=True),
        order(3, "01T20:59"),
        order(1, "01T19:40"),
        order(5, "02T01:00"),
    ],
]
"""Late ones come two batches after the one that closed their hour: Spark heeds an earlier watermark."""


def put(bed: Flowbed, batches: Iterable[Sequence[Order]]) -> None:
    for batch in batches:
        bed.put([one.row for one in batch], "orders")


@pytest.mark.long
def test_orders_are_totalled_by_hour_and_late_ones_are_counted(
    pipeline_test: Callable[..., PipelineTest],
) -> None:
    test = pipeline_test(PIPELINES / "order_totals.py")
    for batches in (BEFORE, AFTER):
        for batch in batches:
            test.arrive("orders_files", [one.row for one in batch])
        assert test.run("hourly_totals") is Outcome.STOPPED
    assert counted(test.rows("order_totals"), COLUMNS) == counted(totals(BEFORE, AFTER), COLUMNS)
    assert sum(batch.late for batch in test.batches("hourly_totals")) == 2


MEANWHILE = [[order(6, "01T20:20")]]


def from_a_generation(bed: Flowbed) -> None:
    recover(bed, "reset_checkpoint", flow=NAME)
    put(bed, MEANWHILE)
    run(bed)
    recover(bed, "reset_checkpoint", flow=NAME, start="generation", generation=1)


RECOVERIES: dict[str, Callable[[Flowbed], None]] = {
    "reset, rebuilt": lambda bed: recover(bed, "reset_checkpoint", flow=NAME),
    "reset, empty": lambda bed: recover(bed, "reset_checkpoint", flow=NAME, start="earliest", state="empty"),
    "reset, from a generation": from_a_generation,
    "rewind, table kept": lambda bed: recover(bed, "rewind", flow=NAME, batch="1"),
    "rewind, table restored": lambda bed: recover(bed, "rewind", flow=NAME, batch="1", target="restored"),
    "full refresh": lambda bed: recover(bed, "full_refresh", table="order_totals.order_totals"),
}


@pytest.fixture
def totalled(make_bed: Callable[..., Flowbed]) -> Flowbed:
    """The pipeline with a file a batch, and the first files."""
    text = shipped("order_totals", maxFilesPerTrigger=("100", "1"))
    bed = make_bed(text, name=NAME, target="order_totals")
    put(bed, BEFORE)
    return bed


@pytest.mark.long
@pytest.mark.parametrize("how", RECOVERIES)
def test_totals_are_those_of_the_oracle_after_each_recovery(totalled: Flowbed, how: str) -> None:
    run(totalled)
    totalled.holds(totals(BEFORE), COLUMNS)
    RECOVERIES[how](totalled)
    put(totalled, AFTER)
    run(totalled)
    meanwhile = MEANWHILE if RECOVERIES[how] is from_a_generation else []
    totalled.holds(totals(BEFORE, meanwhile, AFTER), COLUMNS)
