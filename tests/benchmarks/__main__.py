"""Run benchmarks one after another, and print the ratios of all in one table: ``python -m tests.benchmarks
[NAME …]``; ``make bench``.

A NAME is what stands between ``bench_`` and ``.py``; without one, all are run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.ratios import HEADER, KEPT, enter_environment

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    """Return 0, 1 where a benchmark failed (the others are run all the same), or 2 for a name that none
    has.
    """
    known = {file.stem.removeprefix("bench_"): file for file in sorted(HERE.rglob("bench_*.py"))}
    if unknown := [name for name in names if name not in known]:
        print(
            f"error: there is no benchmark {', '.join(unknown)}; there are {', '.join(known)}.",
            file=sys.stderr,
        )
        return 2
    enter_environment()
    failed, table = [], list[str]()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for name in names or known:
            print(f"\n=== {name} ===", flush=True)
            kept = Path(scratch) / name
            if subprocess.run(
                [sys.executable, known[name]], env={**os.environ, KEPT: str(kept)}, check=False
            ).returncode:
                failed.append(name)
            rows = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
            table += [f"{name}", *(f"  {row}" for row in rows)] if rows else []
    print("\n".join(["", f"  {HEADER}", *table]))
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
