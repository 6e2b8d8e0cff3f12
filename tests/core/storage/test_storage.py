"""Storage: local disks and S3 do the same, told by one table; what is leaned on is proven with real
processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from streamkeeper.errors import StorageError
from streamkeeper.storage import LocalStorage, RemoteStorage, Storage, open_storage, read_json, to_json
from tests.worlds.racing import race


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


def content(storage: Storage, folder: str = "") -> dict[str, bytes]:
    """Give every file below a folder, found by names alone."""
    found: dict[str, bytes] = {}
    for name in storage.names(folder):
        inner = f"{folder}/{name}" if folder else name
        below = content(storage, inner)
        value = storage.read(inner) if not below else None
        found |= below if value is None else {inner: value}
    return found


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
    "modified of nothing": (lambda s: s.modified("no"), None),
    "modified of a file is a time": (
        lambda s: (s.overwrite("a", b"1"), (s.modified("a") or 0) > 1_600_000_000)[-1],
        True,
    ),
    "copy of a file": (
        lambda s: (fill(s, "a"), s.copy("a", "b/c"), content(s))[-1],
        {"a": b"content of a", "b/c": b"content of a"},
    ),
    "copy of a folder": (
        lambda s: (fill(s, "f/a", "f/g/b"), s.copy("f", "t/u"), sorted(content(s, "t")))[-1],
        ["t/u/a", "t/u/g/b"],
    ),
    "copy onto what an interrupted copy left": (
        lambda s: (
            fill(s, "f/a", "f/g/b", "t/a"),
            s.overwrite("t/a", b"half"),
            s.copy("f", "t"),
            content(s, "t"),
        )[-1],
        {"t/a": b"content of f/a", "t/g/b": b"content of f/g/b"},
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


def test_copying_what_is_not_there_is_an_error(storage: Storage) -> None:
    with pytest.raises(StorageError, match=r"no/such cannot be copied"):
        storage.copy("no/such", "target")
    assert storage.names() == []


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
        match=r"no-such-bucket-of-ours/state/x cannot be written: .* Check that the bucket is there",
    ):
        storage.create("x", b"1")


def test_s3a_is_read_as_s3(s3: str) -> None:
    open_storage(f"{s3.replace('s3://', 's3a://')}/a").overwrite("x", b"1")
    assert open_storage(f"{s3}/a").read("x") == b"1"


def test_a_file_url_is_a_local_folder(tmp_path: Path) -> None:
    open_storage(f"file://{tmp_path}").overwrite("x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"
