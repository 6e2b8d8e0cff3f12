"""How long it takes to measure the lag of a folder with many files, against listing it (bench_inspect).

All files but a hundred are in the files log, whose newest batch is compacted; ``FILES`` is their number. A
listing with time and size of each file is the least that tells a lag; one of the names alone is beside it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from streamkeeper.checkpoint import Checkpoint, FileEntry, write_files_log
from streamkeeper.declare.model import Location, Source
from streamkeeper.sources.formats import format_of
from streamkeeper.storage import LocalStorage
from tests.benchmarks.ratios import print_ratio, rounds

FILES = int(os.environ.get("FILES") or 1_000_000)
A_FOLDER = 10_000
UNREAD = 100
BATCH = 9


def make_files(folder: Path) -> list[Path]:
    """Write the files, each a millisecond younger than the one before, 10,000 to a folder."""
    made, begun = [], time.time_ns() - FILES * 1_000_000
    for number in range(FILES):
        below = folder / f"day={number // A_FOLDER:04d}"
        if number % A_FOLDER == 0:
            below.mkdir(parents=True)
        file = below / f"part-{number:08d}-3f0c8a52b7d1.json"
        file.touch()
        os.utime(file, ns=(begun + number * 1_000_000,) * 2)
        made.append(file)
    return made


def make_checkpoint(folder: Path, read: list[Path]) -> Checkpoint:
    """Write a files log that has these files in one compacted batch."""
    log = folder / "sources" / "raw"
    log.mkdir(parents=True)
    entries = (FileEntry(f"file://{file}", file.stat().st_mtime_ns // 1_000_000, BATCH) for file in read)
    (log / f"{BATCH}.compact").write_bytes(b"".join(write_files_log(entries)))
    return Checkpoint(LocalStorage(str(folder)), "")


def listed(folder: str, described: bool) -> int:
    """Count the files below a folder by ``os.scandir``, with time and size of each if wanted."""
    found = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                found += listed(entry.path, described)
            else:
                found += 1
                if described:
                    entry.stat()
    return found


def took(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure() -> None:
    """Print both rows, measured by turns."""
    with tempfile.TemporaryDirectory() as root:
        data = Path(root) / "data"
        files = make_files(data)
        checkpoint = make_checkpoint(Path(root) / "checkpoint", files[:-UNREAD])
        source = Source("raw", "json", str(data), None, {}, Location("bench", 1))
        how = format_of(source)

        def lag() -> None:
            found = how.lag(source, checkpoint, "raw", {"logOffset": BATCH})
            assert found.files == UNREAD, found

        ours, described, names = [], [], []
        for _ in range(rounds()):
            ours.append(took(lag))
            described.append(took(lambda: listed(str(data), described=True)))
            names.append(took(lambda: listed(str(data), described=False)))
        print_ratio(f"lag of {FILES:,} files, against a listing", ours, described, "s", "≤2.00")
        print_ratio(f"lag of {FILES:,} files, against their names", ours, names, "s", "")
