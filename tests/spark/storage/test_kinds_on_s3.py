"""Kinds of flows whose state, checkpoint and sink are on a real S3 server: each is killed between a commit of
its sink and that of its checkpoint and goes on, and its rows are those of the oracle that it has elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyarrow import dataset
from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import Flow
from streamkeeper.readers import drop_repeats
from streamkeeper.settings import Settings
from tests.oracle import counted
from tests.worlds.drivers import batch_of, kill_after_the_sinks_commit
from tests.worlds.flow_world import COLUMNS, Flowbed
from tests.worlds.flows.sinks import in_topic, into_files, into_function, into_topic, make_topic, topic_holds
from tests.worlds.recover.results import MODES, is_exact, totals
from tests.worlds.sources.on_s3 import environment_on_s3
from tests.worlds.sources.s3_proxy import proxy
from tests.worlds.sources.s3_server import BUCKET, s3_server
from tests.worlds.states import shapes

pytestmark = pytest.mark.long

THERE = f"s3a://{BUCKET}"


class OnS3(Flowbed):
    """A flow on S3, whose server keeps an object as a file of that path."""

    @property
    def disk(self) -> Path:
        return self.root / "s3" / BUCKET

    @property
    def table(self) -> Path:
        return self.disk / "warehouse" / self.target

    def read_all(self, flows: Sequence[Flow]) -> None:
        """Run a driver, which is a process, until all that is there is done."""
        done = subprocess.run(
            submit.driver(self.settings, flows, available_now=True).command(),
            env={**os.environ, **submit.environment(self.settings)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]

    def of(self, target: str) -> OnS3:
        """The same with another table."""
        return replace(self, target=target)


@pytest.fixture
def on_s3(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., OnS3]]:
    def make(text: str, **named: str) -> OnS3:
        bed = OnS3.make(tmp_path, spark, text, **named)
        assert isinstance(bed, OnS3)
        bed.settings = Settings.from_environment()
        return bed

    with s3_server(tmp_path / "s3") as server:
        for name, value in environment_on_s3(tmp_path, f"http://{server}").items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        yield make
        fsspec.filesystem("s3").clear_instance_cache()


def of_table(bed: OnS3) -> object:
    return delta_log.latest_version(str(bed.table))


def of_copies(bed: OnS3) -> object:
    return of_table(bed.of("copies"))


def copies_are_exact(bed: OnS3) -> None:
    bed.of("copies").holds(bed.events)


def entries(bed: OnS3) -> list[Path]:
    """Spark's own log of a sink of files."""
    return sorted((bed.disk / "out" / "_spark_metadata").glob("[0-9]*"))


def files_are_exact(bed: OnS3) -> None:
    """Read the files that the log names."""
    lines = [line for entry in entries(bed) for line in entry.read_text().splitlines()[1:]]
    files = {str(json.loads(line)["path"]).replace(THERE, str(bed.disk)) for line in lines}
    rows = dataset.dataset(sorted(files), format="parquet").to_table().to_pylist()
    assert counted(rows, COLUMNS) == counted(bed.events, COLUMNS)


def shape_is_exact(oracle: Callable[[tuple[shapes.Run, ...]], shapes.Rows]) -> Callable[[OnS3], None]:
    def check(bed: OnS3) -> None:
        shape = shapes.Shape("", ({"events": [row["n"] for row in bed.events]},), oracle, ())
        bed.holds(shape.rows)
        assert shape.rows

    return check


@dataclass(frozen=True)
class Kind:
    """The text of a pipeline, what asserts that its sink is exact, and what another value of tells that its
    sink has a commit.
    """

    text: Callable[[OnS3], str]
    is_exact: Callable[[OnS3], None]
    commits: Callable[[OnS3], object] = of_table


def of_totals(mode: str, of: str) -> Kind:
    return Kind(lambda bed: totals(mode, of), lambda bed: is_exact(bed, bed.events))


ROCKSDB = ', state_store="rocksdb"'
KINDS = {
    **{mode: of_totals(mode, of) for mode, of in MODES},
    "function": Kind(lambda bed: into_function(bed, f"{THERE}/warehouse"), copies_are_exact, of_copies),
    "files": Kind(lambda bed: into_files("parquet", root=THERE), files_are_exact, entries),
    "windows in RocksDB": Kind(
        lambda bed: shapes.declared(shapes.DISTINCT_COUNTS, ROCKSDB), shape_is_exact(shapes.distinct_windows)
    ),
    "a state of one's own in RocksDB": Kind(
        lambda bed: shapes.own(shapes.LISTS_AND_MAPS, "None"), shape_is_exact(shapes.lists_and_maps)
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_flow_that_was_killed_between_two_commits_goes_on_exactly(
    on_s3: Callable[..., OnS3], kind: Kind
) -> None:
    bed = on_s3("")
    bed.declare(kind.text(bed))
    bed.arrive(1, 2, 8)
    with bed.driver() as driver:
        driver.until(lambda: batch_of(bed) is not None)
        kill_after_the_sinks_commit(bed, driver, commits=lambda: kind.commits(bed))
    last = bed.events[-1]["n"]
    bed.arrive(last)
    bed.arrive(last, 1000)
    bed.read_all([bed.flow()])
    kind.is_exact(bed)


def test_a_topic_has_what_came_twice_marked(on_s3: Callable[..., OnS3], brokers: str) -> None:
    options = make_topic(brokers)
    bed = on_s3(into_topic(options))
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "seen"})

    def ends() -> list[int]:
        parts = [TopicPartition(options["subscribe"], part) for part in range(2)]
        return [consumer.get_watermark_offsets(part, timeout=60)[1] for part in parts]

    bed.arrive(1, 2, 8)
    with closing(consumer), bed.driver() as driver:
        driver.until(lambda: batch_of(bed) is not None)
        kill_after_the_sinks_commit(bed, driver, commits=ends)
    bed.arrive(1000)
    bed.read_all([bed.flow()])
    records = in_topic(bed, options)
    topic_holds(drop_repeats(records), bed.events)
    assert records.count() > len(bed.events), "the batch that was cut off came twice"


def test_the_log_of_files_on_s3_is_written_on_condition_where_the_state_is_elsewhere(
    on_s3: Callable[..., OnS3], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own classes write an entry aside first, and two drivers can then both have written it."""
    bed = on_s3(into_files("parquet", root=THERE))
    for name in ("STATE", "WAREHOUSE", "BACKUPS"):
        monkeypatch.setenv(f"STREAMKEEPER_{name}", str(bed.root / "here" / name))
    bed.settings = Settings.from_environment()
    bed.arrive(1)
    with proxy(os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")) as network:
        environment_on_s3(bed.root, network.url)  # Spark reads the address in its conf
        bed.read_all([bed.flow()])
    files_are_exact(bed)
    of_log = f"PUT /{BUCKET}/out/_spark_metadata/"
    asked = [request for request in network.requests if request.startswith(of_log)]
    assert asked == [f"{of_log}{name}" for name in ("", "0", "1")], "the folder's mark, and the entries"
