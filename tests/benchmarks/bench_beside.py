"""A table is refreshed beside while a reader polls it all the time and its flow goes on: ``python
tests/benchmarks/bench_beside.py``.

The reader has no JVM: it asks deltalake for the newest version, the rows and a checksum of them, as often as
it can. Files arrive all the while, too. The refresh leaves rows out that the old table has, so that old and
new are told apart. Aims: no poll finds the table empty, none finds it half (a state that neither the old flow
nor the swap has committed), and at the end it is what the events make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import deltalake

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from streamkeeper.drivers import submit
from tests.benchmarks.bench_rebuild import begin, steps
from tests.benchmarks.ratios import enter_environment, meanwhile
from tests.benchmarks.sides.flows_side_by_side import PIPELINE, Bench, write_files

FILES, ROWS, PER_TRIGGER = int(os.environ.get("FILES", "40")), 20_000, 4
EVERY = float(os.environ.get("EVERY", "1"))
"""Seconds between two files that arrive."""
QUERY = "SELECT count(*) AS rows, count(DISTINCT event_id) AS ids, sum(amount) AS amount FROM t"
NEW = '.dropDuplicates(["event_id"]).where("user_id > 99")'
OLD = '.dropDuplicates(["event_id"])'


@dataclass(frozen=True)
class Seen:
    """What one poll found, and when it had asked."""

    at: float
    version: int
    rows: int
    ids: int
    amount: float


@dataclass
class Reader:
    """Polls a table until it is told to end."""

    table: Path
    seen: list[Seen] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.over.is_set():
            at = time.time()
            try:
                self.seen.append(poll(self.table, at))
            except Exception as error:  # noqa: BLE001 - a reader that fails is what this measures, too
                self.broken.append(f"{type(error).__name__}: {error}")


def poll(table: Path, at: float, version: int | None = None) -> Seen:
    found = deltalake.DeltaTable(str(table), version=version)
    row = deltalake.QueryBuilder().register("t", found).execute(QUERY).read_all()
    values = {name: row[name][0].as_py() for name in ("rows", "ids", "amount")}
    return Seen(at, found.version(), int(values["rows"]), int(values["ids"]), float(values["amount"] or 0))


def running(bench: Bench) -> AbstractContextManager[None]:
    """Let the flow's driver run as its DAG would keep it: started again when it has ended, as after a
    hold.
    """

    def keep(over: threading.Event) -> None:
        environment = {**os.environ, **submit.environment(bench.settings)}
        while not over.is_set():
            command = submit.driver(bench.settings, [bench.flow()]).command()
            with (bench.root / "driver.log").open("ab") as log:
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                while process.poll() is None and not over.wait(0.2):
                    pass
                process.terminate()
                process.wait()
            over.wait(1.0)

    return meanwhile(keep)


@contextmanager
def arriving(bench: Bench) -> Iterator[list[int]]:
    """Let a file arrive every now and then; give the numbers of those that have."""
    numbers = list(range(FILES))

    def arrive(over: threading.Event) -> None:
        while not over.wait(EVERY):
            write_files(bench.settings_data, len(numbers), 1, ROWS)
            numbers.append(len(numbers))

    with meanwhile(arrive):
        yield numbers


@dataclass(frozen=True)
class Bed(Bench):
    """The benchmark's flow, whose view is given as it is."""

    def declare(self, view: str) -> None:
        self.settings.pipelines.mkdir(parents=True, exist_ok=True)
        (self.settings.pipelines / "events.py").write_text(
            PIPELINE.format(files=self.files_per_trigger, view=view)
        )

    @property
    def settings_data(self) -> Path:
        return Path(self.settings.data) / "events"


def expected(files: int) -> int:
    """Give how many rows the new declaration makes of so many files: ids are given once, every tenth repeats
    the one before.
    """
    ids = {number * ROWS + row - (row % 10 == 9) for number in range(files) for row in range(ROWS)}
    return sum(one % 997 > 99 for one in ids)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bed(Path(scratch), PER_TRIGGER)
        write_files(bench.settings_data, 0, FILES, ROWS, age=60)
        bench.declare(OLD)
        bench.run_flow()
        bench.declare(NEW)
        name, kind = "full_refresh_beside-bench-00000001", "full_refresh_beside"
        reader = Reader(bench.table)
        thread = threading.Thread(target=reader.run)
        began = time.time()
        with running(bench):
            with arriving(bench) as numbers:
                thread.start()
                begin(bench, kind, name)
                before = steps(bench, kind, name, "lock", "build")
                held = time.time()
                during = steps(
                    bench,
                    kind,
                    name,
                    "hold",
                    "plan_again",
                    "put_in_place",
                    "verify_tables",
                    "release",
                    "remove_beside",
                )
                released = time.time()
            wanted, deadline = expected(len(numbers)), time.time() + 300
            while reader.seen[-1].rows != wanted and time.time() < deadline and not reader.broken:
                time.sleep(0.5)
        reader.over.set()
        thread.join()
        report(bench, reader, {**before, **during}, (began, held, released), wanted)


def swap_of(table: Path) -> int:
    """Give the version that put the new table in place."""
    return next(
        int(file.stem)
        for file in sorted((table / "_delta_log").glob("[0-9]*.json"))
        if "/put_in_place" in file.read_text()
    )


def report(
    bench: Bench, reader: Reader, taken: dict[str, float], times: tuple[float, float, float], wanted: int
) -> None:
    """Print what was seen, and compare each state with what its version holds when it is asked for by its
    number.
    """
    began, held, released = times
    swap = swap_of(bench.table)
    states = {(seen.version, seen.rows, seen.ids, seen.amount) for seen in reader.seen}
    versions = {
        version: poll(bench.table, 0.0, version) for version in {seen.version for seen in reader.seen}
    }
    half = [
        state
        for state in states
        if state != (state[0], *(getattr(versions[state[0]], name) for name in ("rows", "ids", "amount")))
    ]
    old = [seen for seen in reader.seen if seen.version < swap]
    new = [seen for seen in reader.seen if seen.version >= swap]
    smallest_old, smallest_new = min(seen.rows for seen in old), min(seen.rows for seen in new)
    print(
        f"{FILES} files of {ROWS:,} rows, then one every {EVERY:g} s; local[2] each, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    print(
        f"| polls | {len(reader.seen):,} in {reader.seen[-1].at - began:.0f} s; {len(reader.broken)} failed |"
    )
    print(
        f"| distinct counts seen | {len({seen.rows for seen in reader.seen})} in {len(versions)} versions |"
    )
    print(f"| polls that found it empty | {sum(not seen.rows for seen in reader.seen)} |")
    print(f"| polls that found it half | {len(half) + sum(seen.rows != seen.ids for seen in reader.seen)} |")
    print(f"| rows, old | {smallest_old:,} to {max(seen.rows for seen in old):,} |")
    print(
        f"| rows, new | {smallest_new:,} to {max(seen.rows for seen in new):,}; expected in the end"
        f" {wanted:,} |"
    )
    print(f"| from the last old poll to the first new one | {new[0].at - old[-1].at:.2f} s |")
    print(f"| flows held | {released - held:.1f} s |")
    for step, seconds in taken.items():
        print(f"| {step} | {seconds:.2f} s |")
    if reader.broken:
        print(f"the first failure: {reader.broken[0]}")
    right = (
        not reader.broken and not half and all(seen.rows and seen.rows == seen.ids for seen in reader.seen)
    )
    right = right and reader.seen[-1].rows == wanted
    print("never empty, never half, and exact in the end" if right else "THE AIM IS MISSED")


if __name__ == "__main__":
    enter_environment()
    main()
