"""The auditor: a thread that looks at leases, processes and the table's log all the time, and keeps every
violation it finds.

It takes no part in anything: it reads files and ``/proc``, and asks neither Airflow nor Streamkeeper what
they think.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from demo.processes import session_members, started
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.leases import Lease
from tests.chaos.findings import Commit, SeenDriver, Sight, Violation, judge_epochs, judge_log, judge_sight

LOOK = 0.2
"""Seconds between two looks: two drivers that overlap for less may be missed, and would still show in the
table's log.
"""
_COMMIT = re.compile(r"([0-9]{20})\.json")


@dataclass
class _Known:
    """A driver as first seen, with every process of its session seen since, by pid and start time."""

    lease: Lease
    session: int | None
    processes: set[tuple[int, int]]
    over: bool = False


class Auditor:
    """Looks at one flow until closed. Use as a context; ask :meth:`violations`, :attr:`looks` and
    :meth:`drivers` at any time.

    :param table: the local folder of the flow's table.
    :param beside: further flows of the table.
    :raises Exception: on :meth:`violations` and on closing, whatever ended the thread by itself: an auditor
        that died saw nothing.
    """

    def __init__(self, home: FlowHome, table: Path, beside: Sequence[FlowHome] = ()) -> None:
        self._home, self._log, self._writers = home, table / "_delta_log", (home, *beside)
        self._known: dict[int, _Known] = {}
        self._commits: dict[int, Commit] = {}
        self._found: dict[str, Violation] = {}
        self._began, self.looks, self.longest = time.monotonic(), 0, 0.0
        self._failed: Exception | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)

    def __enter__(self) -> Auditor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        if error is None:
            self._check()

    def violations(self) -> list[Violation]:
        """Look once more, and give all that was found so far, in the order in which it was found."""
        self._check()
        self.look()
        return list(self._found.values())

    def drivers(self) -> int:
        """Give how many drivers had the lease so far."""
        return len(self._home.epochs())

    def look(self) -> None:
        """Look once, and keep what is wrong."""
        with self._lock:
            at = time.monotonic() - self._began
            self._keep(judge_epochs(sorted(self._known), self._home.epochs()), at)
            self._keep(judge_sight(self._see(at)), at)
            if self._read_commits():
                ids = [
                    query_id(writer.full_name, number)
                    for writer in self._writers
                    for number in writer.generations()
                ]
                self._keep(judge_log(self._commits.values(), ids), at)
            self.looks += 1

    def _run(self) -> None:
        before = time.monotonic()
        try:
            while not self._closed.wait(LOOK):
                self.look()
                self.longest, before = max(self.longest, time.monotonic() - before), time.monotonic()
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the violations
            self._failed = error

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _keep(self, violations: list[Violation], at: float) -> None:
        for one in violations:
            self._found.setdefault(one.kind, Violation(one.kind, one.words, at))

    def _see(self, at: float) -> Sight:
        for epoch in self._home.epochs():
            if epoch not in self._known:
                self._meet(epoch)
        return Sight(at, tuple(self._driver(known) for _, known in sorted(self._known.items())))

    def _meet(self, epoch: int) -> None:
        lease = leases.read(self._home, epoch)
        assert lease is not None, f"epoch {epoch} was listed"
        holder = lease.process.pid, lease.process.started
        session = _session(holder[0]) if started(holder[0]) == holder[1] else None
        self._known[epoch] = _Known(lease, session, {holder})

    def _driver(self, known: _Known) -> SeenDriver:
        epoch, holder = known.lease.epoch, known.lease.process
        if known.over:
            return SeenDriver(epoch, (), holder_alive=False, left=True)
        if known.session is not None:
            known.processes |= {
                (pid, since) for pid in session_members(known.session) if (since := started(pid)) is not None
            }
        alive = tuple(pid for pid, since in sorted(known.processes) if started(pid) == since)
        # Read before its lease's note: a driver that leaves writes the note first, and ends then.
        holder_alive = started(holder.pid) == holder.started
        left = self._home.storage.read(self._home.left(epoch)) is not None
        beat = leases.read_heartbeat(self._home, epoch)
        # The pid of a session's leader is not used again while the session has members, so what is gone now
        # is gone for good.
        known.over = not alive
        return SeenDriver(epoch, alive, holder_alive, beat.phase if beat else "starting", left)

    def _read_commits(self) -> bool:
        """Read the commits that are new; say whether there were any."""
        if not self._log.is_dir():
            return False
        new = {
            int(match[1]) for file in self._log.iterdir() if (match := _COMMIT.fullmatch(file.name))
        } - set(self._commits)
        for version in new:
            self._commits[version] = read_commit(self._log, version)
        return bool(new)


def read_commit(log: Path, version: int) -> Commit:
    """Read one version of a table's log: JSON lines, whole as soon as they are there."""
    actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines() if line]
    transactions = tuple(
        (action["txn"]["appId"], int(action["txn"]["version"])) for action in actions if "txn" in action
    )
    return Commit(
        version,
        transactions,
        sum("add" in action and action["add"].get("dataChange", True) for action in actions),
    )


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
