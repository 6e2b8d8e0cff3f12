"""Pins what Spark 4.2.0 and Delta 4.4.0 write into a checkpoint, and what damage does to a start: an upgrade
that moves it fails here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint, StateOperator, write_commit, write_files_log, write_offsets
from streamkeeper.checkpoint.crc_files import checksum, twin_of
from streamkeeper.declare.offsets import check_fits, kind_of
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
PINNED_BY_V1 = {"spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass"}


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


@pytest.fixture(scope="module")
def kafka(plain: None, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    """The checkpoint of a query over a real broker's topic."""
    folder = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(folder / "broker") as broker:
        yield open_checkpoint(samples.kafka(spark, folder, broker.bootstrap_servers))


def open_checkpoint(folder: Path) -> Checkpoint:
    return Checkpoint(LocalStorage(str(folder)), "")


def last_offsets(checkpoint: Checkpoint) -> dict[str, Any]:
    last = checkpoint.last_commit()
    assert last is not None
    return checkpoint.offsets(last).sources


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_spark_writes_what_the_reader_reads_and_would_write(sample: Sample, name: str) -> None:
    checkpoint, _ = sample(name)
    assert_read_whole(checkpoint)


def test_a_kafka_checkpoint_is_read_and_would_be_written_the_same(kafka: Checkpoint) -> None:
    assert_read_whole(kafka)
    assert last_offsets(kafka) == {"0": {"orders": {"0": 3, "1": 1}}}
    assert kafka.initial_offsets("0") == {"orders": {"0": 0, "1": 0}}
    assert kafka.read("sources/0/0").startswith(b"\0v1\n")


def assert_read_whole(checkpoint: Checkpoint) -> None:
    assert checkpoint.problems(deep=True) == ()
    assert len(checkpoint.query_id()) == 36
    assert (
        checkpoint.offset_batches()
        == checkpoint.commit_batches()
        == list(range(len(checkpoint.commit_batches())))
    )
    for batch in checkpoint.offset_batches():
        assert write_offsets(checkpoint.offsets(batch)) == checkpoint.read(f"offsets/{batch}")
        assert write_commit(checkpoint.commit(batch)) == checkpoint.read(f"commits/{batch}")
    for name in ("metadata", "offsets/0", "commits/0"):
        assert checksum(checkpoint.read(name)) == checkpoint.read(twin_of(name))
    for source, offset in last_offsets(checkpoint).items():
        if kind_of(offset) == "files":
            log = checkpoint.files_log(source)
            assert log.count(offset["logOffset"]) == sum(1 for _ in log.entries(offset["logOffset"]))


def test_a_files_source_compacts_every_tenth_batch_of_its_log(sample: Sample) -> None:
    checkpoint, folder = sample("files_stateless")
    log = checkpoint.files_log("0")
    assert (log.last_batch(), log.batches()[1][-1]) == (12, 9)
    entries = list(log.entries())
    assert {Path(entry.path).name for entry in entries} == {f"{number:04d}.json" for number in range(13)}
    assert [entry.batch for entry in entries] == list(range(13))
    for entry in entries:
        assert entry.path.startswith("file:///")
        assert entry.timestamp_ms == (folder / "in" / Path(entry.path).name).stat().st_mtime_ns // 1_000_000
    ten = [entry for entry in entries if entry.batch <= 9]
    assert b"".join(write_files_log(ten)) == checkpoint.read("sources/0/9.compact")
    assert last_offsets(checkpoint) == {"0": {"logOffset": 12}}


@pytest.mark.parametrize(
    ("name", "version", "offsets"),
    [
        ("union_positional", 1, {"0": {"logOffset": 1}, "1": None}),
        ("union_named", 2, {"web_events": {"logOffset": 1}, "shop_events": {"logOffset": 0}}),
    ],
)
def test_sources_go_by_position_in_version_1_and_by_name_in_version_2(
    sample: Sample, name: str, version: int, offsets: dict[str, Any]
) -> None:
    checkpoint, _ = sample(name)
    assert checkpoint.offsets(0).version == version
    assert last_offsets(checkpoint) == offsets


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
    ("name", "operators"),
    [
        ("files_dedup", (StateOperator(0, "dedupe", 2, ("default",)),)),
        ("files_aggregation", (StateOperator(0, "stateStoreSave", 2, ("default",)),)),
        ("rocksdb_dedup", (StateOperator(0, "dedupe", 2, ("default",)),)),
        ("union_named", (StateOperator(0, "dedupe", 2, ("default",)),)),
        ("join_virtual", (StateOperator(0, "symmetricHashJoin", 2, ("default",)),)),
        ("files_stateless", ()),
    ],
)
def test_operators_say_their_name_and_partitions(
    sample: Sample, name: str, operators: tuple[StateOperator, ...]
) -> None:
    assert sample(name)[0].operators() == operators


def test_state_of_format_3_has_its_metadata_in_another_place(sample: Sample) -> None:
    assert sample("join_virtual")[0].operator_file(0) == "state/0/_metadata/v2/0"
    assert sample("files_dedup")[0].operator_file(0) == "state/0/_metadata/metadata"


def test_commits_of_version_2_have_an_id_for_each_partition_and_store(sample: Sample) -> None:
    commit = sample("rocksdb_dedup")[0].commit(1)
    assert (commit.version, commit.state_unique_ids is not None) == (2, True)
    assert [len(stores) for stores in (commit.state_unique_ids or {})["0"]] == [1, 1]


def test_the_watermark_of_the_next_batch_stands_in_the_commit(sample: Sample) -> None:
    checkpoint, _ = sample("files_aggregation")
    assert checkpoint.offsets(0).watermark_ms == 0
    assert (
        checkpoint.commit(0).next_watermark_ms
        == checkpoint.offsets(1).watermark_ms
        == 1_767_225_600_000 - 600_000
    )


def test_a_rate_source_keeps_when_it_started(sample: Sample) -> None:
    checkpoint, _ = sample("rate")
    started = checkpoint.initial_offsets("0")
    assert 0 <= checkpoint.offsets(0).timestamp_ms - started < 60_000
    assert check_fits("rate", last_offsets(checkpoint)["0"]) is None


def test_a_delta_source_tells_version_and_file(sample: Sample, spark: SparkSession) -> None:
    checkpoint, folder = sample("delta")
    table = spark.sql(f"DESCRIBE DETAIL delta.`{folder}/in/table`").first()
    assert table is not None
    shared = {"sourceVersion": 1, "reservoirId": table["id"]}
    assert checkpoint.offsets(0).sources == {
        "0": {**shared, "reservoirVersion": 1, "index": 0, "isStartingVersion": True}
    }
    assert last_offsets(checkpoint) == {
        "0": {**shared, "reservoirVersion": 2, "index": -1, "isStartingVersion": False}
    }
    assert checkpoint.sources() == ()


def test_only_version_1_pins_the_number_of_partitions(sample: Sample) -> None:
    assert sample("files_dedup")[0].offsets(0).conf.keys() >= PINNED_BY_V1
    assert sample("union_named")[0].offsets(0).conf.keys() & PINNED_BY_V1 == {
        "spark.sql.streaming.stateStore.providerClass"
    }


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
