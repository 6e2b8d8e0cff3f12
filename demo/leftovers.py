"""Seeing to it that a demo leaves no process behind: what it starts carries its mark in the environment
(Linux: ``/proc``).

A process that writes its own title may overwrite what ``/proc`` shows of its environment, as Airflow's
workers do. Those live in the session of a leader that has the mark, so they are found by it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from demo.lock import MARK
from demo.processes import end_process, session_members, started


@dataclass(frozen=True)
class Process:
    """A living process: its id, its start time in clock ticks since boot, and its command line, shortened."""

    pid: int
    started: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} {self.command}"


def marked(mark: str) -> list[Process]:
    """Return the living processes, but this one, that a demo of this mark started."""
    variable = f"{MARK}={mark}".encode()
    numbers = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != os.getpid()
    ]
    having = {pid for pid in numbers if variable in _read(pid, "environ").split(b"\0")}
    leaders = {pid for pid in having if _leads_session(pid)}
    members = {pid for leader in leaders for pid in session_members(leader)}
    return [process for pid in sorted(having | members) if (process := _describe(pid)) is not None]


def end_marked(mark: str) -> list[Process]:
    """End what is left of a demo, asked first and then forced, and give what there was."""
    processes = marked(mark)
    for process in processes:
        end_process(process.pid, process.started, grace=20)
    return processes


def _describe(pid: int) -> Process | None:
    since = started(pid)
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return None if since is None else Process(pid, since, command[:100])


def _leads_session(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def _read(pid: int, name: str) -> bytes:
    """Read what the system shows of a process; nothing if it ended meanwhile, or is another user's, and so
    not ours.
    """
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
