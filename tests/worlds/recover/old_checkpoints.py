"""What a plain Spark job leaves, written by hand: the core adopts it without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamkeeper.checkpoint import (
    CommitEntry,
    FileEntry,
    OffsetEntry,
    write_commit,
    write_files_log,
    write_offsets,
)
from streamkeeper.storage import LocalStorage
from tests.worlds.small_world import World

OLD_ID = "11111111-2222-3333-4444-555555555555"


def old_job(
    world: World,
    batches: int = 3,
    committed: int | None = None,
    transactions: int | None = None,
    *,
    place: str = "old job",
    query_id: str = OLD_ID,
    **also: Any,
) -> Path:
    """Leave what a plain Spark job leaves: a checkpoint of one files source without a name, and its rows in
    the flow's table.
    """
    folder, done = world.root / place, batches if committed is None else committed
    sources = {"0": [world.add_files(1) for _ in range(batches)]}
    write_old(world, folder, sources, done, query_id=query_id, **also)
    if transactions != 0:
        world.write_table(query_id, done if transactions is None else transactions)
    return folder


def write_old(
    world: World,
    folder: Path,
    sources: dict[str, list[list[Path]]],
    committed: int,
    *,
    conf: dict[str, str] | None = None,
    query_id: str = OLD_ID,
) -> None:
    """Write a checkpoint in offset log v1: by source and batch the files that were read."""
    storage = LocalStorage(str(folder))
    storage.overwrite("metadata", json.dumps({"id": query_id}).encode())
    for batch in range(max(map(len, sources.values()))):
        for key, batches in sources.items():
            entries = [
                FileEntry(f"file://{file}", int(file.stat().st_mtime * 1000), batch)
                for file in batches[batch]
            ]
            storage.overwrite(f"sources/{key}/{batch}", b"".join(write_files_log(entries)))
        offsets = OffsetEntry(batch, 1, 0, 1, conf or {}, {key: {"logOffset": batch} for key in sources})
        storage.overwrite(f"offsets/{batch}", write_offsets(offsets))
        if batch < committed:
            storage.overwrite(f"commits/{batch}", write_commit(CommitEntry(batch, 1, 0)))
