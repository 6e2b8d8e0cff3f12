"""The one process that plays all simulated drivers: ``python -m tests.benchmarks.thousand.player FOLDER``,
with the settings in its environment.

A shell announces itself by a line in the pipe ``FOLDER/drivers``, and ends with the exit code that it reads
from the pipe ``FOLDER/<pid>``. What happens is in ``FOLDER/journal``, one JSON object a line
(:class:`Entry`).
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.leases import Process
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import LocalStorage
from tests.benchmarks.sides.counting import Counting
from tests.benchmarks.thousand.simulated import Request, SimulatedDriver, acting_processes

PIPE, JOURNAL = "drivers", "journal"
WORKERS = 8
BETWEEN_COUNTS = 2.0
"""Seconds between two entries that tell the requests so far."""


@dataclass(frozen=True)
class Entry:
    """What happened, at a time in seconds since 1970.

    ``event`` is ``submitted``, ``began``, ``ended`` (with its exit code), ``killed``, ``second`` (it began
    while another process of its flow was there and had not ended), ``failed`` (of the simulation itself, in
    ``text``) or ``requests`` (of all drivers so far, by kind; ``late`` are the most seconds by which one
    acted too late).
    """

    event: str
    at: float
    flow: str = ""
    pid: int = 0
    started: int = 0
    code: int = 0
    text: str = ""
    requests: dict[str, int] = field(default_factory=dict)
    late: float = 0.0


class Player:
    """Plays drivers until its process ends."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._flows = {flow.full_name: flow for flow in read_manifest(settings).flows()}
        self._storage = Counting(LocalStorage(settings.state))
        self._journal, self._lock = (folder / JOURNAL).open("a"), threading.Lock()
        self._due: list[tuple[float, int, SimulatedDriver]] = []
        self._changed, self._numbers = threading.Condition(), count()
        self._playing: dict[str, list[SimulatedDriver]] = {}
        self._latest = 0.0

    def run(self) -> None:
        """Play whatever is announced."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._tell_requests, daemon=True).start()
        with acting_processes(), ThreadPoolExecutor(WORKERS) as pool:
            while True:
                with self._changed:
                    while not self._due or self._due[0][0] > time.monotonic():
                        self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                    due, _, driver = heapq.heappop(self._due)
                pool.submit(self._play, driver, due)

    def _listen(self) -> None:
        # It is open for writing, too, so that it does not end with the shell that wrote last.
        pipe = os.fdopen(os.open(self._folder / PIPE, os.O_RDWR), "r")
        for line in pipe:
            pid, name, log = line.rstrip("\n").split("\t")
            process = Process.of_pid(int(pid))
            if process is None:
                continue  # it was killed before it could be answered
            driver = SimulatedDriver(
                self._settings, Request(process, self._flows[name], Path(log)), self._storage
            )
            self._tell("submitted", driver)
            self._schedule(driver, 0.0)

    def _schedule(self, driver: SimulatedDriver, seconds: float) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), driver))
            self._changed.notify()

    def _play(self, driver: SimulatedDriver, due: float) -> None:
        self._latest = max(self._latest, time.monotonic() - due)
        try:
            outcome = self._act(driver) if driver.lives else None
        except Exception:  # noqa: BLE001 - it ends this driver as it would end a real one, and the benchmark
            self._tell("failed", driver, text=traceback.format_exc())
            outcome = Outcome.FAILED
        if outcome is None and driver.lives:
            self._schedule(driver, self._settings.look_interval)
            return
        others = self._playing.get(driver.name, [])
        if driver in others:
            others.remove(driver)
        self._tell("killed" if outcome is None else "ended", driver, code=int(outcome or 0))
        self._answer(driver, outcome)

    def _act(self, driver: SimulatedDriver) -> Outcome | None:
        if driver.lease is not None:
            return driver.turn()
        outcome = driver.begin()
        if outcome is None:
            others = self._playing.setdefault(driver.name, [])
            if any(other.lives for other in others):
                self._tell("second", driver)
            others.append(driver)
            self._tell("began", driver)
        return outcome

    def _answer(self, driver: SimulatedDriver, outcome: Outcome | None) -> None:
        pipe = self._folder / str(driver.request.process.pid)
        if outcome is not None:
            with suppress(OSError):  # nobody reads: it was killed meanwhile
                answer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(answer, f"{outcome.exit_code}\n".encode())
                os.close(answer)
        pipe.unlink(missing_ok=True)

    def _tell_requests(self) -> None:
        while True:
            counts = dict(self._storage.requests)
            self._write(Entry("requests", time.time(), requests=counts, late=self._latest))
            time.sleep(BETWEEN_COUNTS)

    def _tell(self, event: str, driver: SimulatedDriver, *, code: int = 0, text: str = "") -> None:
        process = driver.request.process
        self._write(Entry(event, time.time(), driver.name, process.pid, process.started, code, text))

    def _write(self, entry: Entry) -> None:
        with self._lock:
            self._journal.write(f"{json.dumps(asdict(entry))}\n")
            self._journal.flush()


if __name__ == "__main__":
    Player(Settings.from_environment(), Path(sys.argv[1])).run()
