"""Ending processes that were started here: by id and start time, asked first, then forced."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from streamkeeper.flows.leases import process_started
from tools.waiting import NeverCame, wait_until

started = process_started
"""The start time by which a lease, too, knows a process."""


def session_members(session: int) -> list[int]:
    """Return the living processes of a session: a task of Airflow makes a group of its own, but stays in the
    session.
    """
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session and fields[0] not in ("Z", "X"):
                    pids.append(int(entry.name))
    return pids


def end_group(group: int, grace: float) -> None:
    """End a process group and what of its session left the group: SIGTERM, then SIGKILL after ``grace``
    seconds.

    The group must lead a session of its own.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    _await(lambda: not session_members(group), grace)
    for pid in session_members(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _await(lambda: not session_members(group), 5)


def end_process(pid: int, since: int, grace: float, group: bool = False) -> None:
    """End one process, or the group that it leads, if it is still the one that started then."""
    send = os.killpg if group else os.kill
    for name, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        if started(pid) != since:
            return
        with contextlib.suppress(ProcessLookupError):
            send(pid, name)
        _await(lambda: started(pid) != since, wait)


def await_end(pid: int, since: int, seconds: float) -> None:
    """Wait until a process that was asked to end has ended, at most so long."""
    _await(lambda: started(pid) != since, seconds)


def _await(over: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(NeverCame):
        wait_until(lambda: over() or None, seconds, "a process ends", interval=0.1)
