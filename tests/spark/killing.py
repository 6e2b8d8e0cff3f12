"""A process that dies right after a change, once after each kind of change that it makes, and is started
again until it comes to its end.

A kill is an exception that nothing catches, raised where the change was made: in the storage, or in a call
into the JVM that left a commit in some Delta table. From then on the process is dead: whatever it still tries
to change, such as giving a lock back on its way out, is not done. A kill right before a change leaves the
same behind as one right after the change before it, so the latter is enough.

Commits that a streaming query makes in threads of the JVM's own are not among the changes: test_killed.py
kills real drivers there.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaMember
from pyspark.sql import SparkSession

from streamkeeper.flows import leases
from streamkeeper.recover.plans.kind import StepKind
from tests.killing import Killed, watch_storage

COMMITTING = frozenset({"commit", "save", "execute", "delete", "restoreToVersion", "sql"})
"""Methods of Delta's Java side that end in a commit."""
_OWN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}|[0-9a-f]{32}|[0-9]+")

Site = tuple[str, ...]


class KilledInCallback(Exception):
    """Ends a process in a thread that Spark called, which hands on exceptions only."""


@dataclass
class Lives:
    """The lives of one process that carries out recoveries. ``seen`` are the changes after which it died
    already, in whatever test.
    """

    spark: SparkSession
    root: Path
    seen: set[Site]
    killed_after: list[Site] = field(default_factory=list)
    commits: Counter[str] = field(default_factory=Counter)
    number: int = 0
    _dead: bool = False
    _recovery: str = ""
    _kind: str = ""
    _act: str = ""
    _step: str = ""

    @contextmanager
    def of(self, kind: str, recovery: str) -> Iterator[None]:
        """Watch over what is changed in the block."""
        self._kind, self._recovery = kind, recovery
        self.commits.clear()
        started = leases.process_started
        with pytest.MonkeyPatch.context() as patch:
            watch_storage(patch, self._live, self._stored)
            patch.setattr(JavaMember, "__call__", self._called(JavaMember.__call__))
            # Each life has a start time of its own, so that the processes of the lives before count as dead.
            patch.setattr(
                leases,
                "process_started",
                lambda pid: None if (at := started(pid)) is None else at + self.number,
            )
            yield

    def carry_out(self, step: StepKind, act: Callable[[], Any]) -> Any:
        """Carry out a step: killed, and again, until it comes through."""
        self._step = step.name
        self._act = (
            step.act if isinstance(step.act, str) else f"{step.act.__module__}.{step.act.__qualname__}"
        )
        while True:
            try:
                return act()
            except Killed:
                for query in self.spark.streams.active:
                    query.stop()
                self.number += 1
                self._dead = False

    def _stored(self, method: str, path: str) -> None:
        inside = path.removeprefix(f"{self.root}/").replace(self._recovery, "ID")
        of = self._kind if "/ledger/" in inside else self._act  # a step's start and end are each kind's own
        self._maybe((of, method, _OWN.sub("#", inside)))

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(member: JavaMember, *arguments: Any) -> Any:
            if member.name not in COMMITTING:
                return original(member, *arguments)
            self._live()
            before = self._versions()
            result = original(member, *arguments)
            for name, version in self._versions().items():
                for _ in range(before.get(name, 0), version):
                    self.commits[name] += 1
                    self._maybe((self._act, "commit", name, str(self.commits[name])))
            return result

        return call

    def _live(self) -> None:
        if self._dead:
            raise _end()

    def _maybe(self, site: Site) -> None:
        self._live()
        if site not in self.seen and threading.current_thread().name != "streamkeeper-watch":
            self.seen.add(site)
            self.killed_after.append((self._step, *site))
            self._dead = True
            raise _end()

    def _versions(self) -> dict[str, int]:
        """Give how many commits each table has."""
        logs = (self.root / "warehouse").glob("**/_delta_log")
        return {log.parent.name: len(list(log.glob("[0-9]*.json"))) for log in logs}


def _end() -> BaseException:
    name = threading.current_thread().name
    ours = threading.current_thread() is threading.main_thread() or name.startswith(
        ("ThreadPoolExecutor", "streamkeeper")
    )
    return Killed() if ours else KilledInCallback("the process was killed")
