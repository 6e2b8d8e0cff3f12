"""What an AUTO CDC table remembers beside its rows, as the domain in its log says it: deletes, truncates, and
with SCD type 2 the changes that are shown as one.

The changes lie in Parquet files below the table's ``_streamkeeper`` folder, which VACUUM leaves alone. A
``domainMetadata`` action names those that count: runs, each with its bounds. So a version of the table is its
rows *and* what it remembers, under one commit. A file that no version names was left by a batch that never
was committed.

::

    {"table": "<the table's id>", "since": 41, "truncate": {"at": …, "learned": …},
     "runs": [{"files": [["_streamkeeper/remembered/<run>/part-….parquet", 1234]], "rows": 50,
               "first_key": [1, 9], "at": [3, 8], "learned": "…"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from streamkeeper.storage import Storage

DOMAIN = "streamkeeper.remembered"
FOLDER = "_streamkeeper/remembered"
FEATURE = "domainMetadata"
"""The table feature that the domain needs; readers need nothing."""
BOUND = "streamkeeper.remembered"
"""Table property of a table whose log says what it remembers.

"""

Bounds = tuple[Any, Any]
"""Lowest and highest value, both included, in the form that JSON keeps."""

_SMALL = 1000
_TOGETHER = 8
"""Runs of about the same size that are merged into one: so there are at most seven of each size, and each
change is written again once for each power of eight of the runs' rows.
"""


@dataclass(frozen=True)
class Run:
    """Some remembered changes, in files that never change.

    ``files`` are names below the table's folder, with their bytes. ``first_key`` and ``at`` bound the first
    key column and the sequences; None where that is unknown. ``rows`` is at least their number. ``learned``
    is when the first of them was written (ISO 8601, UTC).
    """

    files: tuple[tuple[str, int], ...]
    rows: int
    first_key: Bounds | None
    at: Bounds | None
    learned: str

    def may_meet(self, first_key: Bounds | None, since: Any = None) -> bool:
        """Return whether the run may hold a change of a key within bounds, at ``since`` or later."""
        if first_key is not None and self.first_key is not None and _apart(self.first_key, first_key):
            return False
        return since is None or self.at is None or not self.at[1] < since


@dataclass(frozen=True)
class Truncate:
    """The highest sequence of a truncate, in the form that JSON keeps, and when it was written."""

    at: Any
    learned: str


@dataclass(frozen=True)
class Remembered:
    """What a version of a table remembers. ``table`` is the id of the table that wrote it, and ``since`` the
    version that its commit was made from: a RESTORE after that is somebody else's.
    """

    table: str
    since: int
    truncate: Truncate | None = None
    runs: tuple[Run, ...] = ()

    def to_json(self) -> str:
        """Return the content of the domain."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Remembered:
        """Return what a domain holds."""
        value = json.loads(text)
        truncate = value.get("truncate")
        return Remembered(
            value["table"],
            int(value["since"]),
            Truncate(truncate["at"], truncate["learned"]) if truncate else None,
            tuple(_run(run) for run in value["runs"]),
        )

    def with_run(self, run: Run, instead_of: Iterable[Run] = ()) -> Remembered:
        """Return this with one more run, which holds what some others held."""
        gone = set(instead_of)
        return replace(
            self, runs=(*(earlier_run for earlier_run in self.runs if earlier_run not in gone), run)
        )

    def merged_with(self, rows: int) -> tuple[Run, ...]:
        """Return the runs that a further run of some rows should hold too: none, most of the time."""
        merged_runs: list[Run] = []
        while True:
            size = _size(rows + sum(run.rows for run in merged_runs))
            same = [run for run in self.runs if run not in merged_runs and _size(run.rows) <= size]
            if len(same) + 1 < _TOGETHER:
                return tuple(merged_runs)
            merged_runs += same

    @property
    def files(self) -> Iterator[tuple[str, int]]:
        """The files that count, each with its bytes."""
        return (file for run in self.runs for file in run.files)


def of_actions(actions: Iterable[Mapping[str, Any]]) -> Remembered | None:
    """Return what the last of some actions of a log says is remembered; None if none of them says it."""
    remembered: Remembered | None = None
    for action in actions:
        domain = action.get("domainMetadata")
        if domain and domain["domain"] == DOMAIN:
            remembered = None if domain.get("removed") else Remembered.from_json(domain["configuration"])
    return remembered


def moved(action: dict[str, Any], table: str, since: int) -> dict[str, Any]:
    """Return an action for another table: if it says what is remembered, it says so of that one."""
    domain = action.get("domainMetadata")
    if not domain or domain["domain"] != DOMAIN or domain.get("removed"):
        return action
    remembered = replace(Remembered.from_json(domain["configuration"]), table=table, since=since)
    return {"domainMetadata": {**domain, "configuration": remembered.to_json()}}


def emptied(action: dict[str, Any]) -> dict[str, Any] | None:
    """Return the action that clears the remembered deletes; None if the action is not about them."""
    domain = action.get("domainMetadata")
    if not domain or domain["domain"] != DOMAIN or domain.get("removed"):
        return None
    remembered = Remembered.from_json(domain["configuration"])
    nothing = Remembered(remembered.table, remembered.since)
    return {"domainMetadata": {**domain, "configuration": nothing.to_json()}}


def restored_since(log: Storage, since: int, newest: int) -> int | None:
    """Return the newest version after ``since`` that a RESTORE in the log made; None if there is none."""
    for version in range(newest, since, -1):
        content = log.read(f"_delta_log/{version:020d}.json")
        if content and any(b'"operation":"RESTORE"' in line for line in content.splitlines()[:5]):
            return version
    return None


def _apart(one: Bounds, other: Bounds) -> bool:
    return bool(one[1] < other[0] or other[1] < one[0])


def _size(rows: int) -> int:
    return sum(1 for _ in takewhile(lambda least: rows > least, (_SMALL * _TOGETHER**n for n in range(30))))


def _run(value: Mapping[str, Any]) -> Run:
    files = tuple((str(name), int(size)) for name, size in value["files"])
    return Run(files, value["rows"], _bounds(value["first_key"]), _bounds(value["at"]), value["learned"])


def _bounds(value: list[Any] | None) -> Bounds | None:
    return None if value is None else (value[0], value[1])
