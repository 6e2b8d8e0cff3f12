"""Pins what Spark 4.2.0 and Delta 4.4.0 write into a checkpoint, and what damage does to a start: an upgrade
that moves it fails here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.crc_files import checksum
from streamkeeper.declare.offsets import check_fits
from streamkeeper.settings import PROJECT
from streamkeeper.storage import LocalStorage
from tests.worlds import checkpoint_samples as samples
from tools.kafka_broker import KafkaBroker

Sample = Callable[[str], tuple[Checkpoint, Path]]
SPARK_AS_IT_COMES = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.shuffle.partitions": "2",
}
"""What other people's queries run with, and so what their checkpoints look like; two partitions, for
speed.
"""
RECORDED = PROJECT / "tests" / "core" / "checkpoint" / "recorded"


@pytest.fixture(scope="module", autouse=True)
def plain(spark: SparkSession) -> Iterator[None]:
    """The shared session has a flow's settings; here it has those of Spark itself."""
    with samples.confs(spark, SPARK_AS_IT_COMES):
        yield


@pytest.fixture(scope="module")
def sample(plain: None, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Run a sample once for the module and open the checkpoint that Spark wrote; tests that spoil it take a
    copy.
    """
    made: dict[str, Path] = {}

    def make(name: str) -> tuple[Checkpoint, Path]:
        if name not in made:
            made[name] = samples.SAMPLES[name](spark, tmp_path_factory.mktemp(name))
        return open_checkpoint(made[name]), made[name].parent

    return make


def open_checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(LocalStorage(str(folder)), "")


MADE_SAME = {
    r"\w{8}(-\w{4}){3}-\w{12}": "id",
    r"\b(?!17672)\d{13}\b": "now",  # not the moments of the events
    r"/\d{4}\.json": "/file",  # files of one millisecond come in any order
}


def written(checkpoint: Path, name: str) -> dict[str, str]:
    """Return what stands in a checkpoint, but for the state's data and for what is another in every run; see
    that the twins fit.
    """
    texts = {}
    for twin in checkpoint.rglob(".*.crc"):
        part = twin.relative_to(checkpoint)
        if part.parts[0] == "state" and "_metadata" not in part.parts[:3]:
            continue
        file = twin.with_name(twin.name[1:-4])
        assert checksum(file.read_bytes()) == twin.read_bytes()
        text = file.read_text().replace(str(checkpoint.parent), f"/data/{name}")
        for pattern, same in MADE_SAME.items():
            text = re.sub(pattern, same, text)
        texts[str(part)] = text
    return texts


@pytest.mark.parametrize("name", [*(name for name in samples.SAMPLES if name != "rate"), "kafka"])
def test_spark_writes_what_was_recorded(
    sample: Sample, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """What the reader tells of it is proven by what was recorded, tests/core/checkpoint."""
    if name == "kafka":
        with KafkaBroker(tmp_path / "broker") as broker:
            made = samples.kafka(spark, tmp_path, broker.bootstrap_servers)
    else:
        made = sample(name)[1] / "checkpoint"
    assert written(made, name) == written(RECORDED / name, name)


def test_a_rate_source_keeps_when_it_started(sample: Sample) -> None:
    checkpoint, _ = sample("rate")
    assert checkpoint.problems() == ()
    assert 0 <= checkpoint.offsets(0).timestamp_ms - checkpoint.initial_offsets("0") < 60_000
    assert check_fits("rate", checkpoint.offsets(1).sources["0"]) is None


def test_version_2_leaves_out_a_source_that_has_no_offset_yet(spark: SparkSession, tmp_path: Path) -> None:
    samples.write_events(tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    with samples.confs(spark, samples.NAMED):
        frame = samples.read_json(spark, tmp_path / "a", "full").union(
            samples.read_json(spark, tmp_path / "b", "void")
        )
        samples.drain(frame, tmp_path / "checkpoint")
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.read("offsets/0").endswith(b'\nfull:{"logOffset":0}')
    assert checkpoint.sources() == ("full", "void")


@pytest.mark.parametrize(
    ("name", "goes_on"), [("files_dedup", True), ("union_named", False)], ids=["v1", "v2"]
)
def test_another_number_of_partitions_is_harmless_on_version_1_and_fails_on_version_2(
    sample: Sample, spark: SparkSession, tmp_path: Path, name: str, goes_on: bool
) -> None:
    assert [operator.partitions for operator in sample(name)[0].operators()] == [2]
    with samples.confs(spark, {"spark.sql.shuffle.partitions": "5"}):
        if goes_on:
            go_on(sample, spark, tmp_path, name)
        else:
            with pytest.raises(StreamingQueryException, match=r"CANNOT_LOAD_STATE_STORE"):
                go_on(sample, spark, tmp_path, name)


def go_on(sample: Sample, spark: SparkSession, folder: Path, name: str) -> Checkpoint:
    """Run a sample's query again over one more file, on a copy of its checkpoint in ``folder`` unless the
    test made one.
    """
    _, made = sample(name)
    target = copied(sample, folder, name)
    if name == "union_named":
        samples.write_events(made / "in" / "a", 1, first=90)
        with samples.confs(spark, samples.NAMED):
            web = samples.read_json(spark, made / "in" / "a", "web_events")
            frame = web.union(samples.read_json(spark, made / "in" / "b", "shop_events"))
            samples.drain(frame.dropDuplicates(["event_id"]), target)
    else:
        samples.write_events(made / "in", 1, first=90)
        samples.drain(samples.read_json(spark, made / "in").dropDuplicates(["event_id"]), target)
    return open_checkpoint(target)


def copied(sample: Sample, folder: Path, name: str) -> Path:
    target = folder / "checkpoint"
    return target if target.exists() else Path(shutil.copytree(sample(name)[1] / "checkpoint", target))


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(
            write("offsets/.3.crc", b"crc"),
            r"Multiple streaming queries are concurrently using .*offsets",
            id="next twin",
        ),
        pytest.param(
            write("commits/.3.crc", b"crc"),
            r"Multiple streaming queries are concurrently using .*commits",
            id="next commit's",
        ),
        pytest.param(
            write("sources/0/.3.crc", b"crc"),
            r"Multiple streaming queries are concurrently using .*sources/0",
            id="next files'",
        ),
        pytest.param(
            remove("offsets/2", "offsets/.2.crc"),
            r"CONCURRENT_STREAM_LOG_UPDATE",
            id="commit without offsets",
        ),
        pytest.param(remove("offsets/1", "offsets/.1.crc"), r"batch 1 doesn't exist", id="gap at the end"),
        pytest.param(
            remove("metadata", ".metadata.crc"),
            r"STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
            id="no metadata",
        ),
        pytest.param(write("offsets/2", b""), r"Incomplete log file", id="empty offsets"),
        pytest.param(write("commits/2", b"v1\n{"), r"Unexpected end-of-input", id="truncated commit"),
        pytest.param(write("sources/0/2", b""), r"Incomplete log file", id="empty files log"),
        pytest.param(
            remove("sources/0/1", "sources/0/.1.crc"), r"sources/0/1 doesn't exist", id="gap in files log"
        ),
        pytest.param(
            remove("sources/0/2", "sources/0/.2.crc"), r"batch 2 doesn't exist", id="files log too short"
        ),
    ],
)
def test_what_is_called_an_error_does_stop_the_next_start(
    sample: Sample, spark: SparkSession, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(copied(sample, tmp_path, "files_dedup"))
    assert [
        problem
        for problem in open_checkpoint(tmp_path / "checkpoint").problems()
        if problem.severity == "error"
    ]
    with pytest.raises(Exception, match=said):
        go_on(sample, spark, tmp_path, "files_dedup")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(write("offsets/notes.txt", b"?"), id="foreign file"),
        pytest.param(write("offsets/.3.0f5b1c9e-5d0c-4a53-9c1b-7a4a2f100000.tmp", b"v1"), id="half-written"),
        pytest.param(remove("offsets/.2.crc", "commits/.2.crc", ".metadata.crc"), id="no twins"),
        pytest.param(write("offsets/.2.crc", b"crc\0\0\0\2\0abcd"), id="stale twin of offsets"),
        pytest.param(write(".metadata.crc", b"crc\0\0\0\2\0abcd"), id="stale twin of metadata"),
        pytest.param(write("sources/0/.2.crc", b"crc\0\0\0\2\0abcd"), id="stale twin of a files log"),
        pytest.param(write("commits/2", b"v1"), id="commit that says nothing"),
        pytest.param(remove("commits/1", "commits/.1.crc"), id="gap in commits"),
        pytest.param(remove("offsets/0", "offsets/.0.crc"), id="oldest offsets gone"),
    ],
)
def test_what_is_no_error_does_not_stop_the_next_start(
    sample: Sample, spark: SparkSession, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(copied(sample, tmp_path, "files_dedup"))
    checkpoint = go_on(sample, spark, tmp_path, "files_dedup")
    assert checkpoint.last_commit() == 3
    assert [problem for problem in checkpoint.problems() if problem.severity == "error"] == []


def test_of_several_planned_batches_spark_repeats_the_last_alone_and_skips_the_others(
    sample: Sample, spark: SparkSession, tmp_path: Path
) -> None:
    _, made = sample("files_stateless")
    target = copied(sample, tmp_path, "files_stateless")
    remove("commits/11", "commits/12", "commits/.11.crc", "commits/.12.crc")(target)
    assert [(problem.file, problem.severity) for problem in open_checkpoint(target).problems()] == [
        ("commits", "error")
    ]
    out = tmp_path / "out"
    query = (
        samples.read_json(spark, made / "in")
        .select("_metadata.file_path")
        .writeStream.foreachBatch(lambda frame, batch: frame.write.parquet(str(out / str(batch))))
        .option("checkpointLocation", str(target))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(int(folder.name) for folder in out.iterdir()) == [12]
