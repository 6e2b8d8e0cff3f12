"""How long a look at a checkpoint takes, against how many files its source has processed, and what a flow's
history costs against a plain file of the same bytes: ``python tests/benchmarks/bench_inspect.py``.

The files log is laid out as Spark keeps it: one compacted batch with everything, a few plain ones after it,
100 offsets and commits. The aim is 0.5 s for a whole process at 1,000,000 files, and the same at 10,000: a
look must not grow with history.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from streamkeeper.checkpoint import (  # noqa: E402
    CommitEntry,
    FileEntry,
    OffsetEntry,
    write_commit,
    write_files_log,
    write_offsets,
)
from streamkeeper.checkpoint.crc_files import checksum, twin_of  # noqa: E402
from streamkeeper.flows.files import FlowHome  # noqa: E402
from streamkeeper.health.inspection import inspect  # noqa: E402
from streamkeeper.history import events, rows  # noqa: E402
from streamkeeper.history.events import Kind  # noqa: E402
from streamkeeper.history.rows import Sample, Totals  # noqa: E402
from streamkeeper.storage import LocalStorage  # noqa: E402
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds  # noqa: E402
from tests.benchmarks.sides import lag_of_a_folder  # noqa: E402

SIZES = (10_000, 1_000_000)
PER_BATCH = 10
RUNS = rounds(7)
RETAINED = 100
"""Spark's minBatchesToRetain."""


def entries(batches: range) -> Iterator[FileEntry]:
    """Give the files that these batches of the log took, with paths as long as they are in practice."""
    for batch in batches:
        for number in range(PER_BATCH):
            path = f"file:///data/customers/cdc/date=2026-01-01/hour=12/part-{batch:08d}-{number:04d}-3f0c8a52b7d1.json"
            yield FileEntry(path, 1_767_225_600_000 + batch, batch)


def write(file: Path, content: bytes) -> None:
    """Write a file with its checksum twin, as Hadoop does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    Path(twin_of(str(file))).write_bytes(checksum(content))


def make_checkpoint(folder: Path, files: int) -> int:
    """Write a checkpoint that has processed about this many files; give the bytes of its files log."""
    compact = files // PER_BATCH // 10 * 10 - 1
    last = compact + 5
    write(folder / "metadata", b'{"id":"6f1f7d0e-5b0a-4d0c-9a53-7c1b7a4a2f10"}')
    log = folder / "sources" / "events"
    for number in range(compact + 1, last + 1):
        write(log / str(number), b"".join(write_files_log(entries(range(number, number + 1)))))
    write(log / f"{compact}.compact", b"".join(write_files_log(entries(range(compact + 1)))))
    for batch in range(max(0, last - RETAINED), last + 1):
        conf = {f"spark.sql.streaming.setting{number}": "value" for number in range(15)}
        offsets = OffsetEntry(
            batch,
            2,
            0,
            1_767_225_600_000 + batch,
            conf,
            {"events": {"logOffset": batch}},
            {"sourceMetadataInfo": {}},
        )
        write(folder / "offsets" / str(batch), write_offsets(offsets))
        write(folder / "commits" / str(batch), write_commit(CommitEntry(batch, 1, 0)))
    return sum(file.stat().st_size for file in log.iterdir())


def milliseconds(action: Callable[[], object]) -> list[float]:
    """Give the times of several runs, after one that is not counted."""
    action()
    taken = []
    for _ in range(RUNS):
        before = time.perf_counter()
        action()
        taken.append(1000 * (time.perf_counter() - before))
    return taken


def run(*arguments: str) -> None:
    """Run Python in a process of its own.

    :raises subprocess.CalledProcessError: it failed.
    """
    subprocess.run([sys.executable, *arguments], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)


def measure(folder: Path) -> dict[str, list[float]]:
    """Time each way of looking at a checkpoint."""
    storage = LocalStorage(str(folder))
    code = (
        "import sys; from streamkeeper.health.inspection import inspect; from streamkeeper.storage import"
        " LocalStorage;print(inspect(LocalStorage(sys.argv[1]), '').to_json())"
    )
    return {
        "in process": milliseconds(lambda: inspect(storage, "")),
        "bare python process": milliseconds(lambda: run("-c", "pass")),
        "process, library": milliseconds(lambda: run("-c", code, str(folder))),
        "process, command line": milliseconds(lambda: run("-m", "streamkeeper", "inspect", str(folder))),
        "in process, files counted": milliseconds(lambda: inspect(storage, "", count_files=True)),
    }


def measure_history(root: Path) -> None:
    """Print what a flow's row and an event cost, beside a plain file of as many bytes."""
    home, begin = FlowHome(LocalStorage(str(root)), "sales", "orders"), 1_699_999_200.0
    looks = iter(range(1_000_000))
    phases = dict.fromkeys(("addBatch", "commitOffsets", "latestOffset", "queryPlanning", "walCommit"), 1.25)

    def append() -> None:
        # Always the last minute of an hour, over and over: its file is as long as it becomes.
        at = begin + 3540 + next(looks) / 1000
        totals = Totals(1000, 100_000, 2_000.0, 7, 90_000, phases)
        sample = Sample(at, 1, totals, "running", 1, 50_000, 10**8, begin, 12.5, 70)
        rows.record(home, sample, lambda: begin, lambda epoch: Totals())

    for minute in range(59):
        totals = Totals(minute, 100 * minute, 2.0 * minute, 7, 90 * minute, phases)
        rows.record(home, Sample(begin + 60 * minute, 1, totals), lambda: begin - 60, lambda epoch: Totals())
    (name,) = home.storage.names(home.history("minutes"))
    file, plain = Path(home.storage.path(home.history(f"minutes/{name}"))), root / "plain"
    content = file.read_bytes()
    print(f"history: a file of minutes has {len(content):,} bytes", flush=True)
    written = milliseconds(lambda: plain.write_bytes(content))
    print_ratio("history: a flow's row is appended", milliseconds(append), written, "ms", "–")
    read = milliseconds(plain.read_bytes)
    print_ratio(
        "history: an hour of minutes is read", milliseconds(lambda: rows.minutes(home)), read, "ms", "≤1 ms"
    )
    number = iter(range(1_000_000))
    noted = milliseconds(lambda: events.note(home, Kind.RETRIED, "x" * 200, next(number), by="bench"))
    written = milliseconds(lambda: plain.write_bytes(b"x" * 400))
    print_ratio("history: an event is noted", noted, written, "ms", "–")
    for _ in range(2 * events.FOLD):
        events.note(home, Kind.RETRIED, "x" * 200, next(number), by="bench")
    events.fold(home.storage, "sales")
    print_ratio(
        "history: events are read", milliseconds(lambda: events.read(home.storage, "sales")), read, "ms", "–"
    )


def main() -> None:
    """Print a table: a row for each way of looking, its time at both sizes, and their ratio; then those of a
    flow's history.
    """
    with tempfile.TemporaryDirectory() as root:
        found = []
        for files in SIZES:
            folder = Path(root) / str(files)
            size = make_checkpoint(folder, files)
            print(f"{files:,} processed files: files log of {size / 1e6:.1f} MB", flush=True)
            found.append(measure(folder))
    print(f"\n{RUNS} runs; ours: {SIZES[1]:,} files, bare: {SIZES[0]:,}\n{HEADER}")
    for way, small in found[0].items():
        print_ratio(
            f"inspect: {way}", found[1][way], small, "ms", "≤500 ms" if way.startswith("process") else "–"
        )
    with tempfile.TemporaryDirectory() as root:
        measure_history(Path(root))


if __name__ == "__main__":
    enter_environment()
    main()
    lag_of_a_folder.measure()
