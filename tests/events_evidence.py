"""What an oracle in plain Python makes of files of events, and what the table of events has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from demo.tables import read_rows

Row = tuple[str, int, str, float, datetime]
SOURCE = "events_raw"


def expected(once: Iterable[str], as_they_come: Iterable[str]) -> Counter[Row]:
    """Give the rows that must be there: of the first files each event once, of the others every line."""
    distinct: dict[str, Row] = {}
    for row in _rows(once):
        distinct.setdefault(row[0], row)
    return Counter([*distinct.values(), *_rows(as_they_come)])


def actual(table_path: str) -> Counter[Row]:
    """Give the rows that are in the table."""
    return Counter(_row(row) for row in read_rows(table_path))


def _rows(paths: Iterable[str]) -> list[Row]:
    return [
        _row(json.loads(line))
        for path in paths
        for line in Path(path).read_text(encoding="utf-8").splitlines()
    ]


def _row(value: dict[str, Any]) -> Row:
    moment = value["event_time"]
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (
        value["event_id"],
        value["user_id"],
        value["kind"],
        value["amount"],
        moment.astimezone(timezone.utc),
    )
