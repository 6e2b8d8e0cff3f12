"""What a backup costs beside a plain copy of the same files: ``python tests/benchmarks/bench_backup.py``;
``ROUNDS=…`` (5).

Both copy the very same bytes, one after the other, in pairs, into a folder of their own on the same disk. The
aim: ``backup_table``'s copy step has at least 0.7 of the throughput of ``shutil.copytree``. Since a backup
must outlive a power cut, it is also compared with a copy whose files are flushed to the disk. Then the steps
of a real table's backup are timed: what a proof by reading everything costs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "spark_jobs")]

from streamkeeper.delta.copy_files import FIRST_COMMIT, Progress, copy_files, files_of  # noqa: E402
from streamkeeper.storage import LocalStorage  # noqa: E402
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds  # noqa: E402

ROUNDS = rounds()
SHAPES = {"48 files of 16 MB": (48, 16 * 2**20), "4,000 files of 100 kB": (4000, 100_000)}
ROWS = 4_000_000


def make_files(folder: Path, count: int, size: int) -> bytes:
    """Write files of random bytes, and give the commit that names them."""
    folder.mkdir(parents=True)
    content = os.urandom(size)
    for number in range(count):
        (folder / f"part-{number:05d}.parquet").write_bytes(number.to_bytes(8, "big") + content[8:])
    adds = ({"add": {"path": f"part-{number:05d}.parquet", "size": size}} for number in range(count))
    return "\n".join(json.dumps(add) for add in adds).encode()


def plain(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def flushed(source: Path, target: Path) -> None:
    """Copy as :func:`plain` does, and flush every file to the disk."""
    shutil.copytree(source, target)
    for file in target.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def backup(source: Path, target: Path, commit: bytes) -> None:
    """Copy as the step ``copy`` of a backup does."""
    lines = commit.decode().splitlines()
    progress = Progress(lambda **numbers: None, lambda: None, len(lines))
    storage = LocalStorage(str(target))
    copy_files(LocalStorage(str(source)), storage, files_of(lines), progress)
    storage.create(FIRST_COMMIT, commit)


def seconds(act: Callable[[], object]) -> float:
    os.sync()
    before = time.perf_counter()
    act()
    return time.perf_counter() - before


def compare(root: Path, name: str, count: int, size: int) -> None:
    """Print a row for each way of copying: the throughput of a backup beside it, pair by pair."""
    source = root / "source"
    commit = make_files(source, count, size)
    ways: dict[str, Callable[[Path], object]] = {
        "plain": lambda target: plain(source, target),
        "flushed": lambda target: flushed(source, target),
        "backup": lambda target: backup(source, target, commit),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, act in ways.items():
            target = root / f"{way}-{number}"
            needed = seconds(lambda act=act, target=target: act(target))  # type: ignore[misc]
            if number:  # the first round warms up
                taken[way].append(needed)
            shutil.rmtree(target)
    shutil.rmtree(source)
    speeds = {way: [count * size / one / 1e6 for one in taken[way]] for way in ways}
    print_ratio(f"{name}: backup, against copytree", speeds["backup"], speeds["plain"], "MB/s", "≥0.70")
    print_ratio("the same, against copytree, flushed", speeds["backup"], speeds["flushed"], "MB/s", "–")


def real_table(root: Path) -> None:
    """Print how long each step of a real table's backup takes."""
    from pyspark.sql import SparkSession

    from streamkeeper.declare.model import AppendFlow, Location
    from streamkeeper.drivers.submit import spark_settings
    from tests.worlds.flow_world import pipeline, quick_settings
    from tests.worlds.tables.backup_world import Recoverer

    settings = quick_settings(root)
    (root / "pipelines").mkdir()
    (root / "pipelines" / "events.py").write_text(pipeline())
    builder = SparkSession.builder.master("local[2]")
    bare = AppendFlow("bench", "t", (), "", "1 second", {}, Location("bench", 1))
    for key, value in spark_settings(settings, bare).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    path = settings.table_path("events")
    spark.range(ROWS).selectExpr(
        "id", "sha1(string(id)) AS a", "sha1(string(-id)) AS b", "id % 1000 AS c"
    ).write.format("delta").save(path)
    at_work = Recoverer(spark, settings, "events")
    plan = at_work.plan("backup_table", "b1", table="events.events")
    taken = {step: seconds(lambda step=step: at_work.step("b1", step)) for step in plan.steps}  # type: ignore[misc]
    taken["a plain copy"] = seconds(lambda: plain(Path(path), root / "plain"))
    size = plan.copies[0].bytes
    print(f"\n| a backup of {ROWS:,} rows, {size / 1e6:,.0f} MB | seconds |\n|---|---|")
    for step, needed in taken.items():
        print(f"| {step} | {needed:.2f} |")
    spark.stop()


def main() -> None:
    """Print the tables."""
    print(f"{ROUNDS} rounds\n{HEADER}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for name, (count, size) in SHAPES.items():
            compare(Path(root), name, count, size)
    with tempfile.TemporaryDirectory() as root:
        real_table(Path(root))


if __name__ == "__main__":
    enter_environment()
    main()
