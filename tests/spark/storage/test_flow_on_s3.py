"""A flow with its state, its checkpoint and its table on a real S3 server, behind a network that loses
answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest

from streamkeeper.storage import open_storage
from tests.worlds.sources.on_s3 import Streamkeeper, arrive, on_s3, rows_of
from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, LOGIN

pytestmark = pytest.mark.long

EVENTS = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/events", schema="event_id STRING, n INT", options={})
dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources=["raw"], spark_conf={
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
})
def clean_events(raw):
    return raw.dropDuplicates(["event_id"])
"""


@pytest.fixture
def streamkeeper(server: str, tmp_path: Path) -> Streamkeeper:
    return on_s3(tmp_path, "events", EVENTS)


def test_its_table_holds_every_event_once_and_a_rewind_that_was_rehearsed_keeps_it_so(
    server: str, streamkeeper: Streamkeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**LOGIN, "AWS_ENDPOINT_URL": f"http://{server}"}.items():
        monkeypatch.setenv(name, value)
    with proxy(server) as network:
        for number in range(2):
            lose_some(network)
            for part in range(2):  # a quarter of the ids comes a second time
                first = 100 * number + 40 * part
                arrive(tmp_path, f"{number}-{part}.json", events(range(first, first + 55)))
            done = streamkeeper(network.url, "run", "events.clean_events", "--available-now")
            assert done.returncode == 0, done.stderr[-6000:]
    expected = sorted({*range(95), *range(100, 195)})
    assert rows_of(server, "events") == events(expected)
    said = json.loads(streamkeeper(f"http://{server}", "inspect", "events.clean_events", "--json").stdout)
    assert said["written_by"] == {
        "checkpoint": "streamkeeper.storage.S3CheckpointFileManager",
        "table": "streamkeeper.storage.S3LogStore",
    }
    assert (said["problems"], said["last_commit"]) == ([], 1)
    values = ("--flow", "events.clean_events", "--batch", "0", "--target", "restored")
    gone_back = streamkeeper(f"http://{server}", "recover", "rewind", *values, "--rehearse", "--yes")
    assert gone_back.returncode == 0, gone_back.stdout[-3000:] + gone_back.stderr[-3000:]
    assert "table events: 190 rows before, 190 after, the same rows; 0 gone, 0 new" in gone_back.stdout
    assert rows_of(server, "events") == events(expected)
    assert open_storage(f"s3://{BUCKET}/warehouse/__rehearsals").names() == []


def test_a_driver_writes_no_table_where_a_second_conditional_put_is_taken(
    disobedient: Proxy, streamkeeper: Streamkeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    for name, value in {**LOGIN, "AWS_ENDPOINT_URL": disobedient.url}.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    disobedient.ignores_conditions = False
    assert open_storage(f"s3://{BUCKET}/state").create("proven", b"1"), "the store changes after that"
    disobedient.ignores_conditions = True
    arrive(tmp_path, "0.json", events(range(3)))
    refused = streamkeeper(disobedient.url, "run", "events.clean_events", "--available-now")
    assert refused.returncode != 0
    assert "took a second conditional PUT" in refused.stdout, refused.stderr[-3000:]
    assert open_storage(f"s3://{BUCKET}/warehouse").names() == []


def events(ids: Iterable[int]) -> list[dict[str, object]]:
    return [{"event_id": f"e{number}", "n": number} for number in ids]


def lose_some(network: Proxy) -> None:
    """Lose every seventh answer to a PUT."""
    puts = count(1)
    network.loses = lambda request: request.startswith("PUT") and next(puts) % 7 == 0
