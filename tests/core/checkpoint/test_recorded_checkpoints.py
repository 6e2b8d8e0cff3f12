"""What the reader tells of real checkpoints, and that what it writes is what Spark wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import Checkpoint, StateOperator, write_commit, write_files_log, write_offsets
from streamkeeper.checkpoint.crc_files import checksum, fits
from streamkeeper.checkpoint.log_entries import parse_file_entry
from streamkeeper.storage import LocalStorage

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(item.name for item in RECORDED.iterdir())
Open = Callable[[str], Checkpoint]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_checkpoint_has_no_problems(opened: Open, name: str) -> None:
    assert opened(name).problems() == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_offset_and_commit_is_written_again_byte_for_byte(name: str) -> None:
    checkpoint = opened_again(name)
    for batch in checkpoint.offset_batches():
        assert write_offsets(checkpoint.offsets(batch)) == checkpoint.read(f"offsets/{batch}")
    for batch in checkpoint.commit_batches():
        assert write_commit(checkpoint.commit(batch)) == checkpoint.read(f"commits/{batch}")


def test_every_file_of_a_files_log_is_written_again_byte_for_byte() -> None:
    files = [
        file for file in RECORDED.rglob("sources/*/*") if file.is_file() and b"batchId" in file.read_bytes()
    ]
    assert files
    entries = {
        file: [parse_file_entry(line, str(file)) for line in file.read_text().split("\n")[1:]]
        for file in files
    }
    assert [file for file in files if b"".join(write_files_log(entries[file])) != file.read_bytes()] == []


def test_every_checksum_is_the_one_that_hadoop_wrote() -> None:
    contents = {twin: twin.with_name(twin.name[1:-4]).read_bytes() for twin in RECORDED.rglob(".*.crc")}
    assert len(contents) > 100
    assert [twin for twin, content in contents.items() if not fits(content, twin.read_bytes())] == []
    assert [twin for twin, content in contents.items() if checksum(content) != twin.read_bytes()] == []


@pytest.mark.parametrize(
    ("name", "version", "sources"),
    [
        ("files_stateless", 1, {"0": {"logOffset": 12}}),
        ("union_positional", 1, {"0": {"logOffset": 1}, "1": None}),
        ("union_named", 2, {"web_events": {"logOffset": 1}, "shop_events": {"logOffset": 0}}),
        ("kafka", 1, {"0": {"orders": {"0": 3, "1": 1}}}),
        ("rate", 1, {"0": 1}),
    ],
)
def test_the_last_processed_position_is_told_by_source(
    opened: Open, name: str, version: int, sources: dict[str, Any]
) -> None:
    checkpoint = opened(name)
    last = checkpoint.last_commit()
    assert last is not None
    entry = checkpoint.offsets(last)
    assert (entry.version, entry.sources) == (version, sources)
    assert entry.batch == last
    assert entry.timestamp_ms > 0


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("files_stateless", ()),
        ("files_dedup", (StateOperator(0, "dedupe", 2, ("default",)),)),
        ("files_aggregation", (StateOperator(0, "stateStoreSave", 2, ("default",)),)),
        ("rocksdb_dedup", (StateOperator(0, "dedupe", 2, ("default",)),)),
        ("join_virtual", (StateOperator(0, "symmetricHashJoin", 2, ("default",)),)),
    ],
)
def test_stateful_operators_are_told(opened: Open, name: str, operators: tuple[StateOperator, ...]) -> None:
    assert opened(name).operators() == operators


def test_a_commit_of_version_2_has_the_ids_of_its_state(opened: Open) -> None:
    commit = opened("rocksdb_dedup").commit(1)
    assert commit.version == 2
    assert commit.state_unique_ids is not None
    assert [len(partition) for partition in commit.state_unique_ids["0"]] == [1, 1]
    assert opened_again("files_dedup").commit(1).state_unique_ids is None


def test_a_commit_has_the_watermark_of_the_next_batch(opened: Open) -> None:
    checkpoint = opened("files_aggregation")
    minutes_before_the_newest_event = 1767225600000 - 10 * 60 * 1000
    assert checkpoint.offsets(0).watermark_ms == 0
    assert checkpoint.commit(0).next_watermark_ms == minutes_before_the_newest_event
    assert checkpoint.offsets(1).watermark_ms == minutes_before_the_newest_event


def test_initial_positions_of_kafka_and_rate_are_read_and_a_files_log_is_none(opened: Open) -> None:
    assert opened("kafka").initial_offsets("0") == {"orders": {"0": 0, "1": 0}}
    assert opened("rate").initial_offsets("0") > 1_700_000_000_000
    assert opened("files_dedup").initial_offsets("0") is None
    assert opened("delta").initial_offsets("0") is None


def test_sources_are_listed_by_name_or_number(opened: Open) -> None:
    assert opened("union_named").sources() == ("shop_events", "web_events")
    assert opened("union_positional").sources() == ("0",)
    assert opened("delta").sources() == ()


def opened_again(name: str) -> Checkpoint:
    return Checkpoint(LocalStorage(str(RECORDED)), name)
