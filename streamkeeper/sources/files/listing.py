"""Lists the present files of a files source without Spark, and counts their rows.

The folder is listed as by Spark's streaming source: all files below the path, glob patterns expanded,
filtered by ``pathGlobFilter``. Names are left out that start with ``.``, or with ``_`` and have no ``=``, or
that are still being copied (source: HadoopFSUtils.shouldFilterOutPathName).
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import gzip
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Source
from streamkeeper.errors import StorageError
from streamkeeper.settings import why_refused_place
from streamkeeper.support.amounts import Amount

COUNT_LIMIT = 64 * 1024 * 1024
"""Bytes up to which rows of line-based files are counted for a plan.

A larger source has only files and bytes.
"""


_TIMES = ("LastModified", "last_modified")
"""Names of a file's time in listings of object stores: S3, and Azure."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: path (no scheme, not escaped), modification time (epoch ms), size in bytes."""

    path: str
    modified_ms: int
    size: int


def is_rewritten(file: SourceFile, read_ms: int) -> bool:
    """Return whether a file was written again since it was read: Spark does not read it again.

    :param read_ms: its time then (epoch ms), which stores tell to the second or finer.
    """
    return abs(file.modified_ms - read_ms) > (1000 if "://" in file.path else 0)


def list_files(source: Source) -> dict[str, SourceFile]:
    """Return the present files of a files source, by path.

    :raises StorageError: the folder cannot be listed.
    """
    return {file.path: file for file in iterate_files(source)}


def iterate_files(source: Source, unopened: list[str] | None = None) -> Iterator[SourceFile]:
    """Yield the files of :func:`list_files` one by one, in no order.

    :param unopened: gets the paths of files that Spark cannot open, and passes over without a word.
    :raises StorageError: the folder cannot be listed.
    """
    assert source.path is not None, "a files source has a path"
    remote = "://" in source.path and not source.path.startswith("file://")
    files = _remote_files(source.path) if remote else _local_files(plain_path(source.path))
    name_pattern = next(
        (value for key, value in source.options.items() if key.lower() == "pathglobfilter"), None
    )
    for file in files:
        if name_pattern is not None and not _matches(file.path, name_pattern):
            continue
        if _is_text(file.path):
            yield file
        elif unopened is not None:
            unopened.append(file.path.encode(errors="backslashreplace").decode())


def amount(source: Source, files: Iterable[SourceFile]) -> Amount:
    """Return the number of files, their bytes, and their rows if these are lines and few enough to count."""
    listed = list(files)
    size = sum(file.size for file in listed)
    if not listed:
        return Amount()
    reason = _why_not_counted(source, listed, size)
    if reason is not None:
        return Amount(len(listed), size, None, reason)
    return Amount(len(listed), size, sum(_lines(file.path) for file in listed))


def _why_not_counted(source: Source, files: list[SourceFile], size: int) -> str | None:
    options = {key.lower(): value.lower() for key, value in source.options.items()}
    if (
        source.format not in ("json", "csv", "text")
        or options.get("multiline") == "true"
        or options.get("wholetext") == "true"
    ):
        return f"{source.format} files are not opened for a plan"
    if source.format == "csv" and options.get("header") == "true":
        return "csv files with headers are not opened for a plan"
    if size > COUNT_LIMIT:
        return f"more than {COUNT_LIMIT // 2**20} MiB would have to be read"
    if any("://" in file.path for file in files):
        return "remote files are not opened for a plan"
    if any(
        not file.path.endswith((".json", ".jsonl", ".ndjson", ".csv", ".txt", ".gz"))
        and "." in Path(file.path).name
        for file in files
    ):
        return "some files may be compressed"
    return None


def _lines(path: str) -> int:
    """Return the number of lines of a file that are not empty."""
    with gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb") as file:
        return sum(1 for line in file if line.strip())


def _local_files(pattern: str) -> Iterator[SourceFile]:
    # Path.glob takes no absolute pattern.
    roots = {root for one in _alternatives(pattern) for root in glob.glob(one)}  # noqa: PTH207
    for root in [pattern] if Path(pattern).exists() else sorted(roots):
        if not Path(root).is_file():
            yield from _below(root)
        elif not _is_hidden(Path(root).name):
            status = Path(root).stat()
            yield SourceFile(root, status.st_mtime_ns // 1_000_000, status.st_size)


def _below(root: str) -> Iterator[SourceFile]:
    """Yield the files below a folder, other than below links to folders, as fast as the system lists them."""
    pending = [root]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if _is_hidden(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not entry.is_dir():
                        with contextlib.suppress(FileNotFoundError):  # removed since the folder was listed
                            status = entry.stat()
                            yield SourceFile(entry.path, status.st_mtime_ns // 1_000_000, status.st_size)
        except OSError as error:
            raise StorageError(
                f"{error.filename} cannot be listed: {error.strerror}. Check the folder's owner and mode."
            ) from error


def is_pattern(path: str) -> bool:
    """Return whether a path stands for others, as a Hadoop glob."""
    return any(sign in path for sign in "*?{[")


def _is_hidden(name: str) -> bool:
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _is_text(name: str) -> bool:
    """Return whether a name on a local disk is text in UTF-8, as a JVM takes all to be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _matches(path: str, pattern: str) -> bool:
    """Match a file's name with a Hadoop glob."""
    name = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(name, one) for one in _alternatives(pattern))


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns of a shell that a Hadoop glob stands for: one for each of ``{a,b}``."""
    choice = re.search(r"\{([^{}]*)\}", pattern)
    if choice is None:
        return [pattern.replace("[^", "[!")]
    before, after = pattern[: choice.start()], pattern[choice.end() :]
    return [one for item in choice[1].split(",") for one in _alternatives(f"{before}{item}{after}")]


def _remote_files(path: str) -> Iterator[SourceFile]:
    if (refused := why_refused_place(path)) is not None:
        raise StorageError(refused)
    fsspec = importlib.import_module("fsspec")  # an optional dependency, without types
    fs, base = fsspec.core.url_to_fs(path.replace("s3a://", "s3://", 1))
    scheme = path.split("://", 1)[0].replace("s3a", "s3")
    roots = {root for one in _alternatives(base) for root in fs.glob(one)} if is_pattern(base) else {base}
    for root in sorted(roots):
        for key, info in fs.find(root, detail=True).items():
            inside = str(key)[len(root) :] or str(key).rpartition("/")[2]
            if not any(_is_hidden(part) for part in inside.split("/") if part):
                # Asking for each file's time would be a search in all of them, or a request.
                modified = next((info[name] for name in _TIMES if name in info), None)
                written = modified if isinstance(modified, datetime) else fs.modified(key)
                yield SourceFile(f"{scheme}://{key}", int(written.timestamp() * 1000), int(info["size"]))
