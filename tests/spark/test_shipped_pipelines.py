"""The shipped pipelines, tested as a user would: with streamkeeper.testing, rows in and rows out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamkeeper.errors import RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import PROJECT
from streamkeeper.testing import PipelineTest

CUSTOMERS = PROJECT / "spark_jobs" / "pipelines" / "customers.py"
ORDERS = PROJECT / "spark_jobs" / "pipelines" / "orders.py"
FLOW = "customers_incremental_flow"

Make = Callable[..., PipelineTest]


def change(customer: int, name: str, number: int, operation: str = "UPSERT") -> dict[str, Any]:
    return {"customer_id": customer, "name": name, "operation": operation, "sequenceNum": number}


def names(test: PipelineTest) -> dict[int, str]:
    return {row["customer_id"]: row["name"] for row in test.rows("customers")}


def test_a_view_drops_repeated_and_empty_changes(pipeline_test: Make) -> None:
    test = pipeline_test(CUSTOMERS)
    ada = change(1, "Ada", 1)
    found = test.view("customers_changes", customers_cdc=[ada, ada, change(1, "Ada", 2), {"customer_id": 3}])
    assert sorted((row["customer_id"], row["sequenceNum"]) for row in found) == [(1, 1), (1, 2)]


def test_the_newest_change_wins_over_batches_a_restart_and_the_snapshot(pipeline_test: Make) -> None:
    test = pipeline_test(CUSTOMERS)
    test.arrive("customers_cdc", [change(1, "Ada", 1), change(2, "Bob", 2)])
    test.arrive("customers_cdc", [change(1, "Ada L.", 5)])
    assert test.run(FLOW) is Outcome.STOPPED
    assert [batch.rows for batch in test.batches(FLOW)] == [2, 1]
    test.arrive("customers_cdc", [change(1, "late", 3), change(2, "Bob", 6, "DELETE")])
    test.arrive("customers_snapshot", [{"customer_id": 3, "name": "Eve"}, {"customer_id": 2, "name": "Old"}])
    assert (test.run(FLOW), test.run("customers_snapshot_flow")) == (Outcome.STOPPED, Outcome.DONE)
    assert names(test) == {1: "Ada L.", 3: "Eve"}


@pytest.mark.long
def test_without_the_deduplication_the_checkpoint_does_not_fit(pipeline_test: Make) -> None:
    test = pipeline_test(CUSTOMERS)
    test.arrive("customers_cdc", [change(1, "Ada", 1)])
    assert test.run(FLOW) is Outcome.STOPPED
    test.edit('.dropDuplicates(["customer_id", "sequenceNum"])', "")
    test.arrive("customers_cdc", [change(2, "Bob", 2)])
    assert test.run(FLOW) is Outcome.PARKED
    park = test.park(FLOW)
    assert park is not None
    assert (park.details["sql_state"], park.details["recovery"]) == ("42K03", "reset_checkpoint")
    assert "dropDuplicates" in CUSTOMERS.read_text(), "the user's own file is as it was"


def order(number: int, at: str, customer: int = 1) -> dict[str, Any]:
    body = {"order_id": f"o{number}", "customer_id": customer, "amount": 2.5, "ordered_at": at}
    return {"value": json.dumps(body)}


def test_an_order_that_is_sent_again_is_kept_once_also_after_a_restart(
    pipeline_test: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_BROKERS", "127.0.0.1:1")
    test = pipeline_test(ORDERS)
    test.arrive("orders_raw", [order(1, "2026-01-01T10:00:00Z"), order(1, "2026-01-01T10:00:00Z")])
    assert test.run("clean_orders") is Outcome.STOPPED
    test.arrive("orders_raw", [order(1, "2026-01-01T10:00:00Z"), order(2, "2026-01-03T10:00:00Z")])
    test.arrive("orders_raw", [order(4, "2026-01-03T11:00:00Z")])  # Spark drops by the watermark before it
    test.arrive("orders_raw", [order(3, "2026-01-01T09:00:00Z"), {"value": b"no order"}])
    assert test.run("clean_orders") is Outcome.STOPPED
    assert sorted(row["order_id"] for row in test.rows("orders")) == ["o1", "o2", "o4"]
    assert sum(batch.late for batch in test.batches("clean_orders")) == 1, "the third is later than a day"


def test_what_a_test_cannot_do_is_said(pipeline_test: Make) -> None:
    test = pipeline_test(CUSTOMERS)
    with pytest.raises(RequestError, match=r"no source 'nothing'. It has customers_cdc, customers_snapshot"):
        test.arrive("nothing", [])
    with pytest.raises(RequestError, match=r"has colour, which it lacks. Its columns are customer_id, name"):
        test.arrive("customers_snapshot", [{"customer_id": 1, "colour": "red"}])
    with pytest.raises(RequestError, match=r"has no view or flow 'x'. It has customers_changes"):
        test.view("x")
    with pytest.raises(RequestError, match=r"has 'dp' [0-9]+ times"):
        test.edit("dp", "")
