"""Throughput and time to the first batch against the same query written by hand: ``python
tests/benchmarks/bench_flow.py``.

The two take turns over the same files. Throughput is rows between the first and the last commit; the time to
the first batch runs from spark-submit to the first commit that has data. Aims: ≥0.97 of the throughput, ≤1.10
of the time.

Then expectations against none. Ten that count: the time of a batch without the overhead of a query, read and
committed, in one session by turns, since whole drivers differ by more than the aim of ≤1.01. A quarantine of
one row in ten, which is a second table: a flow, between the first and the last commit; no aim.

Last, a table with a name in a Hive metastore against one without: batches, of which none asks the catalog; a
start that registers the table, and one that finds nothing new in sources and catalog: both cost seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spark_jobs"))

from streamkeeper.drivers import submit
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import Bench, commits_with_data, write_files

FILES, ROWS, PER_TRIGGER = 60, 20_000, 4
ROUNDS = rounds()
CONDITIONS = (
    "event_id IS NOT NULL", "length(event_id) = 13", "event_id LIKE 'e%'", "user_id >= 0", "user_id < 997",
    "kind = 'view'", "kind IN ('view', 'click')", "amount BETWEEN 0 AND 25", "amount < 24",
    "event_time >= '2026-01-01'",
)  # fmt: skip
COUNTED = f"@dp.expect_all({ {f'c{number}': one for number, one in enumerate(CONDITIONS)} })\n"
ASIDE = '@dp.expect_or_drop("tenth", "user_id % 10 != 0", quarantine="refused")\n'
BATCHES = 40
"""Pairs of batches; the first ten warm the JVM, and do not count."""


def main() -> None:
    """Measure and print the table."""
    print(
        f"{FILES} files of {ROWS:,} rows, {PER_TRIGGER} a batch, {ROUNDS} rounds, local[2]\n{HEADER}",
        flush=True,
    )
    for view in ("plain", "dedupe"):
        rates: tuple[list[float], list[float]] = ([], [])
        firsts: tuple[list[float], list[float]] = ([], [])
        with tempfile.TemporaryDirectory() as scratch:
            write_files(Path(scratch) / "data" / "events", 0, FILES, ROWS)
            for number in range(ROUNDS):
                root = Path(scratch) / f"round-{number}"
                root.mkdir()
                (root / "data").symlink_to(Path(scratch) / "data")
                bench = Bench(root, PER_TRIGGER)
                bench.declare(view)
                bench.flow()
                for side in (0, 1) if number % 2 else (1, 0):
                    started = bench.run_bare(view) if side else bench.run_flow()
                    commits = commits_with_data(bench.bare_table if side else bench.table)
                    rates[side].append((len(commits) - 1) * PER_TRIGGER * ROWS / (commits[-1] - commits[0]))
                    firsts[side].append(commits[0] - started)
        print_ratio(f"{view}: throughput", *rates, "rows/s", "≥0.97")
        print_ratio(f"{view}: spark-submit to the first batch", *firsts, "s", "≤1.10")
    with_counts, by_hand, without = _batches()
    print_ratio(
        "a batch: ten expectations, beside a filter of the same conditions",
        with_counts,
        by_hand,
        "s",
        "≤1.01",
    )
    print_ratio("a batch: ten expectations, beside no conditions", with_counts, without, "s", "-")
    aside, _, _ = _by_turns(expect=COUNTED + ASIDE)
    print_ratio("a flow: ten expectations and a quarantine", *aside, "s", "-")
    batches, firsts, idle = _by_turns(named=True)
    print_ratio("a table with a name: all batches", *batches, "s", "≤1.03")
    print_ratio("a table with a name: to its first batch", *firsts, "s", "-")
    print_ratio("a table with a name: a start with nothing new", *idle, "s", "-")


def _batches() -> tuple[list[float], list[float], list[float]]:
    """Measure batches with ten expectations, with a filter of their conditions and with neither, by turns.

    Return the seconds of each.
    """
    from pyspark.sql import SparkSession
    from streamkeeper_jobs.sinks.expectations import expected

    seconds: tuple[list[float], list[float], list[float]] = ([], [], [])
    with tempfile.TemporaryDirectory() as scratch:
        write_files(Path(scratch) / "data" / "events", 0, 3 * PER_TRIGGER, ROWS)
        bench = Bench(Path(scratch), PER_TRIGGER)
        bench.declare("plain", COUNTED)
        flow = bench.flow()
        builder = SparkSession.builder.master("local[2]")
        for name, value in submit.spark_settings(bench.settings, flow.declaration).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        schema = flow.pipeline.sources[0].schema
        assert schema is not None
        rows = spark.read.schema(schema).json(f"{scratch}/data/events")
        by_hand = rows
        for item in flow.declaration.expectations:
            by_hand = by_hand.where(item.condition)
        sides = (expected(rows, flow.declaration), by_hand, rows)
        for number in range(BATCHES):
            for side in (0, 1, 2) if number % 2 else (2, 1, 0):
                began = time.perf_counter()
                sides[side].write.format("delta").mode("append").save(f"{scratch}/{side}")
                if number >= 10:
                    seconds[side].append(time.perf_counter() - began)
        spark.stop()
    return seconds


Sides = tuple[list[float], list[float]]
"""Seconds with and without what is measured, one of each a round."""


def _by_turns(expect: str = "", *, named: bool = False) -> tuple[Sides, Sides, Sides]:
    """Measure the flow with expectations or a name of its table, and without, by turns.

    Return the seconds from its first commit to its last, from spark-submit to the first, and of a driver that
    has nothing to read.
    """
    batches: Sides = ([], [])
    firsts: Sides = ([], [])
    idle: Sides = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        write_files(Path(scratch) / "data" / "events", 0, FILES, ROWS)
        for number in range(ROUNDS):
            for side in (0, 1) if number % 2 else (1, 0):
                root = Path(scratch) / f"round-{number}-{side}"
                root.mkdir()
                (root / "data").symlink_to(Path(scratch) / "data")
                bench = Bench(root, PER_TRIGGER)
                bench.declare("plain", "" if side else expect, named=named and not side)
                started = bench.run_flow()
                commits = commits_with_data(bench.table)
                batches[side].append(commits[-1] - commits[0])
                firsts[side].append(commits[0] - started)
                if named:
                    started = bench.run_flow()
                    idle[side].append(time.time() - started)
    return batches, firsts, idle


if __name__ == "__main__":
    enter_environment()
    main()
