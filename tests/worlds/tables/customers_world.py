"""The customers pipeline to try things on: its two flows in one bed, changes and snapshots that arrive, and
the oracle's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.remembered import FOLDER
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.files import FlowHome, LockFiles, query_id
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage, read_json, to_json
from tests.cdc_oracle import DELETE, TRUNCATE, UPSERT, Change, newest
from tests.oracle import counted
from tests.worlds.drivers import batch_of
from tests.worlds.flow_world import Driver, Flowbed, write_rows
from tests.worlds.pipelines import edited
from tests.worlds.tables.cdc_world import all_remembered

INCREMENTAL, SNAPSHOT = "customers_incremental_flow", "customers_snapshot_flow"
COLUMNS = ("customer_id", "name", "email", "city")
DEDUPE = '.dropDuplicates(["customer_id", "sequenceNum"])'
PIPELINE = edited(
    (PROJECT / "spark_jobs" / "pipelines" / "customers.py").read_text(), ('"2 seconds"', '"200 milliseconds"')
)

Event = dict[str, Any]


def without_dedupe() -> str:
    """Give the pipeline as it is after somebody removed its deduplication."""
    return edited(PIPELINE, (DEDUPE, ""))


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
        for name in ("cdc", "snapshot"):
            (root / "data" / "customers" / name).mkdir(parents=True)
        return cls(root, spark, Flowbed.make(root, spark, text, f"customers.{INCREMENTAL}").settings)

    def of(self, flow: str = INCREMENTAL) -> Flowbed:
        """One of the two flows."""
        return Flowbed(self.root, self.spark, self.settings, name=f"customers.{flow}", target="customers")

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
    def locks(self) -> LockFiles:
        return LockFiles(open_storage(self.settings.state), "customers", "customers")

    def home(self, flow: str = INCREMENTAL) -> FlowHome:
        return self.of(flow).home

    def declare(self, text: str) -> None:
        self.of().declare(text)

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
        return write_rows(self.root / "data" / "customers" / folder, self._files, rows)

    def flow(self, name: str = INCREMENTAL) -> Flow:
        return self.of(name).flow()

    def run(self, *flows: str) -> Outcome:
        """Run a driver in this process, of the incremental flow by default, until all that is there is
        done.
        """
        return self.of().run(*(f"customers.{flow}" for flow in flows))

    def driver(self, flow: str = INCREMENTAL) -> AbstractContextManager[Driver]:
        """Run a driver as a real process of spark-submit, in a process group of its own, which ends with the
        block.
        """
        return self.of(flow).driver()

    def reset(self, flow: str = INCREMENTAL) -> Generation:
        """Decide a flow's next generation, as a recovery's step would, and take a park away."""
        return self.of(flow).reset()

    def start(self, number: int = 1) -> Start:
        return self.of().start(number)

    def checkpoint(self) -> Checkpoint:
        return self.of().checkpoint(1)

    def batch(self, flow: str = INCREMENTAL) -> int | None:
        """The last batch that a flow's present driver says it has committed."""
        return batch_of(self.of(flow))

    def rows(self) -> list[Event]:
        frame = self.spark.read.format("delta").load(self.table).drop(BOOKKEEPING)
        return [found.asDict() for found in frame.collect()]

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
        """Rewrite a flow's lease, and the lock if it has it, as those of a driver on another host: then it is
        not proven alive or dead.
        """
        home = self.home(flow)
        elsewhere = {"host": "elsewhere", "boot_id": "another boot"}
        name = home.lease(home.epochs()[-1])
        lease = read_json(home.storage, name)
        assert lease is not None
        home.storage.overwrite(name, to_json({**lease, "process": {**lease["process"], **elsewhere}}))
        name = self.locks.lock(self.locks.numbers()[-1])
        lock = read_json(home.storage, name)
        assert lock is not None
        if lock["flow"] == flow:
            moved = {key: {**lock[key], **elsewhere} for key in ("process", "jvm")}
            home.storage.overwrite(name, to_json({**lock, **moved}))
