"""AUTO CDC against the version that one writes by hand (row_number per key, then MERGE): ``python
tests/benchmarks/bench_cdc.py``.

Both get the same events in the same batches of 100,000, in turn, each into a table of its own with the same
rows. Hand-written, nothing is remembered of deleted keys, and a repeated batch is applied twice: it is faster
than it has a right to be. Plain append is the floor. ``SIZES`` (of the target, in million rows), ``BATCHES``,
``ROUNDS``, ``DELETES`` (their share) by environment. Aim: ≥2 at 2 million rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spark_jobs"))

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from streamkeeper_jobs.cdc import Step, apply_changes, prepare

from streamkeeper.declare.cdc_spec import BOOKKEEPING, CdcSpec
from streamkeeper.declare.model import AppendFlow, Table, Where
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import Settings
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds

SIZES = [float(size) for size in os.environ.get("SIZES", "0.2,2,8").split(",")]
BATCHES = int(os.environ.get("BATCHES", "4"))
ROUNDS = rounds(1)
DELETES = float(os.environ.get("DELETES", "0.05"))
ROWS, FILE_ROWS = 100_000, 125_000

SPEC = CdcSpec(("id",), ("at",), apply_as_deletes="op = 'D'", except_column_list=("op", "at"))
TABLE = Table("customers", None, {}, (), Where("bench_cdc.py", 1))


@dataclass(frozen=True)
class Bench:
    """One target's size and one kind of keys, in a folder of its own."""

    spark: SparkSession
    root: Path
    size: int
    recent: bool

    @property
    def path(self) -> str:
        return str(self.root / "ours")

    def fill(self) -> None:
        """Make both targets with the same rows, in as many files, sorted by key."""
        rows = wide(
            self.spark.range(0, self.size, 1, max(1, self.size // FILE_ROWS)).withColumn(
                "at", F.lit(0).cast("bigint")
            )
        )
        rows.write.format("delta").save(str(self.root / "bare"))
        prepare(self.spark, rows.withColumn("op", F.lit("U")).schema, SPEC, self.path, TABLE, nullcontext)
        kept = rows.withColumn(BOOKKEEPING, F.struct(F.col("at").alias("sequence"))).drop("at")
        kept.write.format("delta").mode("append").save(self.path)
        for number in range(BATCHES):
            self._events(number).write.parquet(str(self.root / f"batch-{number}"))

    def batch(self, number: int) -> DataFrame:
        return self.spark.read.parquet(str(self.root / f"batch-{number}"))

    def _events(self, number: int) -> DataFrame:
        """Make events: of keys drawn from the whole table or its last twentieth, one in ten of them new; and
        the share of deletes.
        """
        lowest = int(self.size * 0.95) if self.recent else 0
        key = (
            F.rand(number) * (self.size * 1.005 - lowest if self.recent else self.size * 1.1) + lowest
        ).cast("bigint")
        drawn = self.spark.range(0, ROWS, 1, 2).select(
            key.alias("id"), (F.col("id") + number * ROWS + 1).alias("at")
        )
        return wide(drawn).withColumn("op", F.when(F.rand(number + 1000) < DELETES, "D").otherwise("U"))

    def ours(self, number: int) -> None:
        apply_changes(self.batch(number), SPEC, self.path, Step("bench", number), nullcontext)

    def bare(self, number: int) -> None:
        newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("at")))
        changes = self.batch(number).withColumn("place", newest).where("place = 1").drop("place")
        columns = {name: F.col(f"s.{name}") for name in ("id", "at", "a", "b", "c", "d")}
        merge = (
            DeltaTable.forPath(self.spark, str(self.root / "bare"))
            .alias("t")
            .merge(changes.alias("s"), "t.id = s.id")
        )
        merge = merge.whenMatchedDelete("s.op = 'D' AND s.at > t.at").whenMatchedUpdate(
            "s.at > t.at", columns
        )
        merge.whenNotMatchedInsert("s.op <> 'D'", columns).execute()

    def append(self, number: int) -> None:
        self.batch(number).write.format("delta").mode("append").save(str(self.root / "floor"))

    def same(self) -> None:
        """Make sure that both targets hold the same rows, by their number and a checksum that no order plays
        a part in.
        """
        columns = ["id", "a", "b", "c", "d"]
        checksum = F.sum(F.xxhash64(*columns).cast("decimal(38, 0)"))
        sides = (
            self.spark.read.format("delta").load(str(self.root / name)).agg(F.count("*"), checksum)
            for name in ("ours", "bare")
        )
        mine, theirs = (side.first() for side in sides)
        assert mine == theirs, f"the two targets differ: {mine} and {theirs}"


def wide(rows: DataFrame) -> DataFrame:
    """Add four columns of 40 characters that follow from key and sequence."""
    return rows.withColumns({name: F.sha1(F.concat_ws("-", "id", "at", F.lit(name))) for name in "abcd"})


def seconds(act: Callable[[int], None], number: int) -> float:
    started = time.monotonic()
    act(number)
    return time.monotonic() - started


def measure(bench: Bench) -> tuple[list[float], list[float], list[float]]:
    """Apply all batches on both sides, in turn; give rows a second of ours, of the hand-written one, and of
    plain append.
    """
    bench.fill()
    rates: tuple[list[float], list[float], list[float]] = ([], [], [])
    for number in range(BATCHES):
        sides = [(rates[0], bench.ours), (rates[1], bench.bare), (rates[2], bench.append)]
        for into, act in sides if number % 2 else reversed(sides):
            into.append(ROWS / seconds(act, number))
    bench.same()
    return rates


def open_session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    bare = AppendFlow("bench", "t", (), "", "1 second", {}, Where("bench", 1))
    builder = SparkSession.builder.appName("bench").master("local[2]").config("spark.driver.memory", "3g")
    for name, value in spark_settings(Settings.from_environment({}), bare).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Measure and print the table."""
    spark = open_session()
    print(
        f"batches of {ROWS:,}, {DELETES:.0%} deletes, {BATCHES} batches, {ROUNDS} rounds, local[2]\n{HEADER}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        for recent in (False, True):
            measure(Bench(spark, Path(scratch) / f"warm-up-{recent}", 100_000, recent))
        for size in SIZES:
            for recent in (False, True):
                rates: tuple[list[float], list[float], list[float]] = ([], [], [])
                for number in range(ROUNDS):
                    bench = Bench(spark, Path(scratch) / f"{size}-{recent}-{number}", int(size * 1e6), recent)
                    for known, found in zip(rates, measure(bench), strict=True):
                        known.extend(found)
                what = f"{size:g} million, {'recent' if recent else 'random'} keys"
                floor = f"append {statistics.median(rates[2]):,.0f}"
                print_ratio(what, rates[0], rates[1], "rows/s", f"{'≥2.00' if size >= 2 else '':<6} {floor}")
    spark.stop()


if __name__ == "__main__":
    enter_environment()
    main()
