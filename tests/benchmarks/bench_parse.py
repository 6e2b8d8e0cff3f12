"""Seconds that a real Airflow needs to parse Streamkeeper's DAGs with very many flows: ``python
tests/benchmarks/bench_parse.py``.

50, 300 and 1,000 flows, five a pipeline file, are parsed by Airflow's own DagBag, each time in a new
process. Three rows a size: dags/ with the manifest made before, as in every parse but the first, and with the
manifest to be made anew; and the file of three lines that an installation has, with the manifest made
before. What Airflow takes to start is not counted. Below each row: the seconds of each file. Aims: ≤5 s for
1,000 flows, and seconds a flow that do not grow.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from streamkeeper.install.project_files import DAGS
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import PROJECT, Settings
from tests.benchmarks.ratios import enter_environment, print_ratio, rounds

SIZES, A_FILE, ROUNDS = (50, 300, 1_000), 5, rounds()
ROWS = ("made", "recreated", "one file")
AIM = 5.0

PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/%(name)s", schema="id INT, name STRING")


@dp.temporary_view(sources=["raw"])
def distinct(raw):
    return raw.dropDuplicates(["id"])

"""
FLOW = """
dp.create_streaming_table("%(name)s_%(number)d")


@dp.append_flow(
    name="flow_%(number)d", target="%(name)s_%(number)d", sources=["distinct"], trigger="10 seconds"
)
def flow_%(number)d(rows):
    return rows
"""
PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
began = time.perf_counter()
bag = DagBag(sys.argv[1])
took = time.perf_counter() - began
found = [dag for dag in bag.dag_ids if dag.startswith("flow__")]
print("RESULT", json.dumps({"seconds": took, "flows": len(found), "errors": bag.import_errors,
    "files": {stat.file: stat.duration.total_seconds() for stat in bag.dagbag_stats}}))
"""


def main() -> None:
    """Measure and print the table."""
    print(f"{A_FILE} flows a pipeline file, {ROUNDS} rounds, median (range)")
    print(f"{'flows':>6}  {'dags':<10} {'seconds':>24} {'ms/flow':>8}  aim")
    a_flow: dict[tuple[str, int], list[float]] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="bench-parse-") as scratch:
            settings = declare(Path(scratch), size)
            environment = airflow(Path(scratch), settings)
            for row in ROWS:
                took: list[float] = []
                files: dict[str, float] = {}
                for number in range(ROUNDS):
                    prepare(settings, anew=row == "recreated", number=number)
                    seconds, files = parse(environment, size, folder_of(Path(scratch), row))
                    took.append(seconds)
                middle = statistics.median(took)
                a_flow[row, size] = [1000 * one / size for one in took]
                print(
                    f"{size:>6,}  {row:<10} {middle:>8.2f} s ({min(took):.2f}–{max(took):.2f})"
                    f" {1000 * middle / size:>12.2f}  {f'≤{AIM:g} s' if size == SIZES[-1] else ''}",
                    flush=True,
                )
                print(
                    "        "
                    + ", ".join(f"{Path(file).name} {value:.2f}" for file, value in sorted(files.items())),
                    flush=True,
                )
    for row in ROWS:
        least, most = (a_flow[row, size] for size in (SIZES[0], SIZES[-1]))
        print_ratio(f"parse, {row}: {SIZES[-1]:,} flows to {SIZES[0]}", most, least, "ms/flow", "≤1.0")


def declare(root: Path, size: int) -> Settings:
    """Write pipeline files with so many flows together."""
    (root / "pipelines").mkdir()
    for number in range(size // A_FILE):
        name = f"pipeline_{number:04d}"
        flows = "".join(FLOW % {"name": name, "number": flow} for flow in range(A_FILE))
        (root / "pipelines" / f"{name}.py").write_text(PIPELINE % {"name": name} + flows)
    places = {name: str(root / name.lower()) for name in ("STATE", "WAREHOUSE", "DATA", "PIPELINES")}
    return Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in places.items()})


def airflow(root: Path, settings: Settings) -> dict[str, str]:
    """Give the environment of an Airflow that parses, with a database of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {
        **kept,
        **settings.as_environment(),
        "AIRFLOW_HOME": str(root / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "plugins")]),
    }
    subprocess.run(
        [str(Path(sys.executable).with_name("airflow")), "db", "migrate"],
        env=environment,
        check=True,
        capture_output=True,
    )
    return environment


def prepare(settings: Settings, anew: bool, number: int) -> None:
    """Have the manifest made, or change a file so that none fits: only the changed hash makes Airflow make it
    anew.
    """
    read_manifest(settings)
    if anew:
        file = min(settings.pipelines.glob("*.py"))
        file.write_text(f"{file.read_text()}# round {number}\n")


def folder_of(scratch: Path, row: str) -> Path:
    """Return the folder of DAG files of a row."""
    if row != "one file":
        return PROJECT / "dags"
    folder = scratch / "dags"
    folder.mkdir(exist_ok=True)
    (folder / "streamkeeper_dags.py").write_text(DAGS)
    return folder


def parse(environment: dict[str, str], size: int, folder: Path) -> tuple[float, dict[str, float]]:
    """Let a process parse a folder; give the seconds, all and of each file. It ends the bench where a flow is
    missing.
    """
    command = [sys.executable, "-c", PARSE, str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not said:
        sys.exit(
            "Airflow did not parse dags/ (exit"
            f" {done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    result = json.loads(said[-1].removeprefix("RESULT "))
    if result["errors"] or result["flows"] != size:
        sys.exit(f"{result['flows']} of {size} flows were found: {result['errors']}")
    return float(result["seconds"]), dict(result["files"])


if __name__ == "__main__":
    enter_environment()
    main()
