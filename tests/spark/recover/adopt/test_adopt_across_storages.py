"""A checkpoint on one storage is adopted into a state folder on another: what is copied, and where it leads.
No query is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.observe.adopted_checkpoint import AdoptedCheckpoint
from streamkeeper.storage import LocalStorage, Storage, open_storage

pytestmark = pytest.mark.long

RECORDED = LocalStorage(str(Path(__file__).parents[3] / "core" / "checkpoint" / "recorded" / "join_virtual"))
NAMES = {"0": "orders", "1": "payments"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real S3 server with one bucket; gives the bucket's URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    import fsspec

    fsspec.filesystem("s3").mkdir("streamkeeper-adopted")
    yield "s3://streamkeeper-adopted"
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


def files(storage: Storage, folder: str = "") -> list[str]:
    found: list[str] = []
    for name in storage.names(folder):
        inner = f"{folder}/{name}" if folder else name
        found += files(storage, inner) or [inner]
    return found


def test_there_and_back_the_same_files_arrive_under_the_flows_names(bucket: str, tmp_path: Path) -> None:
    from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint

    there = open_storage(f"{bucket}/state")
    copied = copy_checkpoint(
        AdoptedCheckpoint(RECORDED, "", NAMES), 1, "flow/checkpoints/1", "first", lambda: None, there
    )
    assert (copied.batch, copied.committed) == (1, True)
    arrived = Checkpoint(there, "flow/checkpoints/1")
    assert arrived.query_id() == "first"
    assert (arrived.offsets(1).version, arrived.offsets(1).sources) == (
        2,
        {"orders": {"logOffset": 1}, "payments": {"logOffset": 1}},
    )
    assert arrived.sources() == ("orders", "payments")
    assert arrived.problems() == ()
    metadata = next(name for name in files(there) if "/_metadata/" in name)
    assert b'"s3a://streamkeeper-adopted/state/flow/checkpoints/1/state/0/_stateSchema/default/0_' in (
        there.read(metadata) or b""
    )

    here = LocalStorage(str(tmp_path / "state"))
    old = AdoptedCheckpoint(
        open_storage(f"{bucket}/state/flow/checkpoints/1"), "", {"orders": "bought", "payments": "paid"}
    )
    copy_checkpoint(old, 1, "flow/checkpoints/1", "second", lambda: None, here)
    assert Checkpoint(here, "flow/checkpoints/1").offsets(1).sources == {
        "bought": {"logOffset": 1},
        "paid": {"logOffset": 1},
    }
    assert f'"file:{tmp_path}/state/flow/checkpoints/1/state/0/_stateSchema/'.encode() in (
        here.read(metadata) or b""
    )
    renamed = [name.replace("/orders/", "/bought/").replace("/payments/", "/paid/") for name in files(there)]
    assert files(here) == sorted(renamed)
