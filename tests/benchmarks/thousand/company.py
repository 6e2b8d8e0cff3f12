"""The simulated drivers, as the benchmark has them: what Airflow's tasks start instead of spark-submit, the
process that plays them, and what became of each.

Each driver is a process of its own, so that it can be killed: a shell that waits. Its memory is not
Airflow's, and is counted aside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from demo.processes import started
from streamkeeper.settings import PROJECT, Settings
from tests.benchmarks.thousand.player import JOURNAL, PIPE, Entry
from tests.worlds.servers import Server

PROGRAM = "spark3-submit"
"""A name that the Spark provider takes in a connection (``spark-binary``), and that no real program has here.
"""
SHELL = """#!/bin/sh
# A SIMULATED driver: another process plays it, and says when it ends.
while [ $# -gt 0 ]; do [ "$1" = --flow ] && flow=$2; shift; done
mkfifo "{folder}/$$"
printf '%s\\t%s\\t%s\\n' "$$" "$flow" "$STREAMKEEPER_DRIVER_LOG" > "{folder}/{pipe}"
read -r code < "{folder}/$$"
exit "$code"
"""


class Company:
    """The simulated drivers of one Airflow. Use as a context; they end with it.

    :param mark: what its processes carry in their environment.
    """

    def __init__(self, folder: Path, settings: Settings, mark: dict[str, str]) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir(parents=True)
        (self.programs / PROGRAM).write_text(SHELL.format(folder=folder, pipe=PIPE))
        (self.programs / PROGRAM).chmod(0o755)
        os.mkfifo(folder / PIPE)
        self.journal = folder / JOURNAL
        path = os.pathsep.join([str(PROJECT), str(PROJECT / "spark_jobs")])
        self.player = Server(
            "The player of simulated drivers",
            [sys.executable, "-m", "tests.benchmarks.thousand.player", folder],
            folder / "player.log",
            self.journal.exists,
            environment={**settings.as_environment(), **mark, "PYTHONPATH": path},
        )
        self._read, self._entries = 0, list[Entry]()

    def __enter__(self) -> Company:
        self.player.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill all of them, and who plays them."""
        self._read_on()
        for entry in self._living():
            kill(entry)
        self.player.stop()

    def entries(self) -> list[Entry]:
        """Return all that happened so far, oldest first.

        :raises AssertionError: the simulation itself failed, or ended.
        """
        self._read_on()
        failed = [entry for entry in self._entries if entry.event == "failed"]
        assert not failed, f"the simulation failed: {failed[0].text}"
        assert self.player.runs, f"the player ended: {(self.folder / 'player.log').read_text()[-2000:]}"
        return self._entries

    def living(self) -> dict[str, list[Entry]]:
        """Return the submissions whose process is there, by flow."""
        self.entries()
        by_flow: dict[str, list[Entry]] = {}
        for entry in self._living():
            by_flow.setdefault(entry.flow, []).append(entry)
        return by_flow

    def requests(self) -> dict[str, int]:
        """Return the requests of all drivers so far, by kind."""
        counts = [entry.requests for entry in self.entries() if entry.event == "requests"]
        return counts[-1] if counts else {}

    def late(self) -> float:
        """Return the most seconds by which a driver acted too late."""
        return max(entry.late for entry in self.entries())

    def _read_on(self) -> None:
        with self.journal.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    self._entries.append(Entry(**json.loads(line)))

    def _living(self) -> list[Entry]:
        submitted = [entry for entry in self._entries if entry.event == "submitted"]
        return [entry for entry in submitted if started(entry.pid) == entry.started]


def kill(entry: Entry) -> None:
    """Kill a driver's process by -9."""
    with suppress(ProcessLookupError):
        os.kill(entry.pid, signal.SIGKILL)
