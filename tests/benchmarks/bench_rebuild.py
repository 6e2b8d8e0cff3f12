"""A table read anew from its history, against the bare query over the same history: ``python
tests/benchmarks/bench_rebuild.py``.

``full_refresh``: the flow's driver after the table was emptied, from spark-submit to the last commit of the
history. ``beside``: the step ``build`` of ``rebuild_without_downtime``, all of it: two rounds at least, the
last
of which finds nothing. The bare query is plain PySpark with the same options and settings, into a table of
its own, to its last commit. They take turns. Aim: ≤1.1. ``ROUNDS=…`` (5).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.steps import submission
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import Bench, commits_with_data, write_files

FILES, ROWS, PER_TRIGGER = 60, 20_000, 4
ROUNDS = rounds()


def begin(bench: Bench, recovery: str, name: str) -> None:
    """Plan a recovery of the table, and approve it."""
    of, manifest = kind(recovery), read_manifest(bench.settings)
    plan = engine.plan(bench.settings, of, of.parse({"table": "events"}, manifest, "benchmark"), name)
    engine.propose(bench.settings, plan)
    engine.approve(bench.settings, "events", name, "benchmark")


def steps(bench: Bench, recovery: str, name: str, *chosen: str) -> dict[str, float]:
    """Carry out steps of a recovery; give the seconds of each."""
    taken = {}
    for step in chosen:
        if kind(recovery).step(step).needs_spark:
            began = bench.run(submission.recovery_step(bench.settings, "events", name, step).command())
        else:
            began = time.time()
            engine.carry_out(bench.settings, "events", name, step)
        taken[step] = time.time() - began
    return taken


def refreshed(bench: Bench, number: int) -> float:
    """Refresh the table in full; give how long the flow's driver took for the history."""
    name = f"full_refresh-bench-{number:08d}"
    begin(bench, "full_refresh", name)
    steps(
        bench,
        "full_refresh",
        name,
        "hold",
        "plan_again",
        "empty_tables",
        "decide",
        "verify_tables",
        "release",
    )
    began = bench.run_flow()
    return commits_with_data(bench.table)[-1] - began


def built(bench: Bench, number: int) -> float:
    """Build the table beside; give how long that took. It is given up then: what came of it is the next
    round's.
    """
    name = f"rebuild_without_downtime-bench-{number:08d}"
    begin(bench, "rebuild_without_downtime", name)
    taken = steps(bench, "rebuild_without_downtime", name, "lock", "build")["build"]
    assert engine.give_up(bench.settings, "events", name, "measured")
    return taken


def bare(bench: Bench, view: str, number: int) -> float:
    """Run the bare query over the history, from nothing."""
    before = len(commits_with_data(bench.bare_table))
    began = bench.run_bare(view, f"checkpoint-{number}")
    found = commits_with_data(bench.bare_table)
    assert len(found) > before, "it has read the history"
    return found[-1] - began


def main() -> None:
    """Measure and print the table."""
    print(
        f"{FILES} files of {ROWS:,} rows, {PER_TRIGGER} a batch, {ROUNDS} rounds, local[2]; load"
        f" {os.getloadavg()[0]:.1f}"
    )
    print(HEADER, flush=True)
    for view in ("plain", "dedupe"):
        ours: dict[str, list[float]] = {"full_refresh": [], "beside": []}
        theirs: list[float] = []
        with tempfile.TemporaryDirectory() as scratch:
            bench = Bench(Path(scratch), PER_TRIGGER)
            write_files(Path(scratch) / "data" / "events", 0, FILES, ROWS, age=60)
            bench.declare(view)
            bench.run_flow()
            for number in range(ROUNDS):
                turns = [lambda: theirs.append(bare(bench, view, number))]  # noqa: B023 - called in this very turn
                turns += [lambda: ours["full_refresh"].append(refreshed(bench, number))]  # noqa: B023
                turns += [lambda: ours["beside"].append(built(bench, number))]  # noqa: B023
                for turn in turns[number % 3 :] + turns[: number % 3]:
                    turn()
        for what, taken in ours.items():
            print_ratio(f"{view}: {what}", taken, theirs, "s", "≤1.10")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    enter_environment()
    main()
