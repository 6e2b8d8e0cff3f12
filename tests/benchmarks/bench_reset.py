"""From a reset's first step to the first new commit, against a bare restart of the job: ``python
tests/benchmarks/bench_reset.py``.

Each round processes a history, adds one file, and then measures both: the bare query started again on its
checkpoint, and the reset's steps (hold, plan again, decide, verify, release) with the flow's next driver.
Aim: ≤1.5. ``stateless`` is the story: dropDuplicates is gone; ``rebuilt`` keeps it, so that the whole history
is replayed into the new state.

``growth`` resets one flow that has read and written ``GROWTH_ROWS`` rows (1 million) and one of ten times as
many, in turn. Aim: no growth, which is 1.0; a state that is rebuilt grows with its history by its nature, and
is not in it.
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
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.recover.steps.shared import VERIFY_PROGRESS
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import NAME, Bench, commits_with_data, write_files

FILES, ROWS, PER_TRIGGER = 40, 5_000, 10
GROWTH_ROWS, GROWTH_FILE, GROWTH_FACTOR = int(os.environ.get("GROWTH_ROWS", "1000000")), 50_000, 10
ROUNDS = rounds()


def reset(bench: Bench, number: int) -> float:
    """Carry out every step of a reset up to the release, then run the flow; give when the first step
    began.
    """
    settings = bench.settings
    request = ResetRequest.parse({"flow": NAME}, read_manifest(settings), by="benchmark")
    plan = engine.plan(settings, KIND, request, f"reset_checkpoint-bench-{number}")
    engine.propose(settings, plan)
    engine.approve(settings, "events", plan.recovery_id, "benchmark")
    began = time.time()
    for step in plan.steps:
        if step != VERIFY_PROGRESS.name:
            engine.carry_out(settings, "events", plan.recovery_id, step)
    bench.run_flow()
    return began


def growth() -> None:
    """Measure resets of a flow with a small history and of one with a large one, in turn, and print their
    ratio.
    """
    with tempfile.TemporaryDirectory() as scratch:
        beds = {}
        for name, rows in (("small", GROWTH_ROWS), ("large", GROWTH_ROWS * GROWTH_FACTOR)):
            bench = Bench(Path(scratch) / name, PER_TRIGGER)
            write_files(bench.root / "data" / "events", 0, rows // GROWTH_FILE, GROWTH_FILE, age=3600)
            bench.declare("plain")
            bench.flow()
            bench.run_flow()
            beds[name] = bench
        took: dict[str, list[float]] = {name: [] for name in beds}
        for number in range(ROUNDS):
            for name in ("small", "large") if number % 2 else ("large", "small"):
                bench = beds[name]
                write_files(bench.root / "data" / "events", 100_000 + number, 1, 5_000)
                seen = len(commits_with_data(bench.table))
                began = reset(bench, number)
                took[name].append(commits_with_data(bench.table)[seen] - began)
        said = f"stateless: {GROWTH_ROWS * GROWTH_FACTOR:,} rows (ours) by {GROWTH_ROWS:,} (bare)"
        print_ratio(said, took["large"], took["small"], "s", "1.0")


def main() -> None:
    """Measure and print the table."""
    print(f"history of {FILES} files of {ROWS:,} rows, {ROUNDS} rounds, local[2]\n{HEADER}", flush=True)
    for name, before, after in (("stateless", "dedupe", "plain"), ("rebuilt", "dedupe", "dedupe")):
        ours, bare = [], []
        for number in range(ROUNDS):
            with tempfile.TemporaryDirectory() as scratch:
                bench = Bench(Path(scratch), PER_TRIGGER)
                events = Path(scratch) / "data" / "events"
                write_files(events, 0, FILES, ROWS, age=60)
                bench.declare(before)
                bench.run_flow()
                bench.run_bare(after)
                bench.declare(after)
                bench.flow()
                write_files(events, FILES, 1, ROWS)
                seen, bare_seen = (
                    len(commits_with_data(bench.table)),
                    len(commits_with_data(bench.bare_table)),
                )
                for side in (0, 1) if number % 2 else (1, 0):
                    began = bench.run_bare(after) if side else reset(bench, number)
                    new = (
                        commits_with_data(bench.bare_table)[bare_seen]
                        if side
                        else commits_with_data(bench.table)[seen]
                    )
                    (bare if side else ours).append(new - began)
        print_ratio(f"{name}: reset to first new commit", ours, bare, "s", "≤1.5")
    growth()


if __name__ == "__main__":
    enter_environment()
    main()
