"""What the demo shows and proves by: a flow's line, a table's rows, the oracle."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from demo import evidence
from demo.console import Console, line
from demo.tables import TableWatch
from streamkeeper import holds
from streamkeeper.home import FlowHome
from streamkeeper.settings import Settings
from streamkeeper.status import FlowStatus
from streamkeeper.storage import open_storage

MOMENT = datetime(2026, 11, 21, 12, 30, 5)
TIME = "2026-11-21T12:00:00.000Z"


def event(name: str) -> dict[str, object]:
    return {"event_id": name, "user_id": 1, "kind": "view", "amount": 1.5, "event_time": TIME}


def write_events(folder: Path, file: str, *names: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_text("".join(json.dumps(event(name)) + "\n" for name in names))
    return str(path)


def append(table: Path, *names: str) -> None:
    rows = [{**event(name), "event_time": datetime(2026, 11, 21, 12, tzinfo=timezone.utc)} for name in names]
    write_deltalake(str(table), pa.Table.from_pylist(rows), mode="append")


@pytest.mark.parametrize(
    ("found", "rows", "said"),
    [
        pytest.param(
            FlowStatus("events.clean_events", "declared", None, None, None, None, "never started"),
            None,
            "12:30:05  events.clean_events    declared  generation –   batch –     age –       events: no table yet",
            id="never started",
        ),
        pytest.param(
            FlowStatus("events.clean_events", "running", 2, 1234, 4.2, 3, ""),
            12345,
            "12:30:05  events.clean_events    running   generation 2   batch 1234  age 4 s     events: 12,345 rows",
            id="running",
        ),
    ],
)
def test_a_flows_line_says_state_generation_batch_age_and_rows(found: FlowStatus, rows: int | None, said: str) -> None:
    assert line(found, "events", rows, MOMENT) == said


def test_what_a_hold_means_is_said_once_and_again_when_it_changes(tmp_path: Path) -> None:
    places = {"STATE": tmp_path / "state", "WAREHOUSE": tmp_path / "warehouse", "DATA": tmp_path / "data"}
    settings = Settings.from_environment({f"STREAMKEEPER_{name}": str(place) for name, place in places.items()})
    home = FlowHome(open_storage(settings.state), "events", "clean_events")
    said: list[str] = []
    console = Console(settings, said.append)
    for reason in ("a walk", "a walk", "a sleep"):
        holds.put(home, holds.person("ann"), reason, "ann")
        console.look()
    held = [text.strip() for text in said if "person-ann" in text]
    assert held == ["events.clean_events: held: person-ann: a walk", "events.clean_events: held: person-ann: a sleep"]
    assert len(said) == 5


def test_a_tables_rows_are_counted_as_it_grows(tmp_path: Path) -> None:
    watch = TableWatch(str(tmp_path / "t"))
    assert watch.rows() is None
    append(tmp_path / "t", "a", "b")
    assert watch.rows() == 2
    append(tmp_path / "t", "c")
    assert watch.rows() == 3


def test_the_oracle_keeps_each_event_once_before_the_reset_and_every_line_after_it(tmp_path: Path) -> None:
    before = write_events(tmp_path, "1.json", "a", "b", "a")
    after = write_events(tmp_path, "2.json", "a", "c", "c")
    wanted = evidence.expected([before], [after])
    assert sorted(row[0] for row in wanted.elements()) == ["a", "a", "b", "c", "c"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param(["a", "b"], [], id="equal"),
        pytest.param(["a"], ["1 rows missing"], id="lost"),
        pytest.param(["a", "b", "b"], ["1 rows too many"], id="twice"),
        pytest.param(["a", "a"], ["1 rows missing", "1 rows too many"], id="one lost and one twice: the count alone would not tell"),
    ],
)
def test_a_table_that_is_not_the_oracles_is_told_from_one_that_is(tmp_path: Path, rows: list[str], said: list[str]) -> None:
    wanted = evidence.expected([write_events(tmp_path / "in", "1.json", "a", "b")], [])
    append(tmp_path / "t", *rows)
    assert evidence.differences(wanted, evidence.actual(str(tmp_path / "t")), most=0) == said


def test_a_row_with_another_value_is_a_difference(tmp_path: Path) -> None:
    wanted = evidence.expected([write_events(tmp_path / "in", "1.json", "a")], [])
    other = {**event("a"), "amount": 2.5, "event_time": datetime(2026, 11, 21, 12, tzinfo=timezone.utc)}
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist([other]))
    assert evidence.differences(wanted, evidence.actual(str(tmp_path / "t")), most=0) == ["1 rows missing", "1 rows too many"]


def test_files_that_are_being_written_are_not_there_yet(tmp_path: Path) -> None:
    seen = write_events(tmp_path, "1.json", "a")
    write_events(tmp_path, ".2.json", "b")
    assert evidence.present(str(tmp_path)) == {seen}
