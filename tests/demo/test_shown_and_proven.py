"""What the demo shows and proves by: a flow's line, a table's rows, the oracle."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from demo import evidence
from demo.console import Console, line
from demo.tables import count_rows, read_rows
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.health.flows import FlowHealth
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

MOMENT = datetime(2026, 11, 21, 12, 30, 5)
FLOW = "customers.customers_incremental_flow"
SHOWN = (FLOW, "customers", "customers", "flow__customers", "10 seconds")

Change = dict[str, object]


def customer(number: int, version: int = 0) -> Change:
    return {"customer_id": number, "name": f"n{number}", "email": f"{number}.{version}", "city": "Delft"}


def upsert(number: int, sequence: int) -> Change:
    return {**customer(number, sequence), "operation": "UPDATE", "sequenceNum": sequence}


def delete(number: int, sequence: int) -> Change:
    return {"customer_id": number, "operation": "DELETE", "sequenceNum": sequence}


def truncate(sequence: int) -> Change:
    return {"operation": "TRUNCATE", "sequenceNum": sequence}


def write_rows(folder: Path, file: str, *rows: Change) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def append(table: Path, *rows: Change) -> None:
    write_deltalake(str(table), pa.Table.from_pylist(list(rows)), mode="append")


@pytest.mark.parametrize(
    ("found", "rows", "said"),
    [
        pytest.param(
            FlowHealth(*SHOWN, "declared", "never started"),
            None,
            f"12:30:05  {FLOW}  declared       generation –   batch –     age –       customers: no table"
            " yet",
            id="never started",
        ),
        pytest.param(
            FlowHealth(*SHOWN, "running", "", generation=2, batch=1234, age=4.2),
            12345,
            f"12:30:05  {FLOW}  running        generation 2   batch 1234  age 4 s     customers: 12,345 rows",
            id="running",
        ),
    ],
)
def test_a_flows_line_says_state_generation_batch_age_and_rows(
    found: FlowHealth, rows: int | None, said: str
) -> None:
    assert line(found, rows, MOMENT) == said


def test_what_a_hold_means_is_said_once_and_again_when_it_changes(tmp_path: Path) -> None:
    places = {"STATE": tmp_path / "state", "WAREHOUSE": tmp_path / "warehouse", "DATA": tmp_path / "data"}
    settings = Settings.from_environment(
        {f"STREAMKEEPER_{name}": str(place) for name, place in places.items()}
    )
    home = FlowHome(open_storage(settings.state), *FLOW.split("."))
    said: list[str] = []
    console = Console(settings, said.append)
    for reason in ("a walk", "a walk", "a sleep"):
        holds.put(home, holds.person("ann"), reason, "ann")
        console.look()
    held = [text.strip() for text in said if "by ann" in text]
    assert held == [f"{FLOW}: held: by ann: a walk", f"{FLOW}: held: by ann: a sleep"]
    assert len(said) == 8, "a line for each of two flows at each look, and two that say why"


def test_a_tables_rows_are_counted_as_it_grows(tmp_path: Path) -> None:
    table = tmp_path / "t"
    assert count_rows(str(table)) is None
    append(table, customer(1), customer(2))
    assert count_rows(str(table)) == 2
    append(table, customer(3))
    assert count_rows(str(table)) == 3


ORACLE: dict[str, tuple[list[Change], list[Change]]] = {
    # the changes, in their order of arrival, and the rows that they come to; the snapshot has the customers 1
    # and 2
    "none": ([], [customer(1), customer(2)]),
    "newer ones win over the snapshot": ([upsert(1, 3)], [customer(1, 3), customer(2)]),
    "late ones lose": ([upsert(1, 5), upsert(1, 3)], [customer(1, 5), customer(2)]),
    "a delete": ([delete(1, 4)], [customer(2)]),
    "a late change of a deleted customer": (
        [delete(1, 4), upsert(1, 3), upsert(3, 3)],
        [customer(2), customer(3, 3)],
    ),
    "a change after the delete": ([delete(1, 4), upsert(1, 6)], [customer(1, 6), customer(2)]),
    "a delete and a change at once": ([upsert(1, 4), delete(1, 4)], [customer(2)]),
    "a truncate": ([upsert(3, 3), truncate(4), upsert(4, 5)], [customer(4, 5)]),
    "a late change from before the truncate": ([truncate(4), upsert(3, 3), upsert(4, 4)], [customer(4, 4)]),
    "everything twice": (
        [upsert(3, 3), delete(1, 4), upsert(3, 3), delete(1, 4)],
        [customer(2), customer(3, 3)],
    ),
}


def test_a_tables_rows_are_read_with_their_types(tmp_path: Path) -> None:
    known = datetime(2026, 11, 21, 12, 30, tzinfo=timezone.utc)
    rows = [
        {"at": known, "impact": Decimal("1.20"), "tags": ["a", "b"], "day": known.date()},
        {"at": None, "impact": Decimal("3.00"), "tags": None, "day": None},
    ]
    types = {"at": pa.timestamp("us", "UTC"), "impact": pa.decimal128(9, 2), "tags": pa.list_(pa.string())}
    schema = pa.schema([*types.items(), ("day", pa.date32())])
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, schema))
    assert read_rows(str(tmp_path)) == rows


@pytest.mark.parametrize(("changes", "rows"), ORACLE.values(), ids=ORACLE.keys())
def test_the_oracle_goes_by_sequence_whatever_the_order(
    tmp_path: Path, changes: list[Change], rows: list[Change]
) -> None:
    snapshot = write_rows(tmp_path / "in", "0.json", customer(1), customer(2))
    for number, order in enumerate((changes, changes[::-1])):
        wanted = evidence.expected([write_rows(tmp_path / "in", "1.json", *order)], [snapshot])
        append(tmp_path / f"t{number}", *rows)
        assert evidence.differences(wanted, evidence.actual(str(tmp_path / f"t{number}"))) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param([customer(1), customer(2)], [], id="equal"),
        pytest.param([customer(1)], ["1 rows missing"], id="lost"),
        pytest.param([customer(1), customer(2), customer(2)], ["1 rows too many"], id="twice"),
        pytest.param(
            [customer(1), customer(2, 9)],
            ["1 rows missing", "1 rows too many"],
            id="another value, which a count would not tell",
        ),
    ],
)
def test_a_table_that_is_not_the_oracles_is_told_from_one_that_is(
    tmp_path: Path, rows: list[Change], said: list[str]
) -> None:
    wanted = evidence.expected([], [write_rows(tmp_path / "in", "1.json", customer(1), customer(2))])
    append(tmp_path / "t", *rows)
    assert evidence.differences(wanted, evidence.actual(str(tmp_path / "t")), most=0) == said


def test_files_that_are_being_written_are_not_there_yet(tmp_path: Path) -> None:
    seen = write_rows(tmp_path, "1.json", customer(1))
    write_rows(tmp_path, ".2.json", customer(2))
    assert evidence.present(str(tmp_path)) == {seen}
