"""Running VACUUMs: each leaves a note, so that no recovery restores files that a VACUUM may still remove.

A VACUUM first lists unreferenced files and then removes them, which may take long. It leaves its note before
it checks for a recovery's lock; a recovery takes the lock before it checks for notes. So at least one of the
two sees the other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from streamkeeper.flows import leases
from streamkeeper.flows.files import vacuums_folder
from streamkeeper.flows.leases import Process
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import now

POLL = 1.0
"""Seconds between two checks for a VACUUM that is waited for."""


@dataclass(frozen=True)
class _Note:
    """Content of a note."""

    processes: tuple[Process, ...]
    at: str


@contextmanager
def noted(storage: Storage, pipeline: str, table: str, jvm: Process | None) -> Iterator[None]:
    """Note a running VACUUM inside the ``with`` block: that of this process and of its JVM."""
    name = f"{vacuums_folder(storage, pipeline, table)}/{uuid.uuid4().hex}.json"
    processes = tuple(process for process in (Process.current(), jvm) if process is not None)
    storage.create(name, to_json(asdict(_Note(processes, now()))))
    try:
        yield
    finally:
        storage.remove(name)


def under_way(storage: Storage, pipeline: str, table: str) -> str | None:
    """Return a description of a table's running VACUUM; None if none is known. Notes of those proven gone are
    removed.

    A VACUUM whose processes are not visible from here, on another host, counts as not known.
    """
    folder = vacuums_folder(storage, pipeline, table)
    for name in (f"{folder}/{file}" for file in storage.names(folder)):
        note = read_record(storage, name, _Note, "a VACUUM's note", "Remove it if no VACUUM runs.")
        processes = () if note is None else note.processes
        running = [leases.is_running(process) for process in processes]
        if any(running):
            since = "?" if note is None else note.at
            return f"a VACUUM of {table} (pid {processes[0].pid} on {processes[0].host}, since {since})"
        if None not in running:
            storage.remove(name)
    return None


def wait_until_gone(
    storage: Storage, pipeline: str, table: str, check: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Wait until no VACUUM of a table is known to be running.

    :param check: called before each check for notes; raises to end the wait.
    :param say: called once with what is waited for.
    """
    announced = False
    while True:
        check()
        vacuum = under_way(storage, pipeline, table)
        if vacuum is None:
            return
        if not announced:
            say(f"Waiting for {vacuum}: it could remove files that are about to be restored.")
            announced = True
        time.sleep(POLL)
