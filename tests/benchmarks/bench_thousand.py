"""A thousand flows on one Airflow, whose triggerer watches them (``STREAMKEEPER_SUPERVISION=deferred``):
``make bench NAME=thousand FLOWS=10,100,1000``.

Airflow is real: LocalExecutor, PostgreSQL, the project's DAGs and plugins, each part a process of its own.
The drivers are SIMULATED: a shell each, which one process plays (:mod:`tests.benchmarks.thousand.simulated`):
leases, heartbeats, holds, ends and parks are real, Spark and data are not there. What they take is counted
aside.

``MINUTES=30`` lasts the time in which nothing happens (2), ``CHAOS=1`` then kills triggerer, scheduler,
PostgreSQL and a tenth of the drivers by -9, as ``SEED`` has it. Exit code 1 where a flow has no driver, two,
or lacks its park.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from streamkeeper.settings import PROJECT

sys.path += [str(PROJECT / "plugins"), str(PROJECT / "spark_jobs")]

from demo.__main__ import Interrupted, _ending_all, _interruptible
from tests.benchmarks.ratios import enter_environment
from tests.benchmarks.thousand import stages
from tests.benchmarks.thousand.chaos import chaos
from tests.benchmarks.thousand.world import thousand

SIZES = [int(size) for size in (os.environ.get("FLOWS") or "10").split(",")]
MINUTES = float(os.environ.get("MINUTES") or 2)
CHAOS = os.environ.get("CHAOS") == "1"
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))


def main() -> int:
    """Measure, print, and return 1 where something that must hold did not."""
    if wrong := [size for size in SIZES if size < 5 or size % 5]:
        sys.exit(f"error: FLOWS is {wrong}; flows are declared five a file: give multiples of five.")
    broken = list[str]()
    for size in SIZES:
        mark, chance = uuid.uuid4().hex, random.Random(SEED)
        print(f"\n{size:,} flows with SIMULATED drivers, seed {SEED}", flush=True)
        with (
            _interruptible(),
            tempfile.TemporaryDirectory(prefix="bench-thousand-", ignore_cleanup_errors=True) as scratch,
            _ending_all(mark),
            thousand(Path(scratch), size, mark) as world,
        ):
            stages.start(world)
            stages.rest(world, MINUTES)
            stages.ends(world, chance)
            stages.holds_of(world, chance)
            stages.damage(world, chance)
            stages.parse(world)
            if CHAOS:
                chaos(world, chance)
            stages.row("a simulated driver acted too late by, at most", f"{world.company.late():.1f} s")
            broken += [f"{size:,} flows: {one}" for one in stages.violations(world)]
    for one in broken:
        print(f"VIOLATION: {one}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    enter_environment()
    try:
        sys.exit(main())
    except Interrupted:
        sys.exit(130)
