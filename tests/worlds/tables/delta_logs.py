"""Logs of Delta tables, written by hand as Delta writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ID = "7c0ffee0-0000-4000-8000-000000000001"
START_MS = 1_790_000_000_000
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {
    "metaData": {
        "id": ID,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": (
            '{"type": "struct", "fields": [{"name": "event_id", "type": "string", "nullable": true,'
            ' "metadata": {}}]}'
        ),
        "partitionColumns": [],
        "configuration": {},
    }
}


def add(path: str, rows: int | None = 2, **more: Any) -> dict[str, Any]:
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": 10,
            "modificationTime": 1,
            "dataChange": True,
            **stats,
            **more,
        }
    }


class Table:
    """A table's log, written by hand as Delta writes it; each commit is a minute younger than the one
    before.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1
        self.commit(PROTOCOL, METADATA, add("a0", 2), add("a1", 3))

    def commit(self, *actions: dict[str, Any]) -> None:
        self.version += 1
        file = self.log / f"{self.version:020d}.json"
        file.write_text("".join(json.dumps(action) + "\n" for action in ({"commitInfo": {}}, *actions)))
        moment = START_MS / 1000 + 60 * self.version
        os.utime(file, (moment, moment))
        for action in actions:
            if "add" in action:
                (self.root / action["add"]["path"]).touch()

    def clean_up(self, before: int, checkpoint: bool = True) -> None:
        for version in range(before):
            (self.log / f"{version:020d}.json").unlink(missing_ok=True)
        if checkpoint:
            (self.log / f"{before:020d}.checkpoint.parquet").touch()
