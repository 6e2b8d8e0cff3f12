"""The shipped pipeline fruit_counts: its table is the oracle's after each recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.testing import PipelineTest
from tests.oracle import counted
from tests.worlds.shipped.beds import PIPELINES

COLUMNS = ("fruit", "pieces")
STOCK = {"apple": 120, "orange": 80, "banana": 45}


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUIT_COUNTS", "1")


Batch = Sequence[tuple[str, int]]
BEFORE: list[Batch] = [[("apple", 5), ("pear", 3), ("apple", -1)], [("orange", -2)], [("pear", 4)]]
AFTER: list[Batch] = [[("apple", 10), ("banana", -45), ("pear", -7), ("kiwi", 1)]]


def rows(batch: Batch) -> list[dict[str, Any]]:
    return [{"fruit": fruit, "pieces": pieces} for fruit, pieces in batch]


def pieces(*parts: Iterable[Batch], stock: dict[str, int] = STOCK) -> list[dict[str, Any]]:
    """Return the oracle's rows: of each fruit that came, those of the stocktaking and all since."""
    found: dict[str, int] = {}
    for fruit, number in (item for batches in parts for batch in batches for item in batch):
        found[fruit] = found.get(fruit, stock.get(fruit, 0)) + number
    return rows(list(found.items()))


def test_the_counts_begin_with_the_stocktaking(pipeline_test: Callable[..., PipelineTest]) -> None:
    test = pipeline_test(PIPELINES / "fruit_counts.py")
    for batches in (BEFORE, AFTER):
        for batch in batches:
            test.arrive("fruit_files", rows(batch))
        assert test.run("counted_fruit") is Outcome.STOPPED
    assert counted(test.rows("fruit_counts"), COLUMNS) == counted(pieces(BEFORE, AFTER), COLUMNS)


def test_rows_of_a_test_take_the_place_of_an_initial_state(
    pipeline_test: Callable[..., PipelineTest],
) -> None:
    test = pipeline_test(PIPELINES / "fruit_counts.py")
    found = test.view("counted_fruit", fruit_files=rows(BEFORE[0]), stocktaking=rows([("pear", 7)]))
    assert counted(found, COLUMNS) == counted(pieces(BEFORE[:1], stock={"pear": 7}), COLUMNS)
