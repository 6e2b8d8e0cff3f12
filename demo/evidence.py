"""What the story proves by: which files each generation took, and what an oracle in plain Python makes of their events.

The oracle knows nothing of the table. It reads the source files themselves, and of Streamkeeper's files only the position from which
the new generation began.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from demo.tables import read_rows
from streamkeeper import generations
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.home import FlowHome
from streamkeeper.probes import plain_path

Row = tuple[str, int, str, float, datetime]
SOURCE = "events_raw"


@dataclass(frozen=True)
class Handover:
    """What passed from one generation to the next: the old one's files as far as its position, and the files that the new one began behind.

    ``batch`` is the last batch of the old generation, ``ruled_by`` who knew it: the checkpoint or the sink.
    """

    batch: int | None
    ruled_by: str
    old: tuple[str, ...]
    new: frozenset[str]

    @property
    def exact(self) -> bool:
        """Whether the new generation stands behind the very files that the old one processed."""
        return frozenset(self.old) == self.new


def read_handover(home: FlowHome, number: int) -> Handover:
    """Read what generation ``number`` took over.

    :raises CheckpointError: a checkpoint cannot be read.
    """
    decision, start = generations.read(home, number), generations.read_start(home, number)
    assert decision is not None and start is not None and decision.previous is not None, "it began after another one"
    before = generations.read_start(home, decision.previous)
    assert before is not None, "the previous one began too"
    old = Checkpoint(home.storage, before.checkpoint)
    batch = start.evidence["batch"]
    reached = old.offsets(batch).sources[SOURCE]["logOffset"] if batch is not None else -1
    taken = tuple(files(old, reached))
    return Handover(
        batch,
        start.evidence["ruled_by"],
        taken,
        frozenset(files(Checkpoint(home.storage, start.checkpoint), start.positions[SOURCE]["logOffset"])),
    )


def files(checkpoint: Checkpoint, log_offset: int) -> Iterable[str]:
    """Give the paths of the source's files up to an offset, in the order in which they were taken."""
    if log_offset >= 0:
        for entry in checkpoint.files_log(SOURCE).entries(log_offset):
            yield plain_path(entry.path)


def committed_files(checkpoint: Checkpoint) -> frozenset[str]:
    """Give the paths of the files whose batches are committed."""
    batch = checkpoint.last_commit()
    offset = checkpoint.offsets(batch).sources.get(SOURCE) if batch is not None else None
    return frozenset(files(checkpoint, offset["logOffset"])) if offset else frozenset()


def expected(once: Iterable[str], as_they_come: Iterable[str]) -> Counter[Row]:
    """Give the rows that must be there: of the first files each event once, of the others every line."""
    distinct: dict[str, Row] = {}
    for row in _rows(once):
        distinct.setdefault(row[0], row)
    return Counter([*distinct.values(), *_rows(as_they_come)])


def actual(table_path: str) -> Counter[Row]:
    """Give the rows that are in the table."""
    return Counter(_row(row) for row in read_rows(table_path))


def differences(wanted: Counter[Row], found: Counter[Row], most: int = 5) -> list[str]:
    """Say which rows are missing or too many; empty where the two are equal."""
    missing, extra = wanted - found, found - wanted
    said = [f"{sum(rows.values()):,} rows {word}" for rows, word in ((missing, "missing"), (extra, "too many")) if rows]
    said += [f"missing {count} × {row}" for row, count in missing.most_common(most)]
    return said + [f"too many: {count} × {row}" for row, count in extra.most_common(most)]


def present(folder: str) -> frozenset[str]:
    """Give the paths of the source files that are there."""
    return frozenset(str(path) for path in Path(folder).glob("*.json") if not path.name.startswith((".", "_")))


def _rows(paths: Iterable[str]) -> list[Row]:
    return [_row(json.loads(line)) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _row(value: dict[str, Any]) -> Row:
    moment = value["event_time"]
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return value["event_id"], value["user_id"], value["kind"], value["amount"], moment.astimezone(timezone.utc)
