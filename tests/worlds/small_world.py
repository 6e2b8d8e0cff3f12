"""A small world for tests of the core: pipelines, data, a table's log and a checkpoint, written by hand as
Spark and Delta write them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from streamkeeper.checkpoint import (
    CommitEntry,
    FileEntry,
    OffsetEntry,
    write_commit,
    write_files_log,
    write_initial_offsets,
    write_offsets,
)
from streamkeeper.flows import generations, holds
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.manifest.import_all import Imported, import_here
from streamkeeper.manifest.manifest import Flow, Manifest, make_manifest, read_manifest
from streamkeeper.preflight import last_run
from streamkeeper.settings import Settings
from streamkeeper.storage import LocalStorage
from streamkeeper.support.user_environment import environment

EVENTS = """
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{data}/events", schema="event_id STRING", options={})
dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources=["events_raw"])
def clean_events(raw):
    return raw
"""

FILES = 'format="json", path="{data}/events", schema="event_id STRING", options={}'
"""The source of these events."""

RATE = EVENTS.replace(FILES, 'format="rate"')
"""The same flow, of the source that makes rows by the clock."""

CHANGES = """
from streamkeeper import pipelines as dp

dp.create_source("events_raw", format="json", path="{data}/events", \
schema="event_id STRING, n INT", options={})
dp.create_streaming_table("events")
dp.create_auto_cdc_flow(name="clean_events", target="events", source="events_raw", \
keys=["event_id"], sequence_by="n"%s)
"""
"""The same flow, by AUTO CDC; ``CHANGES % ", once=True"`` runs once."""

READER = """
from streamkeeper import pipelines as dp
dp.create_source("theirs", format="delta", table="events")
dp.create_streaming_table("copies")

@dp.append_flow(name="copy_events", target="copies", sources=["theirs"])
def copy_events(theirs):
    return theirs
"""
"""A flow that reads the table of the first as a stream."""

Tree = dict[str, str]


def write_manifest(settings: Settings) -> Manifest:
    """Write the manifest from an import in this process: one of its own takes longer."""
    return make_manifest(settings, _import)


def _import(settings: Settings, files: Sequence[Path]) -> Iterator[Imported]:
    with patch.dict(os.environ, environment(settings), clear=True):
        yield from import_here(files, settings.data)


@dataclass
class World:
    """Folders of one test. ``clock_ms`` is the modification time that the next data file gets; each takes a
    minute.

    ``name`` is the flow of ``pipeline`` that is driven and looked at, ``table`` the table that it writes,
    ``source`` what it reads: files of ``folder`` in the folder of data. ``more`` are further settings.
    """

    root: Path
    clock_ms: int = 1_790_000_000_000
    files: list[Path] = field(default_factory=list)
    name: str = "clean_events"
    table: str = "events"
    pipeline: str = "events"
    source: str = "events_raw"
    folder: str = "events"
    more: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of this world; short terms, so that waits end."""
        return Settings.from_environment(self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make another process live in this world."""
        named = {name: str(self.root / name) for name in ("pipelines", "state", "warehouse", "data", "jars")}
        short = {"STREAMKEEPER_LEASE_TERM": "0.6", "STREAMKEEPER_HEARTBEAT_INTERVAL": "0.1"}
        return {
            **{f"STREAMKEEPER_{name.upper()}": path for name, path in named.items()},
            **short,
            **self.more,
        }

    def enter(self, patch: pytest.MonkeyPatch) -> None:
        """Let this process live in this world, as ada."""
        for name, value in {**self.environment, "LOGNAME": "ada"}.items():
            patch.setenv(name, value)

    @property
    def home(self) -> FlowHome:
        """Where the flow is kept."""
        return FlowHome(LocalStorage(self.settings.state), self.pipeline, self.name)

    @property
    def query_id(self) -> str:
        """The query id of generation 1."""
        return query_id(f"{self.pipeline}.{self.name}", 1)

    @property
    def flow(self) -> Flow:
        """The flow as the manifest has it."""
        return read_manifest(self.settings).find(f"{self.pipeline}.{self.name}")

    def declare(self, text: str = EVENTS, name: str = "events.py") -> None:
        """Write a pipeline file."""
        file = self.root / "pipelines" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_files(self, count: int, rows: int = 2) -> list[Path]:
        """Put data files into the flow's source, each a minute younger than the one before."""
        folder = self.root / "data" / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        new = []
        for number in range(len(self.files), len(self.files) + count):
            file = folder / f"f{number:03d}.json"
            file.write_text(
                "".join(json.dumps({"event_id": f"{number}-{row}"}) + "\n" for row in range(rows))
            )
            os.utime(file, (self.clock_ms / 1000, self.clock_ms / 1000))
            self.clock_ms += 60_000
            new.append(file)
        self.files += new
        return new

    def begin(
        self,
        batches: list[list[Path]],
        committed: int,
        transactions: int,
        operators: tuple[str, ...] = (),
        number: int = 1,
    ) -> Start:
        """Let a generation begin and process: ``batches`` were planned, the first ``committed`` of them have
        commits, and the table has the first ``transactions`` of them.
        """
        write_manifest(self.settings)
        generation = generations.read(self.home, number) or generations.decide(
            self.home, generations.first(self.home, self.flow.fingerprint)
        )
        folder = self.home.checkpoint(number, 1)
        start = generations.begin(
            self.home, Start(number, folder, None, {}, {}, operators, None, 1, "2026-11-21T10:00:00+00:00")
        )
        write_checkpoint(
            self.home.storage, folder, generation, batches, committed, operators=operators, source=self.source
        )
        self.write_table(generation.query_id, transactions)
        return start

    def ran(self, *sources: str) -> None:
        """Write down that the driver of generation 1 read these sources; by default, the flow's own."""
        names = sources or tuple(source.name for source in self.flow.sources)
        places = dict.fromkeys(names, "json")
        last_run.keep(self.home, 1, last_run.LastRun(self.flow.fingerprint, places, (), ()))

    def version(self, number: int) -> Path:
        """The file of a commit of the table."""
        return self.root / "warehouse" / self.table / "_delta_log" / f"{number:020d}.json"

    def newest(self) -> int:
        """The newest version of the table; -1 where there is none."""
        return max((int(file.stem) for file in self.version(0).parent.glob("*.json")), default=-1)

    def commit(self, *actions: dict[str, Any], **info: Any) -> int:
        """Write the next commit of the table, which says ``info`` of itself, and give its version."""
        file = self.version(self.newest() + 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ({"commitInfo": info}, *actions) if info else actions
        file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        return int(file.stem)

    def summarize(self, schema: str = "{}", **properties: str) -> None:
        """Write what Delta writes beside the table's newest commit."""
        metadata = {"id": "t", "configuration": properties, "schemaString": schema}
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        summary = {"numFiles": 3, "tableSizeBytes": 4096, "protocol": protocol, "metadata": metadata}
        self.version(self.newest()).with_suffix(".crc").write_text(json.dumps(summary))

    def write_table(self, query_id: str, transactions: int) -> None:
        """Write the table's log: its first commit, and one with a ``txn`` action for each batch."""
        if self.newest() < 0:
            self.commit({"metaData": {"id": "t"}})
        for batch in range(transactions):
            self.commit({"txn": {"appId": query_id, "version": batch, "lastUpdated": 1}})

    def processed(
        self,
        batches: int,
        per_batch: int = 1,
        committed: int | None = None,
        transactions: int | None = None,
        **begin: Any,
    ) -> Start:
        """The usual: so many batches of so many files each, all of them committed and in the table unless
        said otherwise.
        """
        groups = [self.add_files(per_batch) for _ in range(batches)]
        done = batches if committed is None else committed
        return self.begin(groups, done, done if transactions is None else transactions, **begin)

    def committed(self, text: str, batch: int, offset: Any, initial: Any = None, **evidence: Any) -> None:
        """Declare a flow of any kind of source, ``events_raw``, and let it have committed up to a batch,
        which read up to an offset.

        :param initial: where it was first read from, for Kafka.
        """
        self.declare(text)
        write_manifest(self.settings)
        generation = generations.decide(self.home, generations.first(self.home, self.flow.fingerprint))
        folder, storage = self.home.checkpoint(1, 1), self.home.storage
        generations.begin(
            self.home, Start(1, folder, None, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00", evidence)
        )
        storage.overwrite(f"{folder}/metadata", json.dumps({"id": generation.query_id}).encode())
        entry = OffsetEntry(
            batch, 2, 0, int(time.time() * 1000), {}, {"events_raw": offset}, {"sourceMetadataInfo": {}}
        )
        storage.overwrite(f"{folder}/offsets/{batch}", write_offsets(entry))
        storage.overwrite(f"{folder}/commits/{batch}", write_commit(CommitEntry(batch, 1, 0)))
        if initial is not None:
            storage.overwrite(f"{folder}/sources/events_raw/0", write_initial_offsets(initial))
        self.write_table(generation.query_id, batch + 1)

    def tree(self) -> Tree:
        """Hash every file of the world but the manifests, which are made by looking, and the recoveries' own
        ledgers.
        """
        return {
            str(file.relative_to(self.root)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(self.root.rglob("*"))
            if file.is_file() and "manifests" not in file.parts and "__pycache__" not in file.parts
        }

    def park(self, generation: int = 1, stateful: bool | None = False) -> None:
        """Park the flow as its driver does after 42K03."""
        details = {
            "classed": "needs recovery",
            "condition": "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
            "sql_state": "42K03",
            "meaning": "a stateful operation was removed",
            "recovery": "reset_checkpoint",
            "fingerprint": self.flow.fingerprint,
            "generation": generation,
            "stateful": stateful,
        }
        holds.put(self.home, holds.PARK, "a stateful operation was removed", "driver", details)


def write_checkpoint(
    storage: LocalStorage | Any,
    folder: str,
    generation: Generation,
    batches: list[list[Path]],
    committed: int,
    *,
    operators: tuple[str, ...] = (),
    source: str = "events_raw",
) -> None:
    """Write a checkpoint of one files source, as Spark does with offset log v2 and named sources."""
    storage.overwrite(f"{folder}/metadata", json.dumps({"id": generation.query_id}).encode())
    for number, files in enumerate(batches):
        entries = [
            FileEntry(f"file://{file}", file.stat().st_mtime_ns // 1_000_000, number) for file in files
        ]
        storage.overwrite(f"{folder}/sources/{source}/{number}", b"".join(write_files_log(entries)))
        offsets = OffsetEntry(
            number,
            2,
            0,
            int(time.time() * 1000),
            {},
            {source: {"logOffset": number}},
            {"sourceMetadataInfo": {}},
        )
        storage.overwrite(f"{folder}/offsets/{number}", write_offsets(offsets))
        if number < committed:
            storage.overwrite(f"{folder}/commits/{number}", write_commit(CommitEntry(number, 1, 0)))
    for number, name in enumerate(operators):
        info = {
            "operatorInfo": {"operatorId": number, "operatorName": name},
            "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}],
        }
        storage.overwrite(f"{folder}/state/{number}/_metadata/metadata", b"v1\n" + json.dumps(info).encode())
