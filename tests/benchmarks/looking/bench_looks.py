"""What one look at all flows costs, for the page, the metrics and the command line: ``python
tests/benchmarks/looking/bench_looks.py``.

Each row is the time a flow of one look, against a plain read of the same files by the same number of flows.
The aims: at most 1 ms a flow for 1,000 flows, and no more than for 100. What a driver writes of a batch, its
heartbeat and the numbers of the recent ones, takes at most 1 % of a batch of one second. One look serves all
who ask in three seconds; below, what each of them costs, and the size of that answer.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "plugins"))

from streamkeeper_airflow.page.patience import Patience

from streamkeeper.health import flows as health
from streamkeeper.health import metrics
from streamkeeper.health.recoveries import Recoveries
from streamkeeper.storage import LocalStorage
from tests.benchmarks.ratios import HEADER, print_ratio, rounds
from tests.worlds.flows import many_flows

SIZES = (100, 1_000)
ROUNDS = rounds(7)
AIM = "≤1 ms a flow"


class Recorded(LocalStorage):
    """Storage that keeps what it was asked to read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.files = list[str]()

    def read(self, name: str, most: int | None = None) -> bytes | None:
        content = super().read(name, most)
        if content is not None:
            self.files.append(self.path(name))
        return content


def measure(root: Path, flows: int) -> None:
    """Print the rows of a number of flows."""
    world, manifest = many_flows.make(root, flows)
    recorded, storage = Recorded(world.settings.state), LocalStorage(world.settings.state)
    rows = health.look_at_all(recorded, manifest)
    assert {row.state for row in rows} == {"running"}, {row.detail for row in rows}
    seen = metrics.Snapshot(rows, Recoveries({}, {}), None, time.time())
    patience = Patience(30.0, 16)
    bare = a_flow(flows, lambda: [Path(file).read_bytes() for file in recorded.files])
    for what, look in {
        "look": lambda: health.look_at_all(storage, manifest),
        "look that waits for no flow (page)": lambda: health.look_at_all(storage, manifest, ask=patience.ask),
        "rows as JSON": lambda: json.dumps([row.to_json() for row in rows]),
        "rows as metrics": lambda: metrics.text(metrics.measure(seen)),
    }.items():
        print_ratio(f"{flows:,} flows: {what}", a_flow(flows, look), bare, "ms", AIM)
    home = many_flows.home_of(world.settings, next(iter(manifest.flows())))
    batch = [1000.0 + taken for taken in a_flow(1, lambda: many_flows.go_on(home, 1))]
    print_ratio(f"{flows:,} flows: a batch of a second, told", batch, [1000.0] * len(batch), "ms", "≤1.01")
    told = json.dumps([row.to_json() for row in rows]).encode()
    packed = len(gzip.compress(told, 5))
    print(
        f"{flows:,} flows: {len(recorded.files) / flows:.1f} files a flow are read; the page's answer has"
        f" {len(told) / 1e3:,.0f} kB, {packed / 1e3:,.0f} kB as it is sent, the metrics"
        f" {len(metrics.text(metrics.measure(seen))) / 1e3:,.0f} kB"
    )


def a_flow(flows: int, action: Callable[[], object]) -> list[float]:
    """Give the milliseconds a flow of several runs, after one that is not counted."""
    action()
    taken = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        action()
        taken.append(1000 * (time.perf_counter() - before) / flows)
    return taken


def main() -> None:
    """Print the table."""
    print(f"{ROUNDS} rounds; bare: a plain read of the same files\n{HEADER}")
    for flows in SIZES:
        with tempfile.TemporaryDirectory(prefix="bench-looks-") as scratch:
            measure(Path(scratch), flows)


if __name__ == "__main__":
    main()
