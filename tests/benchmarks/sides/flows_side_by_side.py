"""A flow of Streamkeeper and the same query written by hand, over the same files, each as a spark-submit of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.declare.driver import OURS
from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.settings import PROJECT, Settings

BARE = Path(__file__).with_name("bare_query.py")
NAME = "events.clean_events"

PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source(
    "events_raw", format="json", path="{{data}}/events", options={{"maxFilesPerTrigger": {files}}},
    schema="event_id STRING, user_id INT, kind STRING, amount DOUBLE, event_time TIMESTAMP",
)

dp.create_streaming_table("events"{table})
dp.create_streaming_table("refused")

{expect}@dp.append_flow(name="clean_events", target="events", sources=["events_raw"]{flow})
def clean_events(events):
    return events{view}
"""
VIEWS = {"dedupe": '.dropDuplicates(["event_id"])', "plain": ""}


@dataclass(frozen=True)
class Bench:
    """Folders of one measurement: ``data``, and beside it what Streamkeeper and what the bare query write."""

    root: Path
    files_per_trigger: int

    @property
    def settings(self) -> Settings:
        """Streamkeeper's settings for these folders."""
        places = {
            f"STREAMKEEPER_{name.upper()}": str(self.root / name)
            for name in ("pipelines", "state", "warehouse", "data")
        }
        return Settings.from_environment({**places, "STREAMKEEPER_JARS": str(PROJECT / ".cache" / "jars")})

    @property
    def table(self) -> Path:
        """The table that Streamkeeper writes."""
        return self.root / "warehouse" / "events"

    @property
    def bare_table(self) -> Path:
        """The table that the bare query writes."""
        return self.root / "bare" / "events"

    @property
    def bare(self) -> str:
        """The folder of the bare query, as Spark is told it."""
        return str(self.root / "bare")

    def declare(self, view: str, expect: str = "", *, named: bool = False) -> None:
        """Write the pipeline file with one of :data:`VIEWS`, and with decorators that expect something.

        :param named: whether the table has a name in a Hive metastore on Derby, beside the other folders.
        """
        metastore = {
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{self.root}/metastore;create=true",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.sql.warehouse.dir": f"{self.root}/hive",
        }
        self.settings.pipelines.mkdir(parents=True, exist_ok=True)
        (self.settings.pipelines / "events.py").write_text(
            PIPELINE.format(
                files=self.files_per_trigger,
                view=VIEWS[view],
                expect=expect,
                table=', registered_as="default.events"' if named else "",
                flow=f", spark_conf={metastore}" if named else "",
            )
        )

    def flow(self) -> Flow:
        """Give the flow as it is declared now."""
        return read_manifest(self.settings).find(NAME)

    def run_flow(self) -> float:
        """Run the driver over what is there; give when it was started, in seconds since the epoch."""
        return self.run(submit.driver(self.settings, [self.flow()], available_now=True).command())

    def run_bare(self, view: str, checkpoint: str = "checkpoint") -> float:
        """Run the bare query over what is there, with the same Spark settings; give when it was started."""
        ours = [name for name in OURS if name.startswith(("spark.sql.streaming", "spark.delta.logStore"))]
        confs = {
            name: value
            for name, value in submit.spark_settings(self.settings, self.flow().declaration).items()
            if name not in ours
        }
        arguments = [
            f"{self.settings.data}/events",
            f"{self.bare}/{self.bare_table.name}",
            f"{self.bare}/{checkpoint}",
            str(self.files_per_trigger),
            view,
        ]
        flags = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
        return self.run([submit.spark_submit(), "--master", "local[2]", *flags, str(BARE), *arguments])

    def run(self, command: Sequence[str]) -> float:
        """Run an application; give when it was started."""
        started = time.time()
        done = subprocess.run(
            command,
            env={**os.environ, **submit.environment(self.settings)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(
                f"{command[0]} … ended with exit code"
                f" {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        return started


def write_files(folder: Path, first: int, files: int, rows: int, age: float = 0.0) -> None:
    """Write event files of ``rows`` rows each, every tenth row a repetition; the ids go on from ``first *
    rows``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + files):
        lines = []
        for row in range(rows):
            event = number * rows + row - (row % 10 == 9)
            made = {
                "event_id": f"e{event:012d}",
                "user_id": event % 997,
                "kind": "view",
                "amount": event % 100 / 4,
                "event_time": "2026-01-01T00:00:00Z",
            }
            lines.append(json.dumps(made))
        aside = folder / f".{number:06d}"
        aside.write_text("\n".join(lines) + "\n")
        moment = time.time() - age + number / 1000
        os.utime(aside, (moment, moment))
        aside.replace(folder / f"{number:06d}.json")


def commits_with_data(table: Path) -> list[float]:
    """Give when each commit of a Delta table that added data was written, in seconds since the epoch, oldest
    first.
    """
    files = sorted((table / "_delta_log").glob("[0-9]*.json"))
    return [file.stat().st_mtime for file in files if '"add":' in file.read_text()]
