"""Versions of a query's state that a checkpoint still has, by file names, sizes and RocksDB's own lists.

Spark writes version B+1 of every state store with batch B, and removes versions beyond
``minBatchesToRetain``. A version can be rebuilt from the newest snapshot up to it and every later change.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from typing import TYPE_CHECKING

from streamkeeper.checkpoint import crc_files
from streamkeeper.checkpoint.log_entries import damaged, is_number, parse_operator, whole_number
from streamkeeper.checkpoint.older_state import VERSIONED, fits_its_twin, replaced
from streamkeeper.errors import CheckpointError
from streamkeeper.support.json_values import MOST_READ, parse

if TYPE_CHECKING:
    from streamkeeper.checkpoint.reader import Checkpoint

WHOLE = ("snapshot", "zip")
"""Suffixes of a state store's snapshots: files that need no earlier version."""
SHARED_FOLDERS = ("SSTs", "logs")
"""Folders of a RocksDB store whose files are shared by several versions."""
_STALE = "does not fit its checksum"
_AT_ONCE = 16
"""Stores that are looked at together."""
_NOT_A_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError),
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
)
"""What zipfile raises for bytes that are none, and what reading the metadata of another one raises."""
_SHARED = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))
"""Files that RocksDB versions share: metadata list, folder, name's key (Spark 4.2.0, RocksDBFileManager)."""


def missing_state(checkpoint: Checkpoint, version: int) -> str | None:
    """Return the first file missing to rebuild a version of the state; None if none is missing or there is no
    state.

    :param version: B + 1 for batch B.
    """
    for operator in visible(checkpoint, "state"):
        parts = [part for part in visible(checkpoint, f"state/{operator}") if is_number(part)]
        if not parts and version:
            return f"all partitions of {checkpoint.path(f'state/{operator}')}"
        for part in parts:
            for store in _stores(checkpoint, f"state/{operator}/{part}"):
                missing = _missing(checkpoint, store, version)
                if missing is not None:
                    return missing
    return None


def replaced_state(checkpoint: Checkpoint, version: int) -> str | None:
    """Return the first file of the state at a version that is an older version's, with how it shows; None if
    none is, as far as files tell (:mod:`streamkeeper.checkpoint.older_state`).

    Stores are looked at together: on object storage there may be hundreds.

    :param version: B + 1 for batch B.
    """

    def look(store: str) -> str | None:
        _, needed = _needed(checkpoint, store, version)
        of_store = checkpoint, store, checkpoint.names(store), needed
        damage = next(chain(_stale(*of_store), replaced(*of_store)), None)
        return None if damage is None else f"{checkpoint.path(damage[0])} {damage[1]}"

    stores = [
        store
        for operator in numbered(checkpoint, "state")
        for part in numbered(checkpoint, f"state/{operator}")
        for store in _stores(checkpoint, f"state/{operator}/{part}")
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return next(filter(None, pool.map(look, stores)), None)


def _stale(
    checkpoint: Checkpoint, store: str, names: Sequence[str], needed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each needed file that does not fit its hidden twin."""
    for name in needed:
        # A file with an id may be of an attempt that was killed between the file and its twin.
        twin = crc_files.twin_of(name)
        if "_" not in name and twin in names and not fits_its_twin(checkpoint, f"{store}/{name}"):
            yield f"{store}/{name}", _STALE


def state_damage(checkpoint: Checkpoint, version: int) -> Iterator[tuple[str, str]]:
    """Yield each file of the state that a start at a version needs and cannot use, with its damage: it is
    missing, empty, or a RocksDB version without the files that it shares with others.
    """
    for operator in numbered(checkpoint, "state"):
        declared = checkpoint.operator_file(int(operator))
        parts = numbered(checkpoint, f"state/{operator}")
        try:
            count = parse_operator(checkpoint.read(declared), declared).partitions if declared else len(parts)
        except CheckpointError:  # told of its metadata
            count = len(parts)
        if version and not parts:
            yield f"state/{operator}", "has no partition: the state is gone"
            continue
        for part in map(str, range(count)) if version else ():
            folder = f"state/{operator}/{part}"
            if part not in parts:
                yield folder, "is missing: a partition of the state is gone"
                continue
            for store in _stores(checkpoint, folder):
                yield from _store_damage(checkpoint, store, version)


def _store_damage(checkpoint: Checkpoint, store: str, version: int) -> Iterator[tuple[str, str]]:
    missing = _missing(checkpoint, store, version)
    if missing is not None:
        yield store, f"lacks {missing.partition(' of ')[0]}, which the next batch begins with"
        return
    base, needed = _needed(checkpoint, store, version)
    store_files = checkpoint.names(store)
    for number, versions in groupby(needed, lambda name: int(name.partition(".")[0].partition("_")[0])):
        names = [*versions]
        # Versions with ids may have files of attempts that failed: one that is whole is enough.
        damage = [[*_file_damage(checkpoint, store, name, whole=number == base)] for name in names]
        if all(damage):
            yield from damage[0]
        else:
            whole = [name for name, file_damage in zip(names, damage, strict=True) if not file_damage]
            yield from replaced(checkpoint, store, store_files, whole)


def _file_damage(checkpoint: Checkpoint, store: str, name: str, *, whole: bool) -> Iterator[tuple[str, str]]:
    file = f"{store}/{name}"
    if not checkpoint.storage.size(checkpoint.name(file)):
        yield file, "is empty: the process or the machine stopped while it was written"
    elif not fits_its_twin(checkpoint, file):
        yield file, _STALE
    elif whole and name.endswith(".zip"):
        yield from _zip_damage(checkpoint, store, file)


def _zip_damage(checkpoint: Checkpoint, store: str, file: str) -> Iterator[tuple[str, str]]:
    try:
        shared = shared_files(checkpoint.read(file), checkpoint.path(file))
    except CheckpointError as error:
        yield file, str(error).partition(". Nothing was changed")[0].removeprefix(f"{checkpoint.path(file)} ")
        return
    for name, size in shared.items():
        actual_size = checkpoint.storage.size(checkpoint.name(f"{store}/{name}"))
        if actual_size != size:
            description = (
                "is missing" if actual_size is None else f"has {actual_size:,} bytes instead of {size:,}"
            )
            yield f"{store}/{name}", f"{description}, and {file} needs it"
        elif not fits_its_twin(checkpoint, f"{store}/{name}"):
            yield f"{store}/{name}", f"{_STALE}, and {file} needs it"


def shared_files(content: bytes, path: str) -> dict[str, int]:
    """Return the files that a RocksDB version shares with others, with their sizes in bytes, according to the
    metadata in its zip file.

    :raises CheckpointError: it is no version of a RocksDB state store.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as version:
            size = version.getinfo("metadata").file_size
            if size > MOST_READ:
                raise ValueError(f"its metadata has {size:,} bytes")
            metadata = parse(version.read("metadata").decode().partition("\n")[2])
        return {
            f"{folder}/{item[key]}": whole_number(item["sizeBytes"])
            for listed, folder, key in _SHARED
            for item in metadata.get(listed, ())
        }
    except _NOT_A_ZIP as error:
        raise damaged(path, f"is not a version of a RocksDB state store ({error!r})") from error


def _stores(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    """Yield the folders of one partition's stores: its own folder, or one for each store (joins)."""
    names = visible(checkpoint, folder)
    inner = [
        name
        for name in names
        if VERSIONED.fullmatch(name) is None and name not in (*SHARED_FOLDERS, "_metadata")
    ]
    if not inner or any(VERSIONED.fullmatch(name) for name in names):
        yield folder
    for name in inner:
        yield f"{folder}/{name}"


def _missing(checkpoint: Checkpoint, folder: str, version: int) -> str | None:
    base, names = _needed(checkpoint, folder, version)
    versions = {int(name.partition(".")[0].partition("_")[0]) for name in names}
    lacking = next((number for number in range(base + 1, version + 1) if number not in versions), None)
    return None if lacking is None else f"version {lacking} of {checkpoint.path(folder)}"


def _needed(checkpoint: Checkpoint, folder: str, version: int) -> tuple[int, list[str]]:
    """Return the newest full version of a store up to one, 0 for none, and the files from there to it."""
    matches = map(VERSIONED.fullmatch, visible(checkpoint, folder))
    usable_matches = [match for match in matches if match and not match[4] and int(match[1]) <= version]
    base = max((int(match[1]) for match in usable_matches if match[3] in WHOLE), default=0)
    later = [match for match in usable_matches if int(match[1]) >= max(base, 1)]
    return base, [match[0] for match in sorted(later, key=lambda match: int(match[1]))]


def visible(checkpoint: Checkpoint, folder: str) -> list[str]:
    """Return the names in a folder of a checkpoint, without hidden ones."""
    return [name for name in checkpoint.names(folder) if not name.startswith(".")]


def numbered(checkpoint: Checkpoint, folder: str) -> list[str]:
    """Return the names in a folder of a checkpoint that are numbers, ascending."""
    return sorted(filter(is_number, checkpoint.names(folder)), key=int)
