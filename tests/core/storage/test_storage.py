"""Storage: local disks and S3 do the same, told by one table; what is leaned on is proven with real
processes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from streamkeeper.errors import StorageError
from streamkeeper.storage import LocalStorage, RemoteStorage, Storage, open_storage, read_json, to_json
from tests.worlds.racing import race
from tests.worlds.sources.s3_proxy import Proxy, proxy


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A real S3 server on a free port, with one bucket; gives the bucket's URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        import fsspec

        fsspec.filesystem("s3").clear_instance_cache()  # one of an earlier test has no login
        fsspec.filesystem("s3").mkdir("streamkeeper-tests")
        yield "s3://streamkeeper-tests"
        fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "root"))
    return open_storage(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


def fill(storage: Storage, *names: str) -> None:
    for name in names:
        storage.overwrite(name, f"content of {name}".encode())


Case = Callable[[Storage], object]

CASES: dict[str, tuple[Case, object]] = {
    "create makes a file": (lambda s: (s.create("a/b", b"1"), s.read("a/b")), (True, b"1")),
    "create leaves what is there": (
        lambda s: (s.create("a", b"1"), s.create("a", b"2"), s.read("a")),
        (True, False, b"1"),
    ),
    "create leaves an empty file": (
        lambda s: (s.create("a", b""), s.create("a", b"2"), s.read("a")),
        (True, False, b""),
    ),
    "overwrite replaces": (
        lambda s: (s.overwrite("a", b"1"), s.overwrite("a", b"22"), s.read("a"))[-1],
        b"22",
    ),
    "read of nothing": (lambda s: s.read("no/such"), None),
    "read below a file": (lambda s: (s.overwrite("a", b"1"), s.read("a/b"))[-1], None),
    "names of nothing": (lambda s: s.names("no/such"), []),
    "names of the empty root": (lambda s: s.names(), []),
    "names of a file": (lambda s: (s.overwrite("a", b"1"), s.names("a"))[-1], []),
    "names are files and folders, sorted": (
        lambda s: (fill(s, "x/b", "x/a", "x/c/d", "y"), s.names("x"))[-1],
        ["a", "b", "c"],
    ),
    "names of the root": (lambda s: (fill(s, "x/b", "y"), s.names())[-1], ["x", "y"]),
    "names show hidden files": (lambda s: (fill(s, "x/.7.crc", "x/7"), s.names("x"))[-1], [".7.crc", "7"]),
    "a new file is listed at once": (lambda s: (s.names("x"), s.create("x/1", b""), s.names("x"))[-1], ["1"]),
    "a copy of an odd name": (
        lambda s: (fill(s, "a b/ü+=%20"), s.bring(s, "a b/ü+=%20", "c"), s.read("c") == s.read("a b/ü+=%20"))[
            -1
        ],
        True,
    ),
    "sizes of nothing": (lambda s: s.sizes("no/such"), {}),
    "sizes of a file": (lambda s: (s.overwrite("a", b"1"), s.sizes("a"))[-1], {}),
    "sizes are of files at any depth": (
        lambda s: (fill(s, "x/b=1/c d/é%20", "x/.a", "xx"), s.sizes("x"))[-1],
        {"b=1/c d/é%20": 26, ".a": 15},
    ),
    "sizes below the root": (lambda s: (s.overwrite("x/a", b"123"), s.sizes())[-1], {"x/a": 3}),
    "modified of nothing": (lambda s: s.modified("no"), None),
    "modified of a file is a time": (
        lambda s: (s.overwrite("a", b"1"), (s.modified("a") or 0) > 1_600_000_000)[-1],
        True,
    ),
    "remove of a file": (lambda s: (fill(s, "a", "b"), s.remove("a"), s.names())[-1], ["b"]),
    "remove of a folder": (lambda s: (fill(s, "f/a", "f/g/b", "fa"), s.remove("f"), s.names())[-1], ["fa"]),
    "remove of nothing": (lambda s: s.remove("no/such"), None),
    "remove below a file": (lambda s: (fill(s, "a"), s.remove("a/b"), s.names())[-1], ["a"]),
    "odd names": (
        lambda s: (s.create("a b/ü+=.json", b"1"), s.names("a b"), s.read("a b/ü+=.json"))[1:],
        (["ü+=.json"], b"1"),
    ),
    "json there and back": (
        lambda s: (s.overwrite("j", to_json({"ü": [1, None]})), read_json(s, "j"))[-1],
        {"ü": [1, None]},
    ),
}


@pytest.mark.parametrize(("case", "expected"), CASES.values(), ids=CASES.keys())
def test_local_disks_and_s3_do_the_same(storage: Storage, case: Case, expected: object) -> None:
    assert case(storage) == expected


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[1]", b"\xff\xfe"], ids=["empty", "cut off", "no object", "garbage"]
)
def test_a_damaged_json_file_is_named_with_what_it_holds(storage: Storage, damage: bytes) -> None:
    storage.overwrite("x/lease.json", damage)
    with pytest.raises(StorageError, match=r"x/lease.json holds .* not a JSON object"):
        read_json(storage, "x/lease.json")


@pytest.mark.parametrize("where", ["local", "s3"])
def test_of_six_processes_that_create_one_file_exactly_one_wins(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root = str(tmp_path) if where == "local" else f"{request.getfixturevalue('s3')}/race"
    context = get_context("fork" if where == "local" else "spawn")
    barrier, won = context.Barrier(6), context.Queue()
    racers = [context.Process(target=race, args=(barrier, won, root, str(number))) for number in range(6)]
    for racer in racers:
        racer.start()
    results = dict(won.get(timeout=60) for _ in racers)
    for racer in racers:
        racer.join(60)
    winners = [me for me, did in results.items() if did]
    assert len(winners) == 1
    assert open_storage(root).read("lease/000001.json") == winners[0].encode() * 1000
    assert open_storage(root).names("lease") == ["000001.json"]


def _overwrite_often(root: str, times: int) -> None:
    storage = LocalStorage(root)
    for number in range(times):
        storage.overwrite("heartbeat", bytes([65 + number % 2]) * 100_000)


def test_a_reader_never_sees_half_an_overwrite(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.overwrite("heartbeat", b"A" * 100_000)
    writer = get_context("fork").Process(target=_overwrite_often, args=(str(tmp_path), 100))
    writer.start()
    looks = 0
    while writer.is_alive() or not looks:
        found = storage.read("heartbeat")
        assert found in (b"A" * 100_000, b"B" * 100_000)
        looks += 1
    writer.join()
    assert (writer.exitcode, storage.names()) == (0, ["heartbeat"])


WRITES: dict[str, Callable[[Storage], object]] = {
    "create": lambda s: s.create("f/x", b"1"),
    "overwrite": lambda s: s.overwrite("f/x", b"1"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_state_folder_below_a_file_cannot_be_written_and_says_what_to_do(
    write: Callable[[Storage], object], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("here first")
    storage = LocalStorage(str(tmp_path / "file" / "state"))
    with pytest.raises(
        StorageError, match=r"cannot be written: .* The state folder must be writable .* STREAMKEEPER_STATE"
    ):
        write(storage)
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_folder_without_rights_is_an_error_for_the_user(
    write: Callable[[Storage], object], tmp_path: Path
) -> None:
    tmp_path.chmod(0o555)
    done = get_context("fork").Process(target=_write_as_nobody, args=(write, str(tmp_path)))
    done.start()
    done.join()
    assert done.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def _write_as_nobody(write: Callable[[Storage], object], root: str) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    storage = LocalStorage(root)
    with pytest.raises(StorageError, match=r"cannot be written"):
        write(storage)


def test_a_bucket_that_is_not_there_is_an_error_for_the_user(s3: str) -> None:
    storage = RemoteStorage("s3://no-such-bucket-of-ours/state")
    with pytest.raises(
        StorageError,
        match=r"no-such-bucket-of-ours/state/.* cannot be written: .* Check that the bucket is there",
    ):
        storage.create("x", b"1")


def test_s3a_is_read_as_s3(s3: str) -> None:
    open_storage(f"{s3.replace('s3://', 's3a://')}/a").overwrite("x", b"1")
    assert open_storage(f"{s3}/a").read("x") == b"1"


def test_a_file_url_is_a_local_folder(tmp_path: Path) -> None:
    open_storage(f"file://{tmp_path}").overwrite("x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


@pytest.fixture
def before_s3(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the S3 server, and the URL of a folder there that no process has used."""
    import fsspec

    with proxy(os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        fsspec.filesystem("s3").clear_instance_cache()
        yield found, f"{s3}/{uuid.uuid4().hex}"
        fsspec.filesystem("s3").clear_instance_cache()


@pytest.mark.parametrize("times", [1, 40], ids=["the repeated request is refused", "no answer comes at all"])
def test_a_create_whose_answer_was_lost_knows_its_own_file(
    before_s3: tuple[Proxy, str], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, url = before_s3
    storage = open_storage(url)
    assert storage.create("warm", b"")
    monkeypatch.setattr("s3fs.core.asyncio.sleep", _no_sleep)
    network.requests.clear()
    network.lose_first(f"PUT {url.removeprefix('s3:/')}/lease", times)
    assert storage.create("lease", b"same")
    assert len([request for request in network.requests if request.startswith("PUT")]) > 1, "it was repeated"
    assert not storage.create("lease", b"same"), "another call with the same content"


async def _no_sleep(seconds: float) -> None:
    pass


def test_of_two_creates_with_the_same_content_one_wins_though_the_refusal_was_lost(
    before_s3: tuple[Proxy, str],
) -> None:
    network, url = before_s3
    assert open_storage(url).create("lease", b"same")
    network.lose_first(f"PUT {url.removeprefix('s3:/')}/lease")
    assert not open_storage(url).create("lease", b"same")


def test_a_store_that_takes_a_second_create_is_refused_before_anything_is_written(
    before_s3: tuple[Proxy, str],
) -> None:
    network, url = before_s3
    network.ignores_conditions = True
    with pytest.raises(StorageError, match=r"does not keep create-if-absent: the second of two creates"):
        open_storage(url).create("lease", b"1")
    network.ignores_conditions = False
    assert open_storage(url).names() == []


def test_a_store_is_tried_once_and_later_processes_only_look(
    before_s3: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, url = before_s3
    assert open_storage(url).create("first", b"1")
    assert open_storage(url).names() == ["first"], "neither the trial nor its proof is in a listing"
    monkeypatch.setattr("streamkeeper.storage.remote._PROVEN", set())  # as in another process
    for expected in (["HEAD", "PUT"], ["PUT"]):
        network.requests.clear()
        assert open_storage(url).create(uuid.uuid4().hex, b"1")
        assert [request.split()[0] for request in network.requests] == expected


def test_a_folder_is_listed_by_one_request_whether_it_has_files_or_none(
    before_s3: tuple[Proxy, str],
) -> None:
    network, url = before_s3
    storage = open_storage(url)
    fill(storage, "flow/holds/park.json", "flow/lease/000001.json")
    for folder, expected in (("flow/holds", ["park.json"]), ("flow/none", []), ("flow", ["holds", "lease"])):
        network.requests.clear()
        assert storage.names(folder) == expected
        assert len(network.requests) == 1, network.requests


def test_an_object_too_large_to_be_copied_by_one_request_is_copied_by_several(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(f"{s3}/{uuid.uuid4().hex}")
    fill(storage, "large")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "The specified copy source is larger than the maximum allowable size")

    monkeypatch.setattr(storage._fs, "call_s3", refuse)  # type: ignore[attr-defined]
    storage.bring(storage, "large", "copy")
    assert storage.read("copy") == storage.read("large")


def test_marks_of_empty_folders_go_with_their_folder(s3: str) -> None:
    import fsspec

    store, folder = fsspec.filesystem("s3"), f"{s3.removeprefix('s3://')}/{uuid.uuid4().hex}"
    storage = open_storage(f"s3://{folder}")
    fill(storage, "checkpoint/a/b")
    for mark in ("checkpoint/", "checkpoint/a/", "checkpoint/empty/"):
        bucket, _, key = f"{folder}/{mark}".partition("/")
        store.call_s3("put_object", Bucket=bucket, Key=key, Body=b"")
    assert storage.sizes() == {"checkpoint/a/b": 25}, "a mark is no file"
    storage.remove("checkpoint")
    assert store.find(folder) == []


@pytest.mark.parametrize("name", ["hold", "checkpoint"])
def test_what_the_store_does_not_remove_is_an_error_and_is_still_there(
    before_s3: tuple[Proxy, str], name: str
) -> None:
    network, url = before_s3
    storage = open_storage(url)
    fill(storage, "hold", "checkpoint/a", "checkpoint/b")
    network.keeps = True
    with pytest.raises(StorageError, match=f"{name} cannot be removed"):
        storage.remove(name)
    network.keeps = False
    assert storage.names() == ["checkpoint", "hold"]
    storage.remove(name)
    assert name not in storage.names()


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda s: s.read("there"), ["GET"]),
        (lambda s: s.read("missing"), ["GET"]),
        (lambda s: s.names(), ["GET"]),
        (lambda s: s.sizes(), ["GET"]),
        (lambda s: s.bring(s, "there", "copy"), ["PUT"]),
        (lambda s: s.remove("there"), ["GET", "DELETE"]),
    ],
    ids=["read", "read of nothing", "names", "sizes", "copy", "remove"],
)
def test_the_store_is_asked_once_where_once_is_enough(
    before_s3: tuple[Proxy, str], act: Callable[[Storage], object], expected: list[str]
) -> None:
    network, url = before_s3
    storage = open_storage(url)
    fill(storage, "there")
    network.requests.clear()
    act(storage)
    assert [request.split()[0] for request in network.requests] == expected


def test_a_link_that_nfs_repeats_and_refuses_is_a_create_that_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def twice(source: str, target: str) -> None:
        with contextlib.suppress(FileExistsError):
            link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    storage = LocalStorage(str(tmp_path))
    assert storage.create("lease", b"same")
    assert not storage.create("lease", b"same")
    assert storage.names() == ["lease"]


SYNCED: dict[str, tuple[Case, set[str]]] = {
    "create": (lambda s: s.create("new/er/x", b"1"), {"", "new", "new/er"}),
    "create of what is there": (lambda s: s.create("f/x", b"1"), {"f"}),
    "overwrite": (lambda s: s.overwrite("f/x", b"1"), {"f"}),
    "remove": (lambda s: s.remove("f/x"), {"f"}),
    "bring and sync": (lambda s: (s.bring(s, "f/x", "g/h/x"), s.sync("g")), {"", "g", "g/h"}),
    "share and sync": (lambda s: (s.share(s, "f/x", "g/h/x"), s.sync("g")), {"", "g", "g/h"}),
}


@pytest.mark.parametrize(("case", "expected"), SYNCED.values(), ids=SYNCED)
def test_the_folders_of_what_was_done_are_written_to_the_disk(
    case: Case, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.overwrite("f/x", b"1")
    synced: set[str] = set()
    sync = os.fsync

    def noted(number: int) -> None:
        sync(number)
        found = Path(f"/proc/self/fd/{number}").readlink()
        if found.is_dir():
            synced.add(str(found.relative_to(tmp_path)).removeprefix("."))

    monkeypatch.setattr(os, "fsync", noted)
    case(storage)
    assert synced == expected


class Breaking(io.BytesIO):
    """A file that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError(5, "the disk is broken")
        return super().read(1000)


@pytest.mark.parametrize("before", [None, b"as it was"], ids=["nothing", "another file"])
def test_a_file_that_cannot_be_read_to_its_end_is_not_brought(
    before: bytes | None, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{tmp_path}/source" if isinstance(storage, RemoteStorage) else "memory://source"
    source = open_storage(other)
    source.overwrite("f", b"1" * 100_000)
    if before is not None:
        storage.overwrite("f", before)
    monkeypatch.setattr(source, "open", lambda name: Breaking(b"1" * 100_000))
    with pytest.raises(StorageError, match="the disk is broken"):
        storage.bring(source, "f", "f")
    assert storage.read("f") == before
