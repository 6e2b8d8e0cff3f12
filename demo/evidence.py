"""What the story proves by: which files each generation took, and what an oracle in plain Python makes of
their changes.

The oracle knows nothing of the table. It reads the source files themselves, and of Streamkeeper's files only
the position from which the new generation began.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.tables import read_rows
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome

Row = tuple[int, str, str, str]
SOURCE = "customers_cdc"


@dataclass(frozen=True)
class Handover:
    """What passed from one generation to the next: the old one's files as far as its position, and the files
    that the new one began behind.

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


def read_handover(home: FlowHome, number: int, source: str = SOURCE) -> Handover:
    """Read what generation ``number`` took over, in one files source.

    :raises CheckpointError: a checkpoint cannot be read.
    """
    decision, start = generations.read(home, number), generations.read_start(home, number)
    assert decision is not None and start is not None and decision.previous is not None, (
        "it began after another one"
    )
    before = generations.read_start(home, decision.previous)
    assert before is not None, "the previous one began too"
    old = Checkpoint(home.storage, before.checkpoint)
    batch = start.evidence["batch"]
    reached = old.offsets(batch).sources[source]["logOffset"] if batch is not None else -1
    taken = tuple(files(old, reached, source))
    return Handover(
        batch,
        start.evidence["ruled_by"],
        taken,
        frozenset(
            files(Checkpoint(home.storage, start.checkpoint), start.positions[source]["logOffset"], source)
        ),
    )


def files(checkpoint: Checkpoint, log_offset: int, source: str = SOURCE) -> Iterable[str]:
    """Yield the paths of the source's files up to an offset, in the order in which they were taken."""
    if log_offset >= 0:
        for entry in checkpoint.files_log(source).entries(log_offset):
            yield plain_path(entry.path)


def committed_files(checkpoint: Checkpoint, source: str = SOURCE) -> frozenset[str]:
    """Return the paths of the files whose batches are committed."""
    batch = checkpoint.last_commit()
    offset = checkpoint.offsets(batch).sources.get(source) if batch is not None else None
    return frozenset(files(checkpoint, offset["logOffset"], source)) if offset else frozenset()


def expected(changes: Iterable[str], snapshot: Iterable[str]) -> Counter[Row]:
    """Return the rows that must be there: of each customer the newest change, unless a delete or a truncate
    came after it.

    It goes by the set of changes alone, whatever their order and however often they came; the rows of the
    snapshot have the sequence 0.
    """
    upserts: dict[int, tuple[int, Row]] = {}
    deleted: dict[int, int] = {}
    truncated = -1
    for value in (*_rows(snapshot), *_rows(changes)):
        sequence, operation = value.get("sequenceNum", 0), value.get("operation")
        if operation == "TRUNCATE":
            truncated = max(truncated, sequence)
        elif operation == "DELETE":
            deleted[value["customer_id"]] = max(deleted.get(value["customer_id"], -1), sequence)
        else:
            upserts[value["customer_id"]] = max(
                upserts.get(value["customer_id"], (-1, _row(value))), (sequence, _row(value))
            )
    living = (
        row for customer, (at, row) in upserts.items() if at > deleted.get(customer, -1) and at >= truncated
    )
    return Counter(living)


def actual(table_path: str) -> Counter[Row]:
    """Return the rows that are in the table."""
    return Counter(_row(row) for row in read_rows(table_path))


def differences(expected_rows: Counter[Any], actual_rows: Counter[Any], most: int = 5) -> list[str]:
    """Say which rows are missing or too many; empty where the two are equal."""
    missing, extra = expected_rows - actual_rows, actual_rows - expected_rows
    descriptions = [
        f"{sum(rows.values()):,} rows {word}"
        for rows, word in ((missing, "missing"), (extra, "too many"))
        if rows
    ]
    descriptions += [f"missing {count} × {row}" for row, count in missing.most_common(most)]
    return descriptions + [f"too many: {count} × {row}" for row, count in extra.most_common(most)]


def present(folder: str) -> frozenset[str]:
    """Return the paths of the source files that are there."""
    return frozenset(
        str(path) for path in Path(folder).glob("*.json") if not path.name.startswith((".", "_"))
    )


def _rows(paths: Iterable[str]) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()
    ]


def _row(value: dict[str, Any]) -> Row:
    return value["customer_id"], value["name"], value["email"], value["city"]
