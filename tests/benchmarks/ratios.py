"""What all benchmarks share: the environment that they run in, how many rounds, and the rows of their table.

A row is printed at once, and also kept in the file that :data:`KEPT` names, of which ``python -m
tests.benchmarks`` makes one table.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamkeeper.jars.folder import JarsError, jar_paths
from streamkeeper.jars.java import JavaError, find_java

KEPT = "STREAMKEEPER_BENCH_ROWS"
NEEDED = ("spark-submit", "airflow")
HEADER = f"{'':<46} {'ours':>10} {'bare':>10} {'':<7} {'ratio':>6}  (range)      aim"


def rounds(default: int = 5) -> int:
    """Return how often each side is measured: ``ROUNDS``, or the benchmark's own number."""
    return int(os.environ.get("ROUNDS") or default)


def enter_environment() -> None:
    """Let every process that a benchmark starts find the programs beside this Python; end at once, saying all
    that lacks.
    """
    beside = Path(sys.executable).parent
    wrong = [f"{beside} has no {name}" for name in NEEDED if not os.access(beside / name, os.X_OK)]
    for look in (find_java, jar_paths):
        try:
            look()
        except (JavaError, JarsError) as error:
            wrong.append(str(error))
    if wrong:
        needed = "Run `make setup`, and start it by `make bench NAME=…` or by .venv/bin/python."
        sys.exit(
            "\n".join(["error: this benchmark cannot run here:", *(f"- {item}" for item in wrong), needed])
        )
    os.environ["PATH"] = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let a function run in a thread while the block does; its event is set when the block is over."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def print_ratio(what: str, ours: Sequence[float], bare: Sequence[float], unit: str, aim: str) -> None:
    """Print a row, and keep it for the table of all: both medians, and the median of the ratios pair by pair
    with its range.
    """
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    middle = f"{statistics.median(ours):10,.2f} {statistics.median(bare):10,.2f} {unit:<7}"
    row = (
        f"{what:<46} {middle} {statistics.median(ratios):6.2f}  ({min(ratios):.2f}–{max(ratios):.2f})  {aim}"
    )
    print(row, flush=True)
    if kept := os.environ.get(KEPT):
        with Path(kept).open("a", encoding="utf-8") as file:
            file.write(f"{row}\n")
