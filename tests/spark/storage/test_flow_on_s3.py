"""A flow with its state, its checkpoint and its table on a real S3 server, behind a network that loses
answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable

from streamkeeper.storage import open_storage
from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_jars

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

Streamkeeper = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def streamkeeper(server: str, tmp_path: Path) -> Streamkeeper:
    """Run a command of streamkeeper whose state and warehouse are on S3, through ``endpoint``."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.py").write_text(EVENTS)
    here = {name: str(tmp_path / name) for name in ("pipelines", "data")}
    there = {name: f"s3://{BUCKET}/{name}" for name in ("state", "warehouse")}
    settings = {**here, **there, "jars": str(s3_jars()), "pipeline_env": "AWS_*"}

    def run(endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        conf = Path(os.environ["SPARK_CONF_DIR"], "spark-defaults.conf").read_text()
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf" / "spark-defaults.conf").write_text(
            f"{conf}\nspark.hadoop.fs.s3a.endpoint {endpoint}\n"
            "spark.hadoop.fs.s3a.endpoint.region us-east-1\nspark.hadoop.fs.s3a.path.style.access true\n"
        )
        return subprocess.run(
            [sys.executable, "-m", "streamkeeper", *arguments],
            env={
                **os.environ,
                **{f"STREAMKEEPER_{name.upper()}": value for name, value in settings.items()},
                **LOGIN,
                "AWS_ENDPOINT_URL": endpoint,
                "SPARK_CONF_DIR": str(tmp_path / "conf"),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def arrive(data: Path, name: str, ids: range) -> None:
    folder = data / "events"
    folder.mkdir(parents=True, exist_ok=True)
    aside = data / name
    aside.write_text("".join(json.dumps({"event_id": f"e{number}", "n": number}) + "\n" for number in ids))
    aside.rename(folder / name)


def table(server: str) -> list[dict[str, object]]:
    options = {**LOGIN, "AWS_ENDPOINT_URL": f"http://{server}", "AWS_ALLOW_HTTP": "true"}
    found = DeltaTable(f"s3://{BUCKET}/warehouse/events", storage_options=options)
    return sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: row["n"])


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
                arrive(tmp_path / "data", f"{number}-{part}.json", range(first, first + 55))
            done = streamkeeper(network.url, "run", "events.clean_events", "--available-now")
            assert done.returncode == 0, done.stderr[-6000:]
    expected = sorted({*range(95), *range(100, 195)})
    assert table(server) == [{"event_id": f"e{number}", "n": number} for number in expected]
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
    assert table(server) == [{"event_id": f"e{number}", "n": number} for number in expected]
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
    arrive(tmp_path / "data", "0.json", range(3))
    refused = streamkeeper(disobedient.url, "run", "events.clean_events", "--available-now")
    assert refused.returncode != 0
    assert "took a second conditional PUT" in refused.stdout, refused.stderr[-3000:]
    assert open_storage(f"s3://{BUCKET}/warehouse").names() == []


def lose_some(network: Proxy) -> None:
    """Lose every seventh answer to a PUT."""
    puts = count(1)
    network.loses = lambda request: request.startswith("PUT") and next(puts) % 7 == 0
