"""What processes take of the machine, as the kernel tells: memory, threads, descriptors, processor time."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MEMORY = re.compile(r"^(Pss|Rss): +([0-9]+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """What some processes take: their number, MiB (``memory`` counts a page that several have once,
    ``resident`` for each), threads, open descriptors, and seconds of processor time since they began, those
    of their ended children included.
    """

    processes: int
    memory: float
    resident: float
    threads: int
    descriptors: int
    cpu: float


def usage(pids: Iterable[int]) -> Usage:
    """Measure some processes; one that ends meanwhile is left out."""
    sums = Counter[str]()
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            memory = dict(_MEMORY.findall((folder / "smaps_rollup").read_text()))
            threads, descriptors = (len(list((folder / name).iterdir())) for name in ("task", "fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not memory:  # a zombie
            continue
        # Fields 14 to 17 of proc(5): its own time, and that of children that have ended.
        ticks = sum(map(int, fields[11:15]))
        sums.update(processes=1, threads=threads, descriptors=descriptors, ticks=ticks)
        sums.update({name: int(size) for name, size in memory.items()})
    return Usage(
        sums["processes"],
        sums["Pss"] / 1024,
        sums["Rss"] / 1024,
        sums["threads"],
        sums["descriptors"],
        sums["ticks"] / _TICKS,
    )
