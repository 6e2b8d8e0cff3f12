"""Examples of pages: what a source gets comes to the table beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import PROJECT
from streamkeeper.testing import PipelineTest
from tests.worlds.flow_world import Flowbed
from tools.docs.markdown import FENCE, TABLE, cells

LAST_YEAR = 1_750_000_000
OF_FILES = """
dp.create_streaming_table("orders")


@dp.append_flow(name="orders_flow", target="orders", sources=["orders_files"])
def orders_flow(raw):
    return raw.select("order_id", "amount")
"""
OF_A_TABLE = """
from streamkeeper import pipelines as dp

dp.create_source("appended", format="delta", path="{data}/shop", options={"skipChangeCommits": True})
dp.create_source("feed", format="delta", path="{data}/shop", options={"readChangeFeed": True})
dp.create_streaming_table("orders")
dp.create_streaming_table("copies")
dp.create_auto_cdc_flow(name="copy", target="copies", source="feed", keys=["order_id"], change_feed=True)


@dp.append_flow(name="orders_flow", target="orders", sources=["appended"])
def orders_flow(raw):
    return raw
"""


def example(page: str) -> tuple[str, Iterator[list[str]]]:
    """Return the first block of code of a page, and the rows of its first table. A cell that begins with "the
    same" is the one above it.
    """
    text = (PROJECT / "docs" / "how-to" / f"{page}.md").read_text()

    def rows() -> Iterator[list[str]]:
        above: list[str] = []
        for row in cells(TABLE.findall(text)[0]):
            pairs = zip(row, above or row, strict=True)
            above = [old if new.startswith("the same") else new for new, old in pairs]
            yield above

    return FENCE.findall(text)[0][1], rows()


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as the pages show them, without hidden columns."""
    values = ([value for name, value in row.items() if not name.startswith("__")] for row in rows)
    return sorted(", ".join("null" if value is None else str(value) for value in row[:2]) for row in values)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("targets/append", ("orders_raw", "orders_flow", "orders")),
        ("targets/update-complete", ("orders_raw", "order_totals", "order_totals")),
        ("sources/kafka", ("orders_topic", "orders", "orders")),
    ],
)
def test_rows_come_to_the_tables_beside_them(
    page: str, names: tuple[str, str, str], pipeline_test: Callable[..., PipelineTest], tmp_path: Path
) -> None:
    """``names`` are those of the source, the flow and the table."""
    source, flow, table = names
    code, rows = example(page)
    file = tmp_path / "page" / "orders.py"
    file.parent.mkdir()
    file.write_text(code)
    test = pipeline_test(file)
    for brought, expected in rows:
        for row in re.findall(r"`(\{.*?\})`", brought):
            test.arrive(source, [json.loads(row)])
        assert test.run(flow) is Outcome.STOPPED
        assert shown(test.rows(table)) == sorted(expected.split(" · ")), brought


def test_files_come_to_the_table_beside_them(make_bed: Callable[..., Flowbed]) -> None:
    code, rows = example("sources/files")
    bed = make_bed(f"{code}{OF_FILES}", name="orders.orders_flow", target="orders")
    folder = bed.root / "data" / "orders"
    folder.mkdir()
    for happens, expected in rows:
        name, content = re.findall(r"`(\w+\.json)`", happens)[0], re.findall(r"`(\{.*\})`", happens)
        if content:
            aside = folder / f".{name}"
            aside.write_text(content[0])
            if "late" in happens:
                os.utime(aside, (LAST_YEAR, LAST_YEAR))
            aside.replace(folder / name)
        else:
            (folder / name).unlink()
        assert bed.run() is Outcome.STOPPED
        assert shown(bed.rows()) == sorted(expected.split(" · ")), happens


def test_commits_of_a_delta_table_come_to_the_tables_beside_them(make_bed: Callable[..., Flowbed]) -> None:
    bed = make_bed(OF_A_TABLE, name="orders.orders_flow", target="orders")
    copies = replace(bed, name="orders.copy", target="copies")
    table = f"delta.`{bed.root / 'data' / 'shop'}`"
    bed.spark.sql(
        f"CREATE TABLE {table} (order_id INT, amount DOUBLE) USING delta"
        " TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    for statement, appended, followed in example("sources/delta")[1]:
        bed.spark.sql(statement.strip("`").replace("orders", table))
        for one, expected in ((bed, appended), (copies, followed)):
            assert one.run() is Outcome.STOPPED
            assert shown(one.rows()) == sorted(expected.split(" · ")), statement
