"""Checkpoints that somebody damaged in ways that Spark never does: each is told in words, at once, and by the
exit code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded" / "files_aggregation"
DIGITS = "7" * 4999
DEEP = "[" * 100_000
WRAP = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); from streamkeeper.cli"
    " import main; main()"
)


def look(place: str | Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Inspect in a process of its own, which may neither take long nor much memory."""
    command = [sys.executable, "-c", WRAP, "inspect", str(place), *more]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in shutil.copytree(RECORDED, tmp_path / "checkpoint").rglob(".*.crc"):
        name.unlink()
    return tmp_path / "checkpoint"


def newest(folder: Path) -> Path:
    return max((file for file in folder.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))


def offset(text: str) -> Callable[[Path], object]:
    """Give what writes an offset into the newest entry of the offset log."""

    def write(checkpoint: Path) -> None:
        file = newest(checkpoint / "offsets")
        file.write_text("\n".join([*file.read_text().split("\n")[:2], text]))

    return write


def watermark(text: str) -> Callable[[Path], object]:
    header = f'{{"batchWatermarkMs":{text},"batchTimestampMs":1,"conf":{{}}}}'
    return lambda checkpoint: newest(checkpoint / "offsets").write_text(f'v1\n{header}\n{{"logOffset":0}}')


def stray(name: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).write_text("v1")


def instead_of(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replace(checkpoint: Path) -> None:
        (checkpoint / name).unlink(missing_ok=True)
        make(checkpoint / name)

    return replace


FOLDER = "is a folder where a file belongs"
DAMAGE: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "watermark without end": (watermark("Infinity"), 1, "is not JSON"),
    "watermark beyond any year": (watermark("99999999999999999"), 0, "none found"),
    "watermark that is a list": (watermark("[1]"), 1, "no offset log's header"),
    "nested deep": (offset(DEEP), 1, "is not JSON"),
    "an offset far away": (
        offset('{"logOffset":3000000000}'),
        1,
        "the offsets say that batch 3000000000 was read",
    ),
    "a partition of 4,999 digits": (offset(f'{{"topic":{{"{DIGITS}":1}}}}'), 0, "unknown"),
    "a file far away": (stray("sources/0/1000000000000"), 1, "gap"),
    "a batch far away": (stray("commits/1000000000000"), 1, "has a gap of 999"),
    "a batch of 200 digits": (stray("offsets/" + "9" * 200), 0, "is not a file of Spark's"),
    "a zero before": (stray("sources/0/01"), 0, "sources/0/01 is not a file of Spark's"),
    "Arabic digits": (stray("sources/0/٣"), 0, "sources/0/٣ is not a file of Spark's"),
    "a folder for metadata": (instead_of("metadata", Path.mkdir), 1, f"metadata {FOLDER}"),
    "a folder for processed files": (instead_of("sources/0/1", Path.mkdir), 1, f"sources/0/1 {FOLDER}"),
    "a pipe for metadata": (instead_of("metadata", os.mkfifo), 1, "metadata is a pipe or a device where a"),
}


@pytest.mark.parametrize(("damage", "code", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_any_damage_is_told_at_once_in_words_and_by_the_exit_code(
    damage: Callable[[Path], object], code: int, said: str, copy: Path
) -> None:
    damage(copy)
    done = look(copy, "--files")
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), (
        done.stdout[-2000:] + done.stderr[-2000:]
    )
    assert look(copy, "--json").returncode == code


def test_a_sound_checkpoint_ends_with_0(copy: Path) -> None:
    assert look(copy).returncode == 0


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        pytest.param("a" * 5000, 2, "There is no flow", id="a name that is too long"),
        pytest.param("/" + "a" * 5000, 1, "File name too long", id="a path that is too long"),
        pytest.param(
            "s3a://", 2, "'s3a://' is no URL of a checkpoint. Give one such as s3://bucket/", id="no bucket"
        ),
        pytest.param("://", 2, "'://' is no URL of a checkpoint", id="no scheme"),
        pytest.param(
            "foo://bar",
            1,
            "'foo://bar' is neither a path nor the URL of a store. Allowed are absolute paths",
            id="no such store",
        ),
        *(
            pytest.param(place, 1, "nor the URL of a store. Allowed are", id=place.partition(":")[0])
            for place in (
                "github://a:b@main/x/y",
                "http://127.0.0.1:9/x/y",
                "zip://x::file:///etc/passwd",
            )
        ),
    ],
)
def test_a_place_that_is_none_is_refused_in_words(place: str, code: int, said: str) -> None:
    done = look(place)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr[-1000:]
