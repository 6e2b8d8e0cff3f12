"""What each part of a running Airflow takes: memory, processor time, descriptors, rows and files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from demo.processes import session_members
from tests.postgres import DATABASE, USER
from tests.worlds.flows.process_usage import Usage, usage


def children_of(pid: int) -> list[int]:
    """Return a process and its children, whatever their sessions: PostgreSQL's have one each."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


@dataclass(frozen=True)
class Sample:
    """All parts at one moment, in monotonic seconds. ``rows`` are those of all tables of Airflow's database,
    ``lines`` those of its logs without the drivers' own, ``files`` those of the state folder without Spark's
    checkpoints, and ``requests`` those that the triggerer and all drivers made to the state folder.
    """

    at: float
    parts: Mapping[str, Usage]
    rows: int
    lines: int
    log_files: int
    files: int
    requests: Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """Where to look: the processes of each part by its name, and folders."""

    parts: Mapping[str, Callable[[], Sequence[int]]]
    database: Path
    logs: Path
    state: Path
    requests: Callable[[], Mapping[str, int]]

    def sample(self) -> Sample:
        """Measure all."""
        logs = [
            file for file in self.logs.rglob("*.log") if "drivers" not in file.relative_to(self.logs).parts
        ]
        return Sample(
            time.monotonic(),
            {name: usage(pids()) for name, pids in self.parts.items()},
            rows_of(self.database),
            sum(_lines(file) for file in logs),
            len(logs),
            sum(len(files) for folder, _, files in os.walk(self.state) if "/checkpoints" not in folder),
            self.requests(),
        )


def session(pid: Callable[[], int]) -> Callable[[], Sequence[int]]:
    """Return what finds the processes of a session, whoever leads it now."""
    return lambda: session_members(pid())


def rows_of(folder: Path) -> int:
    """Count the rows of all tables of the database whose socket is in a folder."""
    connection = psycopg2.connect(host=str(folder), user=USER, dbname=DATABASE)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT relname FROM pg_stat_user_tables")
            tables = [name for (name,) in cursor.fetchall()]
            cursor.execute(" UNION ALL ".join(f'SELECT count(*) FROM "{name}"' for name in tables))
            return sum(number for (number,) in cursor.fetchall())
    finally:
        connection.close()


def _lines(file: Path) -> int:
    with file.open("rb") as log:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: log.read(1 << 20), b""))
