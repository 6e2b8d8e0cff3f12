"""Checkpoints damaged at random: ``inspect`` names, with exit code 1, all that the next start could not read,
and never ends otherwise than in words. The oracle reads by itself what Spark reads at a start.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint.damage import ERROR, NOTE
from streamkeeper.cli.inspecting import inspect_place, show_place
from streamkeeper.settings import Settings
from tests.core.checkpoint.conftest import RECORDED
from tests.worlds.states.nasty import bounded_memory

NUMBERS = (
    *(
        b"-1",
        b"99999999999999999",
        b"-99999999999999999",
        b"9223372036854775808",
        b"1" * 5000,
        b"1e400",
        b"NaN",
    ),
    *(b"Infinity", b"{}", b"null", b'"\\ud800"', b"[" * 100_000, b"1.5", b"true"),
)
"""What stands where a number was: beyond years, ranges and types."""
NAMES = sorted(folder.name for folder in RECORDED.iterdir())


def numbers(folder: Path) -> list[int]:
    return (
        sorted(int(file.name) for file in folder.iterdir() if file.name.isdecimal())
        if folder.is_dir()
        else []
    )


def whole(file: Path) -> bytes:
    assert file.stat().st_size < 2**30, "more than a start has memory for"
    return file.read_bytes()


def lines(file: Path) -> list[str]:
    """Read a log's file: its version is the first line; nothing may be cut off."""
    version, *rest = whole(file).removeprefix(b"\0").decode().split("\n")
    assert version in ("v1", "v2"), "an unknown version"
    return [version, *rest]


def parsed(text: str) -> Any:
    value = json.loads(text)
    assert not isinstance(value, float)
    return value


def read_offsets(file: Path) -> Any:
    version, header, *offsets = lines(file)
    told = parsed(header)
    assert offsets and isinstance(told["batchWatermarkMs"], int) and isinstance(told["batchTimestampMs"], int)
    split = [line.partition(":")[::2] if version == "v2" else ("", line) for line in offsets]
    return told, [(name, text if text == "-" else parsed(text)) for name, text in split]


def read_list(file: Path) -> Any:
    found = [parsed(line) for line in lines(file)[1:]]
    return [(str(one["path"]), one["timestamp"] + 0, one["batchId"] + 0) for one in found]


def read_lists(folder: Path, offset: Any) -> Iterator[Any]:
    """Read the newest compacted list of a files source and all after it, which must have no gap."""
    compact = [int(file.stem) for file in folder.glob("*.compact")]
    start, plain = max(compact, default=-1), numbers(folder)
    if compact:
        yield read_list(folder / f"{start}.compact")
    later = [number for number in plain if number > start]
    assert later == list(range(start + 1, start + 1 + len(later))), "a gap"
    assert max([start, *later]) >= offset["logOffset"], "too short"
    yield from (read_list(folder / str(number)) for number in later)


def read_state(folder: Path, version: int) -> Iterator[Any]:
    """Read the state's files: the recorded ones need every file but those of a version that never came."""
    for file in sorted(folder.rglob("*")):
        stem = file.name.partition(".")[0].partition("_")[0]
        wanted = file.suffix in (".delta", ".zip", ".sst", ".changelog") and not file.name.startswith(".")
        newest = file.suffix == ".delta" or not stem.isdecimal() or int(stem) == version
        if wanted and newest and file.is_file():
            yield str(file.relative_to(folder)), file.read_bytes()


def next_start_reads(folder: Path) -> Any:
    """Return what a start reads; any exception means that it would fail."""
    query = parsed(whole(folder / "metadata").decode())["id"]
    assert isinstance(query, str)
    offsets, commits = numbers(folder / "offsets"), numbers(folder / "commits")
    planned = [read_offsets(folder / "offsets" / str(number)) for number in offsets[-2:]]
    assert offsets[-2:] == list(range(max(0, offsets[-1] - 1), offsets[-1] + 1)), "a gap"
    last = max(commits, default=-1)
    assert offsets[-1] >= last
    watermark = [parsed(line) for line in lines(folder / "commits" / str(last))[1:]] if commits else []
    lists = {}
    for source in sorted((folder / "sources").iterdir()) if (folder / "sources").is_dir() else ():
        for place, (name, offset) in enumerate(planned[-1][1]):
            if source.name == (name or str(place)):
                reads = isinstance(offset, dict) and offset.keys() == {"logOffset"}
                first = source / "0"
                lists[source.name] = [*read_lists(source, offset)] if reads else lines(first)[1:]
                if not reads:
                    parsed(lines(first)[1])
    operators = [
        (str(file.relative_to(folder)), parsed("".join(lines(file)[1:]))["operatorInfo"]["operatorName"])
        for file in sorted(folder.glob("state/*/_metadata/metadata"))
    ]
    return query, planned, watermark, lists, operators, [*read_state(folder / "state", last + 1)]


def damage(folder: Path, dice: random.Random) -> str:
    """Damage one file that Spark wrote, with or without its checksum; return what was done."""
    files = sorted(item for item in folder.rglob("*") if item.is_file() and not item.name.endswith(".crc"))
    file = dice.choice(files)
    content, name = file.read_bytes(), str(file.relative_to(folder))
    at = dice.randrange(len(content) + 1)
    large = "state" not in Path(name).parts  # checksums of large files of a state are not made
    way = dice.choice(
        ["empty", "cut", "garbage", "zeros", "gone", "bytes", "line", "number", *(["vast"] if large else [])]
    )
    match way:
        case "gone":
            file.unlink()
            if dice.random() < 0.7:
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            return f"{name} {way}"
        case "empty":
            content = b""
        case "cut":
            content = content[:at]
        case "garbage":
            content = dice.randbytes(dice.randrange(1, 60))
        case "zeros":
            content = content[:at] + bytes(len(content) - at)
        case "bytes":
            content = content[:at] + dice.randbytes(dice.randrange(1, 9)) + content[at + 4 :]
        case "number":
            spans = [found.span() for found in re.finditer(rb"[0-9]+", content)] or [(at, at)]
            start, end = dice.choice(spans)
            content = content[:start] + dice.choice(NUMBERS) + content[end:]
        case "vast":
            with file.open("r+b") as opened:
                opened.truncate(3 * 2**30)  # sparse: no room is taken
            return f"{name} {way}"
        case "line":
            kept = content.split(b"\n")
            kept[dice.randrange(len(kept))] = dice.choice([b"", b"{}", b"v1", b"-", b"[1]", b'{"path":"x"}'])
            content = b"\n".join(kept)
    file.write_bytes(content)
    return f"{name} {way} at {at}"


def check(seed: int, root: Path) -> None:
    dice = random.Random(seed)
    name = dice.choice(NAMES)
    folder = root / f"{seed}-{name}"
    shutil.copytree(RECORDED / name, folder)
    healthy = next_start_reads(folder)
    done = f"seed {seed}: {name}/{damage(folder, dice)}"
    value, text = inspect_place(lambda: Settings.from_environment({}), str(folder), files=False)
    severities = {problem["severity"] for problem in value["problems"]}
    code: int | str | None = 0
    try:
        show_place(str(folder), files=bool(seed % 2), as_json=False)
    except SystemExit as end:
        code = end.code
    assert code == (1 if ERROR in severities else 0), done
    try:
        reads = next_start_reads(folder)
    except Exception as error:  # noqa: BLE001 - whatever the oracle cannot read, a start cannot
        assert ERROR in severities, f"{done}: a start fails ({error!r}), and inspect says\n{text}"
        return
    if reads != healthy:
        # Content that can be read, and is another: told as a checksum that does not fit.
        assert severities - {NOTE} or "gone" in done, f"{done}: a start reads otherwise\n{text}"
    shutil.rmtree(folder)


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.long)])
@bounded_memory()
def test_whatever_a_start_cannot_read_is_named(
    first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = []
    for seed in range(first, 40 if first == 0 else 1_000):
        try:
            check(seed, tmp_path)
        except AssertionError as error:
            failed.append(str(error).partition("\nassert")[0])
        except Exception as error:  # noqa: BLE001 - a traceback is a finding, too
            failed.append(f"seed {seed}: {error!r}")
        capsys.readouterr()
    assert failed == [], "\n".join(failed[:5])
