"""Every recovery of flows whose state, checkpoints, tables, backups and events are on a real S3 server: after
each, tables are those of an oracle. The events' objects have names that are hard to take for names.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.storage import open_storage
from tests.worlds.sources.file_names import NAMES
from tests.worlds.sources.on_s3 import Streamkeeper, arrive, environment_on_s3, on_s3, rows_of
from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_jars, s3_server

pytestmark = pytest.mark.long

EVENTS = f"s3a://{BUCKET}/in"
SHOP = f"""
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{EVENTS}", schema="event_id STRING, n INT", options={{}})
dp.create_source(
    "changes", format="json", path="{{data}}/changes", schema="id INT, name STRING, at INT, op STRING"
)
dp.create_streaming_table("events")
dp.create_streaming_table("people")

@dp.append_flow(name="clean_events", target="events", sources=["raw"])
def clean_events(raw):
    return raw.dropDuplicates(["event_id"])

dp.create_auto_cdc_flow(
    name="apply_changes", target="people", source="changes", keys=["id"], sequence_by="at",
    apply_as_deletes="op = 'DELETE'", except_column_list=["op", "at"],
)
"""
FLOWS = ("shop.clean_events", "shop.apply_changes")
EVENTS_AT_ONCE = 15
ON_S3 = [name for name in NAMES if min(name) >= " "]
"""S3's lists are XML, which has no control characters; Amazon advises against such keys."""
OTHERS = (f"more[{number}].json" for number in count())


@dataclass
class Shop:
    """The flows, what came to them, and what their tables must be. ``names`` are those of the events' objects
    to come.
    """

    root: Path
    server: str
    command: Streamkeeper
    names: Iterator[str] = field(default_factory=lambda: chain(ON_S3, OTHERS))
    ids: set[int] = field(default_factory=set)
    people: dict[int, str] = field(default_factory=dict)
    came: int = 0

    def come(self) -> None:
        """Let events come, some a second time, and changes, with a delete that an older one follows."""
        self.came += 1
        first = 10 * self.came
        new, folder = range(first - 5, first - 5 + EVENTS_AT_ONCE), open_storage(EVENTS)
        for n in new:
            folder.overwrite(next(self.names), json.dumps({"event_id": f"e{n}", "n": n}).encode())
        self.ids |= {*new}
        upserts = {first: "new", first + 1: "kept", 1: f"changed {self.came}"}
        changes = [
            *({"id": key, "name": name, "at": self.came, "op": "UPSERT"} for key, name in upserts.items()),
            {"id": first, "name": None, "at": self.came + 1, "op": "DELETE"},
            {"id": first, "name": "too late", "at": self.came, "op": "UPSERT"},
        ]
        arrive(self.root, f"{self.came}.json", changes, "changes")
        self.people |= upserts
        del self.people[first]

    def ran(self, *arguments: str) -> str:
        done = self.command(f"http://{self.server}", *arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout

    def run(self) -> None:
        for flow in FLOWS:
            self.ran("run", flow, "--available-now")

    def recover(self, kind: str, *values: str) -> str:
        return self.ran("recover", kind, *values, "--yes")

    def is_exact(self) -> None:
        expected = [{"event_id": f"e{n}", "n": n} for n in sorted(self.ids)]
        assert rows_of(self.server, "events") == expected
        people = [{"id": key, "name": name} for key, name in sorted(self.people.items())]
        kept = rows_of(self.server, "people", "id")
        assert [{"id": row["id"], "name": row["name"]} for row in kept] == people


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with s3_server(tmp_path / "s3") as server:
        for name, value in {**LOGIN, "AWS_ENDPOINT_URL": f"http://{server}"}.items():
            monkeypatch.setenv(name, value)
        yield Shop(tmp_path, server, on_s3(tmp_path, "shop", SHOP))


def test_after_each_recovery_the_tables_are_exact(shop: Shop) -> None:
    shop.come()
    shop.run()
    shop.is_exact()
    assert "- 0 unread files will be read" in shop.ran("plan", "reset_checkpoint", "--flow", FLOWS[0])
    for table in ("events", "people"):
        shop.recover("backup_table", "--table", f"shop.{table}")
    shop.come()
    shop.run()
    shop.is_exact()
    shop.recover("reset_checkpoint", "--flow", FLOWS[0], "--flows", FLOWS[1], "--state", "rebuilt")
    shop.come()
    shop.run()
    shop.is_exact()
    for table in ("events", "people"):
        shop.recover("restore_table", "--table", f"shop.{table}", "--backup", "newest")
    shop.come()
    shop.run()
    shop.is_exact()
    shop.recover("rewind", "--flow", FLOWS[1], "--batch", "3/0", "--target", "restored")
    shop.recover("full_refresh", "--table", "shop.events")
    shop.run()
    shop.is_exact()
    shop.recover("full_refresh_with_backup", "--table", "shop.people", "--fill-from", "sources")
    shop.recover("rebuild_without_downtime", "--table", "shop.events")
    shop.come()
    shop.run()
    shop.is_exact()
    shop.recover("backfill", "--flow", FLOWS[1], "--read", "history")
    shop.recover("tidy_tables", "--pipeline", "shop")
    shop.recover("clean_up", "--pipeline", "shop", "--keep-days", "1")
    shop.come()
    shop.run()
    shop.is_exact()
    for flow in FLOWS:
        said = json.loads(shop.ran("inspect", flow, "--json"))
        assert said["problems"] == []


OLD_JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
events = spark.readStream.schema("event_id STRING, n INT").option("maxFilesPerTrigger", 1).json(sys.argv[1])
query = events.dropDuplicates(["event_id"]).writeStream.format("delta")
query = query.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True)
query.start(sys.argv[3]).awaitTermination()
"""


def test_a_job_whose_checkpoint_is_on_s3_goes_on_there_as_a_flow(shop: Shop) -> None:
    """It reads object by object: Spark alone gets along with such names, but for colons."""
    names = sorted(ON_S3, key=lambda name: ":" in name)
    shop.names = chain(names[:EVENTS_AT_ONCE], reversed(names[EVENTS_AT_ONCE:]))
    shop.come()
    job = shop.root / "old_job.py"
    job.write_text(OLD_JOB)
    delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraClassPath": f"{s3_jars()}/*",
        "spark.sql.shuffle.partitions": "2",
    }
    there = f"s3a://{BUCKET}"
    done = subprocess.run(
        [
            submit.spark_submit(),
            *("--master", "local[2]"),
            *(part for name, value in delta.items() for part in ("--conf", f"{name}={value}")),
            *(str(job), EVENTS),
            *(f"{there}/old/checkpoint", f"{there}/warehouse/events"),
        ],
        env={**os.environ, **environment_on_s3(shop.root, f"http://{shop.server}")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    checkpoint = f"s3://{BUCKET}/old/checkpoint"
    shop.recover("adopt", "--flow", FLOWS[0], "--checkpoint", checkpoint, "--old-job-is-stopped")
    shop.come()
    shop.run()
    shop.is_exact()
