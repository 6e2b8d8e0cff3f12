"""Damage of every kind: told with what to do about it, and never touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from streamkeeper.checkpoint import Checkpoint, Problem
from streamkeeper.checkpoint.crc_files import checksum
from streamkeeper.checkpoint.damage import ERROR, WARNING
from streamkeeper.checkpoint.log_entries import TO_NEWER_SPARK
from streamkeeper.errors import CheckpointError
from streamkeeper.health.inspection import inspect
from streamkeeper.storage import LocalStorage

Spoil = Callable[[Path], object]
Recorded = Callable[[str], Path]
Tree = Callable[[Path], object]
TEMPORARY = ".3.0f5b1c9e-5d0c-4a53-9c1b-7a4a2f100000.tmp"


def empty(name: str) -> Spoil:
    return lambda folder: (folder / name).write_bytes(b"")


def cut(name: str, keep: int) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def remove(*names: str) -> Spoil:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, content: bytes = b"?") -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def rmtree(*names: str) -> Spoil:
    return lambda folder: [shutil.rmtree(folder / name) for name in names]


def each(pattern: str, content: bytes | None) -> Spoil:
    def spoil(folder: Path) -> None:
        for file in folder.glob(pattern):
            file.unlink() if content is None else file.write_bytes(content)

    return spoil


def drop_last_source(folder: Path) -> None:
    file = folder / "offsets" / "1"
    file.write_bytes(file.read_bytes().rsplit(b"\n", 1)[0])
    (folder / "offsets" / ".1.crc").write_bytes(checksum(file.read_bytes()))


def older_version(folder: Path) -> None:
    """Put version 1 of a partition in the place of version 2, with all that is beside it."""
    [own] = folder.glob("state/0/1/2_*.zip")
    for old in sorted(folder.glob("state/0/1/*1_*.zip*")):
        head, dot, rest = old.name.partition("1_")[0], ".zip", old.name.partition(".zip")[2]
        shutil.copyfile(old, own.with_name(f"{head}{own.name.removesuffix('.zip')}{dot}{rest}"))


DAMAGE: dict[tuple[str, str], dict[str, tuple[Spoil, str, str]]] = {
    # the recorded checkpoint and the severity of what must be told; what is done to it, file and words
    ("files_dedup", "error"): {
        "empty offsets": (empty("offsets/2"), "offsets/2", "is empty"),
        "empty commit": (empty("commits/2"), "commits/2", "is empty"),
        "empty metadata": (empty("metadata"), "metadata", "is empty"),
        "truncated header": (
            cut("offsets/2", 400),
            "offsets/2",
            "is cut off: it has no offset after its header",
        ),
        "truncated after version": (cut("offsets/2", 2), "offsets/2", "no offset after its header"),
        "truncated offset": (cut("offsets/2", -3), "offsets/2", "is cut off or damaged"),
        "truncated commit": (cut("commits/2", 9), "commits/2", "is cut off or damaged"),
        "garbage": (write("offsets/2", b"\xff\xfe\x00"), "offsets/2", "is damaged"),
        "newer version": (write("offsets/2", b"v7\n{}\n-"), "offsets/2", "is of version v7"),
        "metadata without id": (write("metadata", b"{}"), "metadata", "instead of {"),
        "no metadata": (remove("metadata"), "metadata", "is missing"),
        "leftover .crc file": (remove("metadata"), ".metadata.crc", "was left behind"),
        "gap at the end": (remove("offsets/1", "offsets/.1.crc"), "offsets/1", "Spark starts from there"),
        "no offsets": (remove("offsets/2", "offsets/.2.crc"), "offsets/2", "but commits/2 is there"),
        "two ahead": (remove("commits/1", "commits/2"), "commits", "batches 1 to 2 are planned"),
        "twin of the next batch": (write("offsets/.3.crc"), "offsets/.3.crc", "Multiple streaming queries"),
        "truncated files log": (cut("sources/0/2", 30), "sources/0/2", "is cut off"),
        "files log too short": (remove("sources/0/2"), "sources/0", "ends at batch 1"),
        "no files log": (rmtree("sources/0"), "sources/0", "has no list of files, but the offsets say"),
        "no log of any source": (rmtree("sources"), "sources/0", "has no list of files"),
        "a line of a list": (
            lambda folder: (folder / "sources/0/2").write_bytes(
                (folder / "sources/0/2").read_bytes().replace(b"timestamp", b"time\0tamp")
            ),
            "sources/0/2",
            "which is not a processed file",
        ),
        "an older list": (cut("sources/0/0", 40), "sources/0/0", "is cut off"),
        "a list is empty": (empty("sources/0/1"), "sources/0/1", "is empty"),
        "a delta is empty": (empty("state/0/0/2.delta"), "state/0/0/2.delta", "is empty"),
        "a delta is gone": (remove("state/0/0/2.delta"), "state/0/0", "lacks version 2"),
        "a partition is gone": (rmtree("state/0/1"), "state/0/1", "a partition of the state is gone"),
        "all partitions are gone": (rmtree("state/0/0", "state/0/1"), "state/0", "the state is gone"),
        "operator": (cut("state/0/_metadata/metadata", 20), "state/0/_metadata/metadata", "is cut off"),
    },
    ("files_dedup", "note"): {
        "older commit": (remove("offsets/0", "offsets/.0.crc"), "commits/0", "a clean-up by Spark"),
        "half-written": (write(f"offsets/{TEMPORARY}"), f"offsets/{TEMPORARY}", "was never finished"),
        "its twin": (write(f"offsets/.{TEMPORARY}.crc"), f"offsets/.{TEMPORARY}.crc", "was never finished"),
        "twin of an old batch": (remove("commits/0"), "commits/.0.crc", "a checksum without its file"),
        "no operator metadata": (remove("state/0/_metadata/metadata"), "state/0", "no operator metadata"),
    },
    ("files_dedup", "warning"): {
        "stale metadata twin": (write("metadata", b'{"id":"x"}'), ".metadata.crc", "is stale"),
        "stale .crc": (write("offsets/.2.crc"), "offsets/.2.crc", "is stale: offsets/2 was changed"),
        "stale .crc of a commit": (write("commits/.2.crc"), "commits/.2.crc", "is stale: commits/2"),
        "stale .crc of a source": (write("sources/0/.2.crc"), "sources/0/.2.crc", "is stale: sources/0/2"),
        "foreign file in a log": (write("offsets/2 (copy)"), "offsets/2 (copy)", "not a file of Spark's"),
        "foreign file": (write("notes.txt"), "notes.txt", "not a file of Spark's"),
        "foreign in a source": (write("sources/0/x.txt"), "sources/0/x.txt", "not a file of Spark's"),
    },
    ("files_stateless", "error"): {
        "truncated compact": (cut("sources/0/9.compact", 700), "sources/0/9.compact", "is cut off"),
        "gap in files log": (remove("sources/0/11"), "sources/0/11", "has a gap"),
    },
    ("files_stateless", "warning"): {
        "gap in offsets": (remove("offsets/5", "offsets/.5.crc"), "offsets/5", "the log has a gap"),
        "gap in commits": (remove("commits/5", "commits/.5.crc"), "commits/5", "the log has a gap"),
    },
    ("rocksdb_dedup", "error"): {
        "a version is empty": (each("state/0/1/2_*.zip", b""), "state/0/1/2_*.zip", "is empty"),
        "a version is garbage": (
            each("state/0/1/2_*.zip", b"?"),
            "state/0/1/2_*.zip",
            "not fit its checksum",
        ),
        "a table of keys is cut": (each("state/0/1/SSTs/*.sst", b"?"), "state/0/1/SSTs/*.sst", "has 1 bytes"),
        "tables of keys are gone": (rmtree("state/0/1/SSTs"), "state/0/1/SSTs/*", "is missing"),
        "an older version": (older_version, "state/0/1/2_*.zip", "is the file of version 1 again"),
        "a version is gone": (each("state/0/1/2_*", None), "state/0/1", "lacks version 2"),
    },
    ("union_positional", "error"): {
        "truncated by a source": (drop_last_source, "offsets/1", "is cut off: it has 1 sources")
    },
}
CASES = {
    case: (name, severity, *damage)
    for (name, severity), damages in DAMAGE.items()
    for case, damage in damages.items()
}


@pytest.mark.parametrize(("name", "severity", "spoil", "file", "what"), CASES.values(), ids=CASES)
def test_damage_is_told_with_advice_and_nothing_is_changed(
    recorded: Recorded, tree: Tree, name: str, spoil: Spoil, *, file: str, what: str, severity: str
) -> None:
    folder = recorded(name)
    spoil(folder)
    before = tree(folder)
    for checkpoint in (
        Checkpoint(LocalStorage(str(folder)), ""),
        Checkpoint(LocalStorage(str(folder.parent)), folder.name),
    ):
        told = [
            problem
            for problem in checkpoint.problems()
            if fnmatch(problem.file, file) and what in problem.description
        ]
        assert [problem.severity for problem in told] == [severity], checkpoint.problems()
        assert told[0].advice.endswith(".")
    assert inspect(LocalStorage(str(folder)), "", count_files=True).problems
    assert tree(folder) == before


@pytest.mark.parametrize("file", ["metadata", "offsets/2", "commits/2", "state/0/_metadata/metadata"])
def test_a_file_of_a_newer_spark_is_told_with_the_versions_that_can_be_read(
    recorded: Recorded, file: str
) -> None:
    folder = recorded("files_dedup")
    write(file, b"v7\n{}\n-")(folder)
    opened = Checkpoint(LocalStorage(str(folder)), "")
    (told,) = [problem for problem in opened.problems() if problem.file == file]
    assert "is of version v7, and Spark 4.2 reads" in told.description
    assert (told.severity, told.advice) == (ERROR, TO_NEWER_SPARK)


@pytest.mark.parametrize(("name", "told"), [("files_dedup", True), ("files_stateless", False)])
def test_settings_of_a_newer_spark_are_told_where_there_is_state(
    recorded: Recorded, name: str, told: bool
) -> None:
    folder = recorded(name)
    opened = Checkpoint(LocalStorage(str(folder)), "")
    assert opened.unknown_pins() is None
    newest = folder / f"offsets/{opened.offset_batches()[-1]}"
    newest.write_text(newest.read_text().replace('"conf":{', '"conf":{"spark.sql.of.tomorrow":"true",'))
    found = [problem for problem in opened.problems() if "of.tomorrow" in problem.description]
    assert [problem.severity for problem in found] == ([WARNING] if told else [])


class Running(LocalStorage):
    """A query that commits one more batch between the listing of its offsets and that of its commits."""

    batch = 3

    def names(self, folder: str = "") -> list[str]:
        if folder == "commits":
            for log in ("offsets", "commits"):
                shutil.copyfile(self.path(f"{log}/2"), self.path(f"{log}/{self.batch}"))
            for part in ("state/0/0", "state/0/1"):
                shutil.copyfile(self.path(f"{part}/3.delta"), self.path(f"{part}/{self.batch + 1}.delta"))
            self.batch += 1
        return super().names(folder)


def test_a_batch_that_is_committed_during_the_look_is_no_damage(recorded: Recorded) -> None:
    storage = Running(str(recorded("files_dedup")))
    assert Checkpoint(storage, "").problems() == ()
    assert storage.batch > 4, "the second look met another batch"


def test_an_upgraded_log_may_change_its_number_of_sources_where_they_have_names(recorded: Recorded) -> None:
    folder = recorded("union_named")
    file = folder / "offsets" / "1"
    file.write_bytes(file.read_bytes().rsplit(b"\n", 1)[0])
    (folder / "offsets" / ".1.crc").unlink()
    assert Checkpoint(LocalStorage(str(folder)), "").problems() == ()


@pytest.mark.parametrize(
    ("file", "read"),
    [
        pytest.param("offsets/2", lambda checkpoint: checkpoint.offsets(2), id="offsets"),
        pytest.param("commits/2", lambda checkpoint: checkpoint.commit(2), id="commit"),
        pytest.param("metadata", lambda checkpoint: checkpoint.query_id(), id="metadata"),
        pytest.param("state/0/_metadata/metadata", lambda found: found.operators(), id="operators"),
    ],
)
@pytest.mark.parametrize("keep", [0, 1, 5, 21])
def test_a_damaged_entry_is_refused_with_its_file_and_what_to_do(
    recorded: Recorded, file: str, read: Callable[[Checkpoint], object], keep: int
) -> None:
    folder = recorded("files_dedup")
    cut(file, keep)(folder)
    with pytest.raises(CheckpointError, match=r"Nothing was changed.*reset_checkpoint") as told:
        read(Checkpoint(LocalStorage(str(folder)), ""))
    assert str(folder / file) in str(told.value)


def test_a_missing_entry_is_refused_with_its_file_and_what_to_do(opened: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(
        CheckpointError, match=r"offsets/7 is missing. Nothing was changed. Restore it .* reset_checkpoint"
    ):
        opened("files_dedup").offsets(7)


def folders(name: str) -> Spoil:
    return lambda folder: (folder / name).mkdir(parents=True)


NONE: dict[str, tuple[Spoil, str]] = {
    "does not exist": (lambda folder: folder.rmdir(), "There is nothing at .*checkpointLocation"),
    "empty folder": (lambda folder: None, "an empty folder or a file.*checkpointLocation"),
    "a file": (
        lambda folder: (folder.rmdir(), folder.write_text("x")),
        "an empty folder or a file.*checkpointLocation",
    ),
    "a table": (folders("_delta_log"), "is a Delta table, not a checkpoint.*checkpointLocation"),
    "other files": (write("a.txt"), r"is not a checkpoint: it holds a\.txt.*checkpointLocation"),
    "checkpoints": (folders("000001-000001/offsets"), "Checkpoints are right below it: 000001-000001"),
}


@pytest.mark.parametrize(("make", "match"), NONE.values(), ids=NONE)
def test_what_is_no_checkpoint_is_refused_with_what_is_there(
    tmp_path: Path, tree: Tree, make: Callable[[Path], object], match: str
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    make(folder)
    before = tree(tmp_path)
    for storage, name in ((LocalStorage(str(folder)), ""), (LocalStorage(str(tmp_path)), "given")):
        with pytest.raises(CheckpointError, match=match):
            inspect(storage, name)
        problems = Checkpoint(storage, name).problems()
        assert [(problem.file, problem.severity) for problem in problems] == [("", "error")]
    assert tree(tmp_path) == before


def test_a_part_of_a_checkpoint_is_refused_with_the_folder_to_give(recorded: Recorded) -> None:
    with pytest.raises(CheckpointError, match=r"a part of a checkpoint\. Give the folder above it"):
        inspect(LocalStorage(str(recorded("files_dedup"))), "offsets")


def test_a_query_that_never_planned_a_batch_has_no_problem(tmp_path: Path, recorded: Recorded) -> None:
    shutil.copy(recorded("files_dedup") / "metadata", tmp_path / "metadata")
    problems: tuple[Problem, ...] = Checkpoint(LocalStorage(str(tmp_path)), "").problems()
    assert [problem for problem in problems if problem.file != "files_dedup"] == []
