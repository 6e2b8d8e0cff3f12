"""A flow whose state and table are on S3: ``python tests/benchmarks/clusters/bench_s3.py``.

Batches of one file each, from the first commit to the last: of a flow that appends, beside the same flow on a
local disk and beside the same query written by hand on S3, and of an AUTO CDC flow beside itself on a local
disk. The store is versitygw on this machine, as quick as it is, and behind a proxy that lets each request
wait for :data:`DELAY`, as a store does that is elsewhere.

Then how many requests ``inspect``, a backup and a reset make of a table of a few objects, and of one of
``OBJECTS`` (100,000).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from tests.benchmarks.bench_reset import reset
from tests.benchmarks.ratios import HEADER, enter_environment, print_ratio, rounds
from tests.benchmarks.sides.flows_side_by_side import NAME, Bench, commits_with_data, write_files
from tests.worlds.sources.on_s3 import environment_on_s3
from tests.worlds.sources.s3_proxy import proxy
from tests.worlds.sources.s3_server import ASKED, BUCKET, s3_server

ROUNDS = rounds(3)
FILES, ROWS, WARM = 14, 500, 4
"""Batches of a run, rows of each, and the batches at its start that warm the JVM and do not count."""
DELAY = 0.02
LINKS = 10_000
"""Names of one file at most; file systems have limits."""
OBJECTS = int(os.environ.get("OBJECTS") or 100_000)

AUTO_CDC = """
from streamkeeper import pipelines as dp

dp.create_source(
    "events_raw", format="json", path="{data}/events", options={"maxFilesPerTrigger": 1},
    schema="event_id STRING, user_id INT, kind STRING, amount DOUBLE, event_time TIMESTAMP",
)
dp.create_streaming_table("events")


@dp.temporary_view(sources=["events_raw"])
def changes(events):
    return events.selectExpr("*", "CAST(substring(event_id, 2) AS BIGINT) AS number")


dp.create_auto_cdc_flow(
    name="clean_events", target="events", source="changes", keys=["user_id"], sequence_by="number",
    apply_as_deletes="amount > 23", stored_as_scd_type=1,
)
"""


@dataclass(frozen=True)
class OnS3(Bench):
    """A measurement whose state and tables are on S3; the server keeps an object as a file of that path."""

    disk: Path

    @property
    def settings(self) -> Settings:
        return Settings.from_environment(dict(os.environ))

    @property
    def table(self) -> Path:
        return self.disk / "warehouse" / "events"

    @property
    def bare_table(self) -> Path:
        return self.disk / "bare" / "events"

    @property
    def bare(self) -> str:
        return f"s3a://{BUCKET}/bare"


@contextmanager
def on_s3(root: Path, address: str, disk: Path) -> Iterator[OnS3]:
    """Give a measurement against a server, whose bucket is emptied; the environment is set meanwhile."""
    for folder in disk.iterdir():
        shutil.rmtree(folder)
    before = dict(os.environ)
    os.environ.update(environment_on_s3(root, address))
    fsspec.filesystem("s3").clear_instance_cache()  # it knows the address of the measurement before
    try:
        yield OnS3(root, 1, disk)
    finally:
        os.environ.clear()
        os.environ.update(before)


def seconds(table: Path) -> float:
    """Return the seconds of a batch, from the commits of a table."""
    commits = commits_with_data(table)[WARM - 1 :]
    return (commits[-1] - commits[0]) / (len(commits) - 1)


def measured(bench: Bench, flow: str) -> float:
    """Run the flow over all files, and return the seconds of a batch."""
    bench.declare("dedupe")
    if flow == "AUTO CDC":
        (bench.settings.pipelines / "events.py").write_text(AUTO_CDC)
    bench.run_flow()
    return seconds(bench.table)


def by_hand(bench: OnS3) -> float:
    """Run the query written by hand over all files, and return the seconds of a batch."""
    bench.declare("dedupe")
    bench.run_bare("dedupe")
    return seconds(bench.bare_table)


def batches(server: str, disk: Path, scratch: Path) -> None:
    """Measure and print the ratios, and the requests of a batch."""
    found: dict[str, list[float]] = {}
    counts: dict[str, float] = {}
    for number in range(ROUNDS):
        for flow in ("append", "AUTO CDC"):
            root = _folder(scratch / f"{flow}-{number}")
            found.setdefault(f"{flow} local", []).append(measured(Bench(root, 1), flow))
            for name, delay in (("S3", 0.0), ("slow S3", DELAY)):
                with proxy(server) as network:
                    network.delay = delay
                    address = network.url if delay else f"http://{server}"
                    with on_s3(_folder(scratch / f"{flow}-{number}-{name}"), address, disk) as bench:
                        found.setdefault(f"{flow} {name}", []).append(measured(bench, flow))
                        counts[f"{flow}, {name}"] = len(network.requests) / FILES
                        if flow == "append":
                            network.requests.clear()
                            found.setdefault(f"by hand {name}", []).append(by_hand(bench))
                            counts[f"by hand, {name}"] = len(network.requests) / FILES
    for flow in ("append", "AUTO CDC"):
        for name in ("S3", "slow S3"):
            print_ratio(
                f"{flow}: {name} / local disk", found[f"{flow} {name}"], found[f"{flow} local"], "s", "-"
            )
    for name in ("S3", "slow S3"):
        print_ratio(
            f"append, {name}: beside by hand", found[f"append {name}"], found[f"by hand {name}"], "s", "≤1.10"
        )
    for name, number in counts.items():
        if "slow" in name:
            print(f"{name}: {number:.0f} requests a batch, with those of the start", flush=True)


def objects(server: str, disk: Path, scratch: Path) -> None:
    """Print how many requests commands make of a small table and of a large one."""
    asked = disk.parent / ASKED
    with on_s3(_folder(scratch / "objects"), f"http://{server}", disk) as bench:
        measured(bench, "append")
        small = {act: requests for act, requests, _ in _asked(asked, bench, 1)}
        _grow(bench.table)
        for act, large, took in _asked(asked, bench, 2):
            many = ", ".join(f"{count} {operation}" for operation, count in large.most_common())
            print(
                f"{act}: {small[act].total()} requests of a table of {FILES} objects;"
                f" of one of {OBJECTS:,} {large.total()} ({many}) in {took:.0f} s",
                flush=True,
            )


def _asked(asked: Path, bench: OnS3, number: int) -> Iterator[tuple[str, Counter[str], float]]:
    """Inspect, back up and reset; yield the requests of each, by operation, and its seconds.

    :param asked: where the server notes each request; a list is one for each page.
    """
    for name, act in (
        ("inspect", lambda: _command("inspect", NAME)),
        ("backup", lambda: _command("recover", "backup_table", "--table", "events", "--yes")),
        ("reset, and its driver", lambda: reset(bench, number)),
    ):
        before, began = asked.stat().st_size, time.monotonic()
        act()
        took = time.monotonic() - began
        with asked.open() as log:
            log.seek(before)
            yield name, Counter(re.findall(r" s3_(\w+) ", log.read())), took


def _command(*arguments: str) -> None:
    command = [sys.executable, "-m", "streamkeeper", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def _grow(table: Path) -> None:
    """Add objects to a table, in a commit that names them: one of its files, under other names."""
    logs = sorted((table / "_delta_log").glob("[0-9]*.json"))
    log, lines = logs[-1], [line for one in logs for line in one.read_text().splitlines()]
    added = next(line for line in lines if line.startswith('{"add":'))
    (name,) = re.findall(r'"path":"([^"]+)"', added)
    first = table / name
    commit = ['{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}']
    for number in range(OBJECTS):
        other = f"part-{number:06d}.parquet"
        if number % LINKS:
            os.link(first, table / other)
        else:  # with what the server keeps beside it
            first = shutil.copy2(table / name, table / other)
        commit.append(added.replace(name, other))
    # By the server, which keeps of a file what it has told of it.
    storage = open_storage(f"s3://{BUCKET}/warehouse/events/_delta_log")
    storage.overwrite(f"{int(log.stem) + 1:020d}.json", "\n".join(commit).encode())


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    write_files(path / "data" / "events", 0, FILES, ROWS)
    return path


def main() -> None:
    """Measure and print."""
    print(f"{FILES} batches of {ROWS} rows, {WARM} warm up, {ROUNDS} rounds, local[2]\n{HEADER}", flush=True)
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        with s3_server(scratch / "s3") as server:
            disk = scratch / "s3" / BUCKET
            batches(server, disk, scratch)
            objects(server, disk, scratch)


if __name__ == "__main__":
    enter_environment()
    main()
