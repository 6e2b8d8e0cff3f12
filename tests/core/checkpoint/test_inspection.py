"""One look that tells where a query stands, at a cost that does not grow with its history."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.cli.inspecting import inspect_place
from streamkeeper.health.inspection import inspect
from streamkeeper.storage import LocalStorage
from tests.worlds.flows.recorded_storage import RecordedStorage
from tests.worlds.small_world import World


def test_a_look_tells_position_operators_and_watermark(recorded: Callable[[str], Path]) -> None:
    folder = recorded("files_aggregation")
    os.utime(folder / "commits" / "1", (1_000_000, 1_000_000))
    found = inspect(LocalStorage(str(folder)), "")
    assert (found.last_commit, found.in_flight, found.offset_log_version) == (1, None, 1)
    assert found.watermark_ms == 1_767_225_000_000
    assert found.last_commit_at == 1_000_000
    assert found.last_commit_age_s is not None
    assert found.last_commit_age_s > 1_000_000
    assert [(source.name, source.kind, source.position, source.offset) for source in found.sources] == [
        ("0", "files", "files log 1", {"logOffset": 1})
    ]
    assert [operator.name for operator in found.operators] == ["stateStoreSave"]
    assert found.problems == ()


def test_a_batch_in_flight_is_told_beside_the_last_processed_position(
    recorded: Callable[[str], Path],
) -> None:
    folder = recorded("union_named")
    (folder / "commits" / "1").unlink()
    (folder / "commits" / ".1.crc").unlink()
    found = inspect(LocalStorage(str(folder)), "")
    assert (found.last_commit, found.in_flight) == (0, 1)
    web = found.sources[0]
    assert (web.name, web.offset, web.in_flight, web.position) == (
        "web_events",
        {"logOffset": 0},
        {"logOffset": 1},
        "files log 0",
    )
    assert found.problems == ()


def test_a_checkpoint_without_a_commit_has_read_nothing_yet(recorded: Callable[[str], Path]) -> None:
    folder = recorded("kafka")
    for name in (".0.crc", "0"):
        (folder / "commits" / name).unlink()
    found = inspect(LocalStorage(str(folder)), "")
    assert (found.last_commit, found.last_commit_at, found.in_flight) == (None, None, 0)
    source = found.sources[0]
    assert (source.kind, source.position, source.initial) == (
        "kafka",
        "nothing read yet",
        {"orders": {"0": 0, "1": 0}},
    )


@pytest.mark.parametrize(("count_files", "files"), [(False, None), (True, 13)])
def test_files_are_counted_only_if_asked(
    recorded: Callable[[str], Path], count_files: bool, files: int | None
) -> None:
    found = inspect(LocalStorage(str(recorded("files_stateless"))), "", count_files=count_files)
    assert found.sources[0].files == files


def test_a_look_reads_the_newest_entries_only_and_asks_one_time_and_writes_nothing(
    recorded: Callable[[str], Path],
) -> None:
    storage = RecordedStorage(str(recorded("files_stateless")))
    inspect(storage, "")
    assert {name for name in storage.asked_to("read") if "crc" not in name} == {
        "metadata",
        "commits/11",
        "commits/12",
        "offsets/11",
        "offsets/12",
        "sources/0/10",
        "sources/0/11",
        "sources/0/12",
        "sources/0/9.compact",
    }
    assert (storage.asked_to("modified"), storage.asked_to("write")) == (["commits/12"], [])


def test_the_number_of_listings_is_the_same_for_a_long_history(recorded: Callable[[str], Path]) -> None:
    folder = recorded("rate")
    short, long = RecordedStorage(str(folder)), RecordedStorage(str(folder))
    inspect(short, "")
    for number in range(2, 90):
        for log in ("offsets", "commits"):
            (folder / log / str(number)).write_bytes((folder / log / "1").read_bytes())
    inspect(long, "")
    assert len(long.asked_to("names")) == len(short.asked_to("names"))
    assert len(long.asked_to("read")) <= len(short.asked_to("read"))


def test_a_damaged_checkpoint_is_described_as_far_as_it_can_be_read(recorded: Callable[[str], Path]) -> None:
    folder = recorded("files_dedup")
    (folder / "metadata").unlink()
    (folder / "offsets" / "2").write_bytes(b"v1\n{")
    found = inspect(LocalStorage(str(folder)), "")
    assert (found.query_id, found.last_commit) == (None, 2)
    assert {problem.file for problem in found.problems} == {
        "metadata",
        ".metadata.crc",
        "offsets/2",
        "offsets/.2.crc",
    }


@pytest.mark.parametrize("name", ["files_dedup", "union_named", "kafka", "delta", "rate"])
def test_a_look_can_be_written_as_json(recorded: Callable[[str], Path], name: str) -> None:
    found = inspect(LocalStorage(str(recorded(name))), "").to_json()
    assert json.loads(json.dumps(found))["sources"][0]["name"] == found["sources"][0]["name"]


@pytest.mark.parametrize(
    ("transactions", "operators", "what"),
    [
        (5, (), "the checkpoint is an older copy"),
        (1, (), "was replaced or restored from an older copy"),
        (3, ("dedupe",), "the state is gone"),
    ],
    ids=["table ahead", "table behind", "no state"],
)
def test_what_parks_a_flow_though_its_checkpoint_is_whole_is_told(
    transactions: int, operators: tuple[str, ...], what: str, world: World
) -> None:
    world.processed(3, transactions=transactions, operators=operators)
    shutil.rmtree(world.home.storage.path(f"{world.home.checkpoint(1, 1)}/state"), ignore_errors=True)
    value, text = inspect_place(lambda: world.settings, "events.clean_events", files=False)
    assert [(problem["severity"], what in problem["description"]) for problem in value["problems"]] == [
        ("error", True)
    ]
    assert what in text
