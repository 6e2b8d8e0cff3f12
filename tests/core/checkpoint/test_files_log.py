"""The log of processed files: compacted batches first, the plain ones after, as far as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamkeeper.checkpoint import Checkpoint, FileEntry, FilesLog, write_files_log
from streamkeeper.errors import CheckpointError
from streamkeeper.storage import LocalStorage, Storage

ENTRIES = [
    FileEntry(f"file:///data/{number:04d}.json", 1_767_225_600_000 + number, number) for number in range(23)
]


class InMemory:
    """A storage that is not a local disk, as an object store is none. It records what was read whole."""

    root = "memory:"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.reads = files, list[str]()

    def read(self, name: str, most: int | None = None) -> bytes | None:
        self.reads.append(name)
        return self.files.get(name)

    def names(self, folder: str = "") -> list[str]:
        below = (name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))
        return sorted({name.split("/")[0] for name in below})

    def path(self, name: str = "") -> str:
        return f"memory:{name}"


def spark_files(entries: list[FileEntry]) -> Iterator[tuple[str, bytes]]:
    """Lay a log out as Spark does, before old batches are removed."""
    for entry in entries:
        compact = entry.batch % 10 == 9
        listed = entries[: entry.batch + 1] if compact else [entry]
        yield f"{entry.batch}.compact" if compact else str(entry.batch), b"".join(write_files_log(listed))


@pytest.fixture(params=["local", "remote"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> FilesLog:
    files = dict(spark_files(ENTRIES))
    if request.param == "remote":
        storage: Storage = InMemory({f"log/{name}": content for name, content in files.items()})  # type: ignore[assignment]
        return FilesLog(storage, "log")
    (tmp_path / "log").mkdir()
    for name, content in files.items():
        (tmp_path / "log" / name).write_bytes(content)
    return FilesLog(LocalStorage(str(tmp_path)), "log")


@pytest.mark.parametrize("upto", [None, 22, 21, 20, 19, 18, 10, 9, 8, 0, -1])
def test_entries_and_count_agree_as_far_as_asked(log: FilesLog, upto: int | None) -> None:
    expected = [entry for entry in ENTRIES if upto is None or entry.batch <= upto]
    assert list(log.entries(upto)) == expected
    assert log.count(upto) == len(expected)


def test_the_newest_batches_are_told_from_names_alone(log: FilesLog) -> None:
    assert log.last_batch() == 22
    assert getattr(log.storage, "reads", []) == []


def test_old_batches_that_spark_removed_are_not_missed(tmp_path: Path) -> None:
    for name, content in spark_files(ENTRIES):
        if int(name.split(".")[0]) >= 19:
            (tmp_path / name).write_bytes(content)
    log = FilesLog(LocalStorage(str(tmp_path.parent)), tmp_path.name)
    assert list(log.entries()) == ENTRIES


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    log = FilesLog(LocalStorage(str(tmp_path)), "none")
    assert (log.last_batch(), list(log.entries()), log.count()) == (None, [], 0)


def test_files_with_unusual_names_keep_their_url(tmp_path: Path) -> None:
    entry = FileEntry("file:///data/in%20ü%22ö/0000.json", 1, 0)
    (tmp_path / "0").write_bytes(b"".join(write_files_log([entry])))
    assert list(FilesLog(LocalStorage(str(tmp_path.parent)), tmp_path.name).entries()) == [entry]


def spoil_remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def spoil_write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content)  # type: ignore[return-value, func-returns-value]


def spoil_cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])  # type: ignore[return-value, func-returns-value]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        pytest.param(spoil_remove("20"), r"lacks batch 20 of the processed files", id="gap"),
        pytest.param(spoil_remove("22"), r"lacks batch 22", id="ends too early"),
        pytest.param(spoil_cut("19.compact"), r"19\.compact is cut off: it ends with", id="compact cut off"),
        pytest.param(spoil_write("19.compact", b""), r"19\.compact is empty", id="compact empty"),
        pytest.param(
            spoil_write("21", b"v9\n{}"), r"21 starts with b'v9' instead of the version v1", id="version"
        ),
        pytest.param(spoil_cut("21"), r"21 is cut off", id="plain cut off"),
        pytest.param(spoil_write("21", b'v1\n{"path":1}'), r"not a processed file", id="no entry"),
    ],
)
def test_a_damaged_log_is_never_read_short(tmp_path: Path, spoil: Callable[[Path], None], match: str) -> None:
    for name, content in spark_files(ENTRIES):
        (tmp_path / name).write_bytes(content)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=match) as told:
        list(FilesLog(LocalStorage(str(tmp_path.parent)), tmp_path.name).entries(22))
    assert "reset_checkpoint" in str(told.value)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\0b"])
def test_a_source_has_a_name_without_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="names no source"):
        Checkpoint(LocalStorage(str(tmp_path)), "").files_log(name)
