"""AUTO CDC against the versions that one writes by hand: ``python tests/benchmarks/bench_cdc.py``.

Each case applies the same batches on all sides, in turn, each into a table of its own with the same rows.

- *bare* is the MERGE of the newest row of each key. It remembers nothing of deleted keys, and a repeated
  batch is applied twice: it is faster than it has a right to be. With SCD type 2 it is a MERGE that closes
  the present version and inserts the new one, for changes that come in order.
- *soft* keeps deleted rows with a mark, by which readers must filter: so it knows of deletes, as ours does.

The ratio is the median of the pairs. ``CASES`` (names, or parts of them) and ``ROUNDS`` by environment. All
cases take some ten minutes on two cores; ``docs/internals/benchmarks.md`` keeps the results by commit.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spark_jobs"))

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from streamkeeper_jobs.cdc import Step, apply_changes, prepare
from streamkeeper_jobs.cdc.table_schema import DELETION_VECTORS

from streamkeeper.declare.cdc_spec import BOOKKEEPING, END_AT, START_AT, CdcSpec
from streamkeeper.declare.model import AppendFlow, Location, Table
from streamkeeper.drivers.submit import spark_settings
from streamkeeper.settings import Settings
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds

WANTED = [name for name in os.environ.get("CASES", "").split(",") if name]
ROUNDS = rounds(1)
WARM_UP = 5
"""Batches of each kind of table before the first case."""
UNCOUNTED = 2
"""Batches of each case before those that count: a driver runs for days, and these compile. The keys of a
large table it knows from the fourth batch on.
"""
DELETES = 0.05
FILE_ROWS = 125_000

SPEC = CdcSpec(("id",), ("at",), apply_as_deletes="op = 'D'", except_column_list=("op", "at"))
TABLE = Table("customers", None, {}, (), Location("bench_cdc.py", 1))
VALUES = ("a", "b", "c", "d")
FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True)
class Case:
    """A size of the target, a size and number of batches, and what ours is to be at least, by side. ``late``
    is the share of changes that come two batches after their time.
    """

    name: str
    size: int
    changes: int
    batches: int
    aims: dict[str, float]
    recent: bool = False
    scd_type: int = 1
    vectors: bool = True
    feed: bool = False
    late: float = 0.0

    @property
    def properties(self) -> dict[str, str]:
        """Of all sides' tables. One whose changes are recorded is written by MERGE on every side."""
        given = {DELETION_VECTORS: str(self.vectors).lower()}
        return {**given, FEED: "true"} if self.feed else given


# Small ones first: a driver runs for days, and for the large ones the JVM has compiled most by then.
CASES = (
    Case("0.2 million, random keys", 200_000, 100_000, 6, {"bare": 1.0}),
    Case("0.2 million, recent keys", 200_000, 100_000, 6, {"bare": 1.0}, recent=True),
    Case("2 million, random keys", 2_000_000, 100_000, 10, {"bare": 2.5, "soft": 1.5}),
    Case("2 million, recent keys", 2_000_000, 100_000, 6, {"bare": 1.2, "soft": 1.5}, recent=True),
    Case("8 million, random keys", 8_000_000, 100_000, 10, {"bare": 5.0}),
    Case("1,000 changes, random keys", 200_000, 1_000, 11, {"bare": 1.2}),
    Case("1,000 changes, recent keys", 200_000, 1_000, 11, {"bare": 1.2}, recent=True),
    Case("SCD type 2, random keys", 200_000, 100_000, 11, {"bare": 1.5}, scd_type=2),
    Case("no vectors, random keys", 2_000_000, 100_000, 6, {"bare": 1.0}, vectors=False),
    Case("no vectors, 1,000 changes", 200_000, 1_000, 17, {"bare": 1.2}, vectors=False),
    Case("change feed, in order", 2_000_000, 100_000, 7, {"soft": 0.9}, feed=True),
    Case("change feed, some late", 2_000_000, 100_000, 7, {"soft": 0.7}, feed=True, late=0.1),
)


@dataclass(frozen=True)
class Bench:
    """One case, in a folder of its own."""

    spark: SparkSession
    root: Path
    case: Case

    @property
    def path(self) -> str:
        return str(self.root / "ours")

    @property
    def spec(self) -> CdcSpec:
        return replace(SPEC, scd_type=self.case.scd_type)

    def fill(self) -> None:
        """Make all targets with the same rows, in as many files, sorted by key."""
        given = self.case.properties
        files = max(1, self.case.size // FILE_ROWS)
        rows = wide(self.spark.range(0, self.case.size, 1, files).withColumn("at", F.lit(0).cast("bigint")))
        sequence = F.struct(F.col("at").alias("sequence")).alias(BOOKKEEPING)
        history = [F.col("at").alias(START_AT), F.lit(None).cast("bigint").alias(END_AT)]
        prepare(
            self.spark,
            rows.withColumn("op", F.lit("U")).schema,
            self.spec,
            self.path,
            replace(TABLE, properties=given),
            nullcontext,
        )
        own = rows.select("id", *VALUES, *(history if self.case.scd_type == 2 else []), sequence)
        own.write.format("delta").mode("append").save(self.path)
        bare = rows if self.case.scd_type == 1 else rows.select("id", *VALUES, *history)
        bare.write.format("delta").options(**given).save(str(self.root / "bare"))
        if "soft" in self.case.aims:
            soft = rows.withColumn("deleted", F.lit(False)).write.format("delta").options(**given)
            soft.save(str(self.root / "soft"))
        for number in range(self.case.batches):
            self._events(number).write.parquet(str(self.root / f"batch-{number}"))

    def batch(self, number: int) -> DataFrame:
        return self.spark.read.parquet(str(self.root / f"batch-{number}"))

    def _events(self, number: int) -> DataFrame:
        """Make events: of keys drawn from the whole table or its last twentieth, one in ten of them new; and
        the share of deletes. With SCD type 2 each key has one change a batch.
        """
        size, changes = self.case.size, self.case.changes
        lowest = int(size * 0.95) if self.case.recent else 0
        key = (F.rand(number) * ((size * 1.005 if self.case.recent else size * 1.1) - lowest) + lowest).cast(
            "bigint"
        )
        since = F.when(F.rand(number + 2000) < self.case.late, number - 2).otherwise(number)
        drawn = self.spark.range(0, changes, 1, 2).select(
            key.alias("id"), (F.col("id") + since * changes + 1).alias("at")
        )
        drawn = drawn.dropDuplicates(["id"]) if self.case.scd_type == 2 else drawn
        return wide(drawn).withColumn("op", F.when(F.rand(number + 1000) < DELETES, "D").otherwise("U"))

    def ours(self, number: int) -> None:
        apply_changes(self.batch(number), self.spec, self.path, Step("bench", number), nullcontext)

    def bare(self, number: int) -> None:
        if self.case.scd_type == 2:
            self._bare_history(number)
            return
        columns = {name: F.col(f"s.{name}") for name in ("id", "at", *VALUES)}
        merge = self._merge("bare", self._newest(number)).whenMatchedDelete("s.op = 'D' AND s.at > t.at")
        merge.whenMatchedUpdate("s.at > t.at", columns).whenNotMatchedInsert("s.op <> 'D'", columns).execute()

    def soft(self, number: int) -> None:
        columns = {name: F.col(f"s.{name}") for name in ("id", "at", *VALUES)}
        columns["deleted"] = F.expr("s.op = 'D'")
        merge = self._merge("soft", self._newest(number))
        merge.whenMatchedUpdate("s.at > t.at", columns).whenNotMatchedInsert(values=columns).execute()

    def _bare_history(self, number: int) -> None:
        """Close the present version of each key, and insert the next one, by one MERGE."""
        changes = self.batch(number)
        begins = changes.where("op <> 'D'").withColumn("ends", F.lit(None).cast("bigint"))
        ends = changes.withColumn("ends", F.col("id"))
        columns = {name: F.col(f"s.{name}") for name in ("id", *VALUES)}
        columns |= {START_AT: F.col("s.at"), END_AT: F.lit(None).cast("bigint")}
        target = DeltaTable.forPath(self.spark, str(self.root / "bare")).alias("t")
        merge = target.merge(
            begins.unionByName(ends).alias("s"), f"t.id = s.ends AND t.{END_AT} IS NULL"
        ).whenMatchedUpdate(set={END_AT: F.col("s.at")})
        merge.whenNotMatchedInsert("s.ends IS NULL", columns).execute()

    def _newest(self, number: int) -> DataFrame:
        newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("at")))
        return self.batch(number).withColumn("place", newest).where("place = 1").drop("place")

    def _merge(self, name: str, changes: DataFrame):  # type: ignore[no-untyped-def]
        target = DeltaTable.forPath(self.spark, str(self.root / name)).alias("t")
        return target.merge(changes.alias("s"), "t.id = s.id")

    def same(self) -> None:
        """Make sure that all targets show the same rows, by their number and a checksum that no order plays a
        part in.
        """
        columns = ["id", *VALUES, *((START_AT, END_AT) if self.case.scd_type == 2 else ())]
        checksum = F.sum(F.xxhash64(*columns).cast("decimal(38, 0)"))
        shown = {}
        for name in ("ours", *self.case.aims):
            rows = self.spark.read.format("delta").load(str(self.root / name))
            rows = rows.where("NOT deleted") if name == "soft" else rows
            shown[name] = rows.agg(F.count("*"), checksum).first()
        assert len(set(shown.values())) == 1, f"the targets differ: {shown}"


def wide(rows: DataFrame) -> DataFrame:
    """Add four columns of 40 characters that follow from key and sequence."""
    return rows.withColumns({name: F.sha1(F.concat_ws("-", "id", "at", F.lit(name))) for name in VALUES})


def seconds(act: Callable[[int], None], number: int) -> float:
    started = time.monotonic()
    act(number)
    return time.monotonic() - started


def measure(bench: Bench) -> dict[str, list[float]]:
    """Apply all batches on all sides, in turn; give changes a second of each side, of those that count."""
    bench.fill()
    sides = {"ours": bench.ours, "bare": bench.bare, "soft": bench.soft}
    names = ["ours", *bench.case.aims]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(bench.case.batches):
        for name in names if number % 2 else reversed(names):
            rates[name].append(bench.case.changes / seconds(sides[name], number))
    bench.same()
    return {name: found[UNCOUNTED:] for name, found in rates.items()}


def open_session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    bare = AppendFlow("bench", "t", (), "", "1 second", {}, Location("bench", 1))
    builder = SparkSession.builder.appName("bench").master("local[2]").config("spark.driver.memory", "3g")
    for name, value in spark_settings(Settings.from_environment({}), bare).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _measured(spark: SparkSession, case: Case) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as scratch:
        return measure(Bench(spark, Path(scratch) / "tables", case))


def main() -> None:
    """Measure and print the table."""
    spark = open_session()
    print(f"{DELETES:.0%} deletes, {ROUNDS} rounds, local[2]\n{HEADER}", flush=True)
    # A driver runs for days: what the JVM compiles in the first minute is not measured.
    for scd_type, vectors in ((1, True), (2, True), (1, False)):
        sides = {"bare": 0.0} | ({"soft": 0.0} if scd_type == 1 and vectors else {})
        _measured(spark, Case("warm-up", 50_000, 10_000, WARM_UP, sides, scd_type=scd_type, vectors=vectors))
    for case in CASES:
        if WANTED and not any(part in case.name for part in WANTED):
            continue
        found: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for name, rates in _measured(spark, case).items():
                found.setdefault(name, []).extend(rates)
        for name, aim in case.aims.items():
            print_ratio(f"{case.name} / {name}", found["ours"], found[name], "rows/s", f"≥{aim:.2f}")
    spark.stop()


if __name__ == "__main__":
    enter_environment()
    main()
