"""Lists the present files of a files source without Spark, and counts their rows.

The folder is listed as by Spark's streaming source: the files in it, glob patterns expanded, filtered by
``pathGlobFilter``. Files of folders below it are read where one of these is a column's (``column=value``), or
with ``recursiveFileLookup``; else Spark passes over them without a word
(PartitioningAwareFileIndex.allFiles). Names are left out that start with ``.``, or with ``_`` and have no
``=``, or that are still being copied (source: HadoopFSUtils.shouldFilterOutPathName).
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
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from streamkeeper.checkpoint import FileEntry
from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Source
from streamkeeper.errors import StorageError
from streamkeeper.settings import why_refused_place
from streamkeeper.support.amounts import Amount

COUNT_LIMIT = 64 * 1024 * 1024
"""Bytes up to which rows of line-based files are counted for a plan, besides files and bytes."""


_PATTERN = re.compile(r"[*?{\[]")
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


@dataclass
class PassedOver:
    """Paths of files that are there and that Spark passes over without a word: names that it cannot open
    (``unopened``), and files in ``folders`` that it does not look into.
    """

    unopened: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def list_files(source: Source, passed_over: PassedOver | None = None) -> dict[str, SourceFile]:
    """Return the present files of a files source, by path.

    :param passed_over: gets the files that Spark does not read.
    :raises StorageError: the folder cannot be listed.
    """
    return {file.path: file for file in iterate_files(source, passed_over)}


def iterate_files(source: Source, passed_over: PassedOver | None = None) -> Iterator[SourceFile]:
    """Yield the files of :func:`list_files` one by one, in no order."""
    assert source.path is not None, "a files source has a path"
    remote = "://" in source.path and not source.path.startswith("file://")
    files = _remote_files(source.path) if remote else _local_files(plain_path(source.path))
    name_pattern = source.option("pathGlobFilter")
    passed_over = passed_over or PassedOver()
    deep = source.option("recursiveFileLookup").strip().lower() == "true"
    for file in _looked_into(files, deep, passed_over):
        if name_pattern and not _matches(file.path, name_pattern):
            continue
        if _is_text(file.path):
            yield file
        else:
            passed_over.unopened.append(_in_text(file.path))


def _looked_into(
    files: Iterable[tuple[str, SourceFile]], deep: bool, passed_over: PassedOver
) -> Iterator[SourceFile]:
    """Yield the files of the folders that Spark looks into: of those below the source's own only if one is a
    column's.

    :param files: each with its path below the source's own folder, or below one that a pattern stands for.
    :param deep: whether all folders are looked into.
    """
    below: list[SourceFile] = []
    for inside, file in files:
        folders, _, _ = inside.strip("/").rpartition("/")
        deep = deep or "=" in folders
        if deep or not folders:
            yield file
        else:
            below.append(file)
    if deep:
        yield from below
    else:
        passed_over.folders += [_in_text(file.path) for file in below]


def gone(source: Source, entries: Iterable[FileEntry]) -> list[str]:
    """Return the paths of those of some files that are no longer there, unless they were set aside: renamed
    in their folder to a name that Spark passes over.
    """
    paths = ((entry, plain_path(entry.path)) for entry in entries)
    return [path for entry, path in paths if not _is_there(path) and not _is_set_aside(source, entry, path)]


def _is_set_aside(source: Source, entry: FileEntry, path: str) -> bool:
    """Return whether a local file has another name, by its time; in object stores it is another file."""
    folder, pattern = Path(path).parent, source.option("pathGlobFilter")
    return "://" not in path and any(
        (_is_hidden(other.name) or (bool(pattern) and not _matches(other.name, pattern)))
        and not other.name.endswith(".crc")  # a hidden twin of a file, as old as that
        and other.stat().st_mtime_ns // 1_000_000 == entry.timestamp_ms
        for other in (folder.iterdir() if folder.is_dir() else ())
    )


def _is_there(path: str) -> bool:
    if "://" not in path:
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True
    fsspec = importlib.import_module("fsspec")
    fs, place = fsspec.core.url_to_fs(path)
    return bool(fs.exists(place))


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


def _local_files(pattern: str) -> Iterator[tuple[str, SourceFile]]:
    """Yield the files of a folder, or of those that a pattern stands for, each with its path below it."""
    # Path.glob takes no absolute pattern.
    roots = {root for one in _alternatives(pattern) for root in glob.glob(one)}  # noqa: PTH207
    for root in [pattern] if Path(pattern).exists() else sorted(roots):
        if not Path(root).is_file():
            yield from ((file.path[len(root) :], file) for file in _below(root))
        elif not _is_hidden(Path(root).name):
            status = Path(root).stat()
            yield Path(root).name, SourceFile(root, status.st_mtime_ns // 1_000_000, status.st_size)


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
    return _PATTERN.search(path) is not None


def is_inside(path: str, place: str) -> bool:
    """Return whether a file, by its plain path, lies where a source reads; of a pattern, below its fixed
    part.
    """
    base = plain_path(_PATTERN.split(place, maxsplit=1)[0])
    return path == base or path.startswith(base if is_pattern(place) else f"{base.rstrip('/')}/")


def _is_hidden(name: str) -> bool:
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _is_text(name: str) -> bool:
    """Return whether a name on a local disk is text in UTF-8, as a JVM takes all to be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_text(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()


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


def _remote_files(path: str) -> Iterator[tuple[str, SourceFile]]:
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
                file = SourceFile(f"{scheme}://{key}", int(written.timestamp() * 1000), int(info["size"]))
                yield inside, file
