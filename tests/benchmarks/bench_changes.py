"""A good deploy: the time from the last old to the first new commit, and the longest time without a commit
around it, while a changed declaration takes over, against a bare restart of the job; and the time of a
verdict: ``python tests/benchmarks/bench_changes.py``.

A file comes every ``EVERY`` seconds. ``on_change="try"``: the process that tried the change takes over where
the driver that runs ends its batch. ``"restart"``: the driver ends, and the next one is started at once.
Bare: the same query by hand, from its start to its first commit. Aim of the first: ≤0.3.

A verdict without Spark is on a flow whose declaration ran last, told by ``streamkeeper preflight``, beside
``streamkeeper --version``; aim: ≤1 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from streamkeeper.drivers import submit, supervision
from streamkeeper.flows import holds
from streamkeeper.flows.files import open_home
from tests.benchmarks.ratios import HEADER, enter_environment, meanwhile, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import NAME, Bench, commits_with_data, write_files
from tests.worlds.flow_world import running_driver
from tools.waiting import wait_until

EVERY, ROWS, LIMIT = 0.5, 500, 300.0
ROUNDS = rounds(3)


def files_come(bench: Bench) -> AbstractContextManager[None]:
    """Let a file come every :data:`EVERY` seconds, and the supervisor beat, while the block runs."""
    home = open_home(bench.settings, NAME)

    def come(over: threading.Event) -> None:
        number = 1
        while not over.wait(EVERY):
            write_files(bench.root / "data" / "events", number, 1, ROWS)
            supervision.beat(home, number, "bench")
            number += 1

    return meanwhile(come)


def commits_after(bench: Bench, moment: float, number: int) -> list[float]:
    """Wait until so many commits came after a moment, and return all times of commits."""

    def look() -> list[float] | None:
        found = commits_with_data(bench.table)
        return found if sum(at > moment for at in found) >= number else None

    return wait_until(look, LIMIT, f"{number} commits came")


def change(bench: Bench, how: str, added: str) -> None:
    """Write the pipeline file, as ``how`` says to treat its changes."""
    bench.declare("dedupe")
    file = bench.settings.pipelines / "events.py"
    treated = f'target="events", on_change="{how}", trigger="200 milliseconds",'
    text = file.read_text().replace('target="events",', treated)
    file.write_text(text.replace("return events", f"return events{added}"))


def gap(scratch: Path, how: str) -> tuple[float, float]:
    """Return the time from the last old commit to the first new one, around a change that fits, and the
    longest between any two: on few cores, the trial slows the driver that goes on.
    """
    bench = Bench(scratch, 100)
    change(bench, how, "")
    write_files(bench.root / "data" / "events", 0, 1, ROWS)
    command = submit.driver(bench.settings, [bench.flow()]).command()
    os.environ[submit.SUPERVISED_VARIABLE] = "1"  # only then is a change tried beside the driver
    with files_come(bench), running_driver(bench.settings, command, scratch / "old.log") as old:
        commits_after(bench, 0.0, 5)
        changed = time.time()
        change(bench, how, '.where("amount >= 0")')
        if how == "restart":
            old.wait(LIMIT)
            following = command
        else:
            following = [*command, submit.TAKE_OVER]
        with running_driver(bench.settings, following, scratch / "new.log") as new:
            if how == "try":
                old.wait(LIMIT)
            ended = time.time()
            found = commits_after(bench, ended, 5)
            holds.put(open_home(bench.settings, NAME), holds.person("bench"), "measured", "bench")
            new.wait(LIMIT)
    del os.environ[submit.SUPERVISED_VARIABLE]
    around = [at for at in found if at > changed - 5]
    over = min(at for at in found if at > ended) - max(at for at in found if at <= ended)
    return over, max(later - earlier for earlier, later in pairwise(around))


def bare(scratch: Path) -> float:
    """Return the time from a bare restart's beginning to its first commit."""
    bench = Bench(scratch, 100)
    bench.declare("dedupe")
    write_files(bench.root / "data" / "events", 0, 1, ROWS)
    bench.run_bare("dedupe")
    write_files(bench.root / "data" / "events", 1, 1, ROWS)
    seen = len(commits_with_data(bench.bare_table))
    began = bench.run_bare("dedupe")
    return commits_with_data(bench.bare_table)[seen] - began


def command(bench: Bench, *arguments: str) -> float:
    """Return the seconds of a command of streamkeeper."""
    began = time.perf_counter()
    environment = {**os.environ, **bench.settings.as_environment()}
    asked = [sys.executable, "-m", "streamkeeper", *arguments]
    subprocess.run(asked, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print the table."""
    print(f"a file of {ROWS:,} rows every {EVERY:g} s, {ROUNDS} rounds, local[2]\n{HEADER}", flush=True)
    took: dict[str, list[tuple[float, float]]] = {"try": [], "restart": [], "bare": []}
    for number in range(ROUNDS):
        for side in list(took) if number % 2 else reversed(took):
            with tempfile.TemporaryDirectory() as scratch:
                seconds = (bare(Path(scratch)),) * 2 if side == "bare" else gap(Path(scratch), side)
                took[side].append(seconds)
    alone = [both[0] for both in took["bare"]]
    for side, aim in (("try", "≤0.3"), ("restart", "")):
        over, longest = ([both[at] for both in took[side]] for at in (0, 1))
        print_ratio(f"last old to first new commit, {side}", over, alone, "s", aim)
        print_ratio(f"longest time without a commit, {side}", longest, alone, "s", "")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), 100)
        bench.declare("dedupe")
        write_files(bench.root / "data" / "events", 0, 1, ROWS)
        bench.run_flow()
        looks = [command(bench, "preflight") for _ in range(ROUNDS)]
        versions = [command(bench, "--version") for _ in range(ROUNDS)]
    print_ratio("a verdict without Spark, and --version", looks, versions, "s", "≤1 s")


if __name__ == "__main__":
    enter_environment()
    main()
