"""The customers pipeline to try things on: its two flows in one bed, changes and snapshots that arrive, and
the oracle's table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.remembered import FOLDER
from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, TableTurns, query_id
from streamkeeper.flows.generations import AFTER_LAST, REBUILT, Generation, Start, StartAt
from streamkeeper.manifest.import_file import fingerprint, load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from streamkeeper.times import now
from tests.cdc_oracle import DELETE, TRUNCATE, UPSERT, Change, newest
from tests.oracle import counted
from tests.worlds.flow_world import FIRST_FILE, Driver, quick_settings, running_driver
from tests.worlds.pipelines import edited
from tests.worlds.tables.cdc_world import all_remembered

INCREMENTAL, SNAPSHOT = "customers_incremental_flow", "customers_snapshot_flow"
COLUMNS = ("customer_id", "name", "email", "city")
DEDUPE = '.dropDuplicates(["customer_id", "sequenceNum"])'
PIPELINE = edited(
    (PROJECT / "spark_jobs" / "pipelines" / "customers.py").read_text(), ('"2 seconds"', '"200 milliseconds"')
)

Event = dict[str, Any]


def without_dedupe(text: str = PIPELINE) -> str:
    """Give the pipeline as it is after somebody removed its deduplication."""
    return edited(text, (DEDUPE, ""))


def row(number: int, version: int = 0) -> Event:
    """Make a customer's stored columns; everything follows from the two numbers."""
    return {
        "customer_id": number,
        "name": f"n{number}.{version}",
        "email": f"{number}@{version}.example",
        "city": f"c{version % 5}",
    }


def upsert(number: int, sequence: int) -> Event:
    return {
        **row(number, sequence),
        "operation": "INSERT" if sequence % 2 else "UPDATE",
        "sequenceNum": sequence,
    }


def delete(number: int, sequence: int) -> Event:
    return {"customer_id": number, "operation": "DELETE", "sequenceNum": sequence}


def truncate(sequence: int) -> Event:
    return {"operation": "TRUNCATE", "sequenceNum": sequence}


def change_of(event: Event) -> Change:
    """Give an event as the oracle knows it; a row of the snapshot has no operation and the sequence 0."""
    kind = {"DELETE": DELETE, "TRUNCATE": TRUNCATE}.get(event.get("operation", ""), UPSERT)
    stored = {name: event.get(name) for name in COLUMNS}
    return Change(
        kind, (event.get("customer_id"),), event.get("sequenceNum", 0), stored if kind == UPSERT else None
    )


@dataclass
class CustomersBed:
    """Folders of its own for the two flows. ``events`` and ``snapshot`` are all that was written."""

    root: Path
    spark: SparkSession
    settings: Settings
    events: list[Event] = field(default_factory=list)
    snapshot: list[Event] = field(default_factory=list)
    _files: int = 0

    @classmethod
    def make(cls, root: Path, spark: SparkSession, text: str = PIPELINE) -> CustomersBed:
        for name in ("pipelines", "data/customers/cdc", "data/customers/snapshot"):
            (root / name).mkdir(parents=True)
        settings = quick_settings(root)
        bed = cls(root, spark, settings)
        bed.declare(text)
        return bed

    @property
    def table(self) -> str:
        return self.settings.table_path("customers")

    def remembered(self) -> DataFrame:
        """Give all that the table remembers beside its rows."""
        return all_remembered(self.spark, self.table)

    def runs(self) -> set[Path]:
        """Give the files of remembered changes, also of batches that are not committed."""
        return set(Path(self.table, FOLDER).glob("*/*.parquet"))

    @property
    def turns(self) -> TableTurns:
        return TableTurns(open_storage(self.settings.state), "customers", "customers")

    def home(self, flow: str = INCREMENTAL) -> FlowHome:
        return FlowHome(open_storage(self.settings.state), "customers", flow)

    def declare(self, text: str) -> None:
        aside = self.root / "customers.py.new"
        aside.write_text(text)
        aside.replace(self.root / "pipelines" / "customers.py")

    def change(self, *events: Event) -> Path:
        """Write one file of changes."""
        self.events += events
        return self._write("cdc", events)

    def take_snapshot(self, *numbers: int) -> Path:
        """Write one file of the first snapshot."""
        rows = [row(number) for number in numbers]
        self.snapshot += rows
        return self._write("snapshot", rows)

    def _write(self, folder: str, rows: Sequence[Event]) -> Path:
        self._files += 1
        target = self.root / "data" / "customers" / folder / f"{self._files:04d}.json"
        aside = target.with_name(f".{target.name}")
        aside.write_text("".join(json.dumps(item) + "\n" for item in rows))
        os.utime(
            aside, (FIRST_FILE + self._files, FIRST_FILE + self._files)
        )  # Spark reads files in the order of their times
        return aside.rename(target)

    def flow(self, name: str = INCREMENTAL) -> Flow:
        loaded = load_pipeline(self.settings.pipelines / "customers.py", self.settings.data)
        declared = loaded.flow(name)
        assert declared is not None
        return Flow(loaded, declared, fingerprint(loaded, declared))

    def run(self, *flows: str) -> Outcome:
        """Run a driver in this process, of the incremental flow by default, until all that is there is
        done.
        """
        from streamkeeper_jobs.driver.application import run

        return run(
            self.settings, [f"customers.{flow}" for flow in flows or (INCREMENTAL,)], available_now=True
        )

    @contextmanager
    def driver(self, flow: str = INCREMENTAL, *arguments: str) -> Iterator[Driver]:
        """Run a driver as a real process of spark-submit, in a process group of its own, which ends with the
        block.
        """
        log = self.root / f"{flow}-{time.monotonic_ns()}.log"
        with running_driver(
            self.settings, [*submit.driver(self.settings, [self.flow(flow)]).command(), *arguments], log
        ) as driver:
            yield driver

    def reset(
        self, flow: str = INCREMENTAL, start: StartAt | None = None, state: str = REBUILT
    ) -> Generation:
        """Decide a flow's next generation, as a recovery's step would, and take a park away."""
        home = self.home(flow)
        before = generations.latest(home)
        assert before is not None
        began = generations.read_start(home, before.number)
        decided = Generation(
            number=before.number + 1,
            previous=before.number,
            start=start or StartAt(AFTER_LAST),
            state=state,
            query_id=query_id(home.full_name, before.number + 1),
            why="a test",
            by="a test",
            at=now(),
            fingerprint=self.flow(flow).fingerprint,
            recovery="test-recovery",
            schemas=began.schemas if began else {},
        )
        generations.decide(home, decided)
        holds.release(home, holds.PARK)
        return decided

    def start(self, number: int = 1, flow: str = INCREMENTAL) -> Start:
        found = generations.read_start(self.home(flow), number)
        assert found is not None, f"generation {number} of {flow} did not begin"
        return found

    def checkpoint(self, number: int = 1, flow: str = INCREMENTAL) -> Checkpoint:
        return Checkpoint(self.home(flow).storage, self.start(number, flow).checkpoint)

    def batch(self, flow: str = INCREMENTAL) -> int | None:
        """The last batch that a flow's present driver says it has committed."""
        lease = leases.current(self.home(flow))
        beat = leases.read_heartbeat(self.home(flow), lease.epoch) if lease else None
        return beat.batch if beat else None

    def rows(self) -> list[Event]:
        frame = self.spark.read.format("delta").load(self.table).drop(BOOKKEEPING)
        return [found.asDict() for found in frame.collect()]

    def table_version(self) -> int | None:
        """The newest version of the target."""
        return delta_log.latest_version(self.table)

    def in_target(self, flow: str = INCREMENTAL) -> int | None:
        """Give the last batch of a flow's first generation that the target has."""
        return delta_log.last_transaction(self.table, query_id(self.home(flow).full_name, 1)).version

    def expected(self, events: Sequence[Event] | None = None) -> list[Event]:
        """What the oracle makes of all that was written, or of some events."""
        return newest(
            change_of(event) for event in ([*self.events, *self.snapshot] if events is None else events)
        )

    def is_exact(self, events: Sequence[Event] | None = None) -> None:
        """Assert that the table is what the oracle says, and that the snapshot and the changes have made it
        so.
        """
        found, wanted = counted(self.rows(), COLUMNS), counted(self.expected(events), COLUMNS)
        assert found == wanted, f"too many: {set(found) - set(wanted)}; too few: {set(wanted) - set(found)}"

    def say_it_is_on_another_host(self, flow: str) -> None:
        """Rewrite a flow's lease, and the turn if it has it, as those of a driver on another host: then it is
        not proven alive or dead.
        """
        from streamkeeper.storage import read_json, to_json

        home = self.home(flow)
        elsewhere = {"host": "elsewhere", "boot_id": "another boot"}
        name = home.lease(home.epochs()[-1])
        lease = read_json(home.storage, name)
        assert lease is not None
        home.storage.overwrite(name, to_json({**lease, "process": {**lease["process"], **elsewhere}}))
        name = self.turns.turn(self.turns.numbers()[-1])
        turn = read_json(home.storage, name)
        assert turn is not None
        if turn["flow"] == flow:
            moved = {key: {**turn[key], **elsewhere} for key in ("process", "jvm")}
            home.storage.overwrite(name, to_json({**turn, **moved}))


def with_settings(bed: CustomersBed, **changes: Any) -> CustomersBed:
    """Give the bed with other settings."""
    return replace(bed, settings=replace(bed.settings, **changes))
