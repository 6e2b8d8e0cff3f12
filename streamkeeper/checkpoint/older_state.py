"""Files of a state that somebody replaced by an older version's: Spark reads such a file, and its rows come
twice.

Spark 4.2 writes no version into a file. What tells is

- the hidden twin of Hadoop, on local disks, where the file was replaced alone;
- Spark's own checksum beside it (``X.crc``, with state format 2 or
  ``spark.sql.streaming.checkpoint.fileChecksum.enabled``), which has the time of writing;
- the times of the entries in a zip file of RocksDB: those of two seconds, by the clock of an executor.

A delta or changelog without checksums has no time, and equal ones are usual: an older one is not recognised
there.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint import crc_files
from streamkeeper.errors import CheckpointError, FileTooLarge
from streamkeeper.support.json_values import MOST_READ, parse

if TYPE_CHECKING:
    from streamkeeper.checkpoint.reader import Checkpoint

VERSIONED = re.compile(r"([0-9]+)(_[0-9a-f-]{36})?\.(delta|snapshot|changelog|zip)(\.crc)?")
"""File of one version of a state store (Spark 4.2.0, both providers); with an id in checkpoint format 2."""
MOST_SUMMED = 1 << 24
"""Bytes of a file up to which its checksum is made: some 20 ms."""
_CLOCKS, _ZONES = 600, 2 * 86_400
"""Seconds by which the clocks of executors may differ, and by which times without a time zone may."""
_QUARTER, _SURE = 900, 10
"""Seconds of a quarter of an hour, of which all time zones are multiples, and those that a batch's start is
later than a file's times for sure.
"""


def fits_its_twin(checkpoint: Checkpoint, file: str) -> bool:
    """Return whether a file is as Hadoop wrote it on a local disk; True where nothing tells."""
    try:
        twin = checkpoint.storage.read(checkpoint.name(crc_files.twin_of(file)), MOST_SUMMED)
    except FileTooLarge:  # as it is beside a file of 2 GB or more
        return _is_long(checkpoint, file)
    if twin is None or _is_long(checkpoint, file):
        return True
    return crc_files.fits(checkpoint.storage.read(checkpoint.name(file)) or b"", twin)


def _is_long(checkpoint: Checkpoint, file: str) -> bool:
    return (checkpoint.storage.size(checkpoint.name(file)) or 0) > MOST_SUMMED


def replaced(
    checkpoint: Checkpoint, store: str, names: Sequence[str], needed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each file that a start needs and that is an older version's by times, with how it shows. Its
    hidden twin is not looked at: :func:`fits_its_twin`.

    :param store: the folder of a state store.
    :param names: all names in it; ``needed`` are the files of versions among them that the start reads.
    """
    for name in needed:
        file = f"{store}/{name}"
        older = _older_by_checksum(checkpoint, store, names, name)
        if older is None and name.endswith(".zip"):
            older = _older_by_entries(checkpoint, store, names, name)
        if older is not None:
            yield file, older


def _content(checkpoint: Checkpoint, file: str) -> bytes:
    """Return the bytes of a file; none of one that is gone, or larger than Spark writes it."""
    try:
        return checkpoint.storage.read(checkpoint.name(file), MOST_READ) or b""
    except FileTooLarge:
        return b""  # told where it is read as part of the state


def _version(name: str) -> int:
    return int(name.partition(".")[0].partition("_")[0])


def _earlier(names: Sequence[str], name: str, end: str) -> list[str]:
    """Return the files of earlier versions whose names end so, the newest first."""
    files = [
        other
        for other in names
        if VERSIONED.fullmatch(other) and other.endswith(end) and _version(other) < _version(name)
    ]
    return sorted(files, key=_version, reverse=True)


def _older_by_checksum(checkpoint: Checkpoint, store: str, names: Sequence[str], name: str) -> str | None:
    if f"{name}.crc" not in names:
        return None
    own = _checksum(checkpoint, f"{store}/{name}.crc")
    for place, earlier in enumerate(_earlier(names, name, ".crc")):
        other = _checksum(checkpoint, f"{store}/{earlier}")
        if own is None or other is None or own["timestampMs"] > other["timestampMs"]:
            return None
        if own == other:
            return f"is the file of version {_version(earlier)} again, by its checksum {name}.crc"
        if not place and own["timestampMs"] < other["timestampMs"] - _CLOCKS * 1000:
            return f"is older than version {_version(earlier)}, by the time in its checksum {name}.crc"
    return None


def _checksum(checkpoint: Checkpoint, file: str) -> Mapping[str, Any] | None:
    try:
        content = parse(_content(checkpoint, file))
    except ValueError:
        return None  # Spark itself refuses it
    has_time = isinstance(content, dict) and isinstance(content.get("timestampMs"), int)
    return content if has_time else None


def _older_by_entries(checkpoint: Checkpoint, store: str, names: Sequence[str], name: str) -> str | None:
    """Return how the times in a zip file show that it is an older version's; None if they do not.

    Bytes that are equal have the same times, and so were written within two seconds, with the same keys. A
    version in between whose bytes differ cannot be: it changed keys, or was written at another time.
    """
    content = _content(checkpoint, f"{store}/{name}")
    at = _written(content)
    same: list[str] = []
    differs = False
    for earlier in _earlier(names, name, ".zip"):
        other = _content(checkpoint, f"{store}/{earlier}")
        before = _written(other)
        if at is None or before is None or (at > before and not same):
            return None
        if not same and not differs and (before - at).total_seconds() > _ZONES:
            return f"is older than version {_version(earlier)}, by the times of its entries"
        if other == content:
            if differs:
                return f"is the file of version {_version(earlier)} again"
            same.append(earlier)
        else:
            differs = True
            if same:
                break
    if same and at is not None and _begun_later(checkpoint, name, names, at):
        return f"is the file of version {_version(same[0])} again: the batch of its own began later"
    return None


def _written(content: bytes) -> datetime | None:
    """Return the newest time of a zip file's entries, as if it were of UTC; None if it is no zip file."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as version:
            return max(datetime(*entry.date_time, tzinfo=UTC) for entry in version.infolist())
    except (zipfile.BadZipFile, zlib.error, ValueError):
        return None


def _begun_later(checkpoint: Checkpoint, name: str, names: Sequence[str], at: datetime) -> bool:
    """Return whether the batch of a version began for sure after the times in its file.

    Times of entries have no zone, so only what is left of quarters of an hour counts. A snapshot beside a
    changelog is written later than its batch, and a copied one has the offsets of another checkpoint.
    """
    match = VERSIONED.fullmatch(name)
    if match is None or match[2] or f"{match[1]}.changelog" in names:
        return False
    try:
        begun_ms = checkpoint.offsets(int(match[1]) - 1).timestamp_ms
    except CheckpointError:
        return False  # told of its offsets
    return bool(begun_ms) and _SURE < (begun_ms / 1000 - at.timestamp()) % _QUARTER < _QUARTER - _SURE
