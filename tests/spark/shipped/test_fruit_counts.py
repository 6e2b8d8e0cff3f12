"""The shipped pipeline fruit_counts: its table is the oracle's after each recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from streamkeeper.declare.model import AppendFlow
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.testing import PipelineTest
from tests.oracle import counted
from tests.worlds.flow_world import Flowbed
from tests.worlds.recover.old_jobs import run_declared_job
from tests.worlds.shipped.beds import PIPELINES, recover, run, shipped

NAME = "fruit_counts.counted_fruit"
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


def test_rows_of_a_test_take_the_place_of_an_initial_state(
    pipeline_test: Callable[..., PipelineTest],
) -> None:
    test = pipeline_test(PIPELINES / "fruit_counts.py")
    found = test.view("counted_fruit", fruit_files=rows(BEFORE[0]), stocktaking=rows([("pear", 7)]))
    assert counted(found, COLUMNS) == counted(pieces(BEFORE[:1], stock={"pear": 7}), COLUMNS)


MEANWHILE: list[Batch] = [[("banana", 2), ("pear", 1)]]


def put(bed: Flowbed, batches: Iterable[Batch]) -> None:
    for batch in batches:
        bed.put(rows(batch), "fruit")


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
    "full refresh": lambda bed: recover(bed, "full_refresh", table="fruit_counts.fruit_counts"),
    "rebuild without downtime": lambda bed: recover(
        bed, "rebuild_without_downtime", table="fruit_counts.fruit_counts"
    ),
}


@pytest.fixture
def counting(make_bed: Callable[..., Flowbed]) -> Flowbed:
    """The pipeline with a file a batch, and the first files."""
    bed = make_bed(shipped("fruit_counts", maxFilesPerTrigger=("100", "1")), name=NAME, target="fruit_counts")
    put(bed, BEFORE)
    return bed


@pytest.mark.long
@pytest.mark.parametrize("how", RECOVERIES)
def test_counts_are_those_of_the_oracle_after_each_recovery(counting: Flowbed, how: str) -> None:
    run(counting)
    counting.holds(pieces(BEFORE), COLUMNS)
    RECOVERIES[how](counting)
    put(counting, AFTER)
    run(counting)
    meanwhile = MEANWHILE if RECOVERIES[how] is from_a_generation else []
    counting.holds(pieces(BEFORE, meanwhile, AFTER), COLUMNS)


@pytest.mark.long
def test_counts_that_begin_anew_begin_with_the_stocktaking(counting: Flowbed) -> None:
    """Fruit that does not come again keeps its row."""
    run(counting)
    recover(counting, "reset_checkpoint", flow=NAME, state="empty", accept=["data-loss"])
    put(counting, AFTER)
    run(counting)
    anew = pieces(AFTER)
    again = {row["fruit"] for row in anew}
    kept = [row for row in pieces(BEFORE) if row["fruit"] not in again]
    counting.holds([*kept, *anew], COLUMNS)


@pytest.mark.long
def test_the_counts_of_a_plain_job_are_gone_on_with(counting: Flowbed) -> None:
    """It was given the stocktaking, and wrote its counts elsewhere: those that change are here."""
    folder = run_declared_job(counting)
    adopted = {"checkpoint": str(folder), "old_job_is_stopped": True}
    recover(counting, "adopt", flow=NAME, **adopted, accept=["data-loss"])
    put(counting, AFTER)
    run(counting)
    changed = {fruit for batch in AFTER for fruit, _ in batch}
    counting.holds([row for row in pieces(BEFORE, AFTER) if row["fruit"] in changed], COLUMNS)


def test_a_delivery_is_added_to_what_was_counted() -> None:
    """The state's code alone, without Spark."""
    flow = load_pipeline(PIPELINES / "fruit_counts.py", "/data").flow("counted_fruit")
    assert isinstance(flow, AppendFlow)
    counting = flow.function.__globals__["Counting"]  # type: ignore[union-attr]
    tester = TwsTester(counting(), initialStateRow=[("apple", Row(fruit="apple", pieces=120))])
    found = tester.test("apple", [Row(fruit="apple", pieces=5), Row(fruit="apple", pieces=-2)])
    assert found == [Row(fruit="apple", pieces=123)]
    assert tester.peekValueState("pieces", "apple") == (123,)
