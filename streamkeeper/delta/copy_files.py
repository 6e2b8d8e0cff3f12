"""What makes up a copy of one version of a Delta table, and copying it. No JVM is started.

A version is its active files, their deletion vectors, and one commit that names them: protocol, metadata,
domains, transactions, files. All names in it are relative, so the same bytes in another folder under that
commit are the same table: schema, partitions or clustering, properties, constraints, comments, generated and
identity columns and all. Until the commit is written, last, there is no table there.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.storage import Storage

FIRST_COMMIT = "_delta_log/00000000000000000000.json"

THREADS = 4
TELL_EVERY = 5.0
"""Seconds between two reports of progress."""
_IN_HAND = 1000
"""Files that are handed to the threads at once."""

FEATURES = frozenset(
    {
        "appendOnly",
        "allowColumnDefaults",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "inCommitTimestamp-preview",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        "variantShredding-preview",
    }
)
"""Table features whose tables are whole with their files and one commit. Of others, such as a catalog's
commits, that is not known.
"""

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85 = str.maketrans(_Z85, _B85)
_UUID_TEXT = 20
"""Characters of a UUID in Z85, at the end of a relative deletion vector's name; a folder's name may come
before them.
"""


@dataclass(frozen=True)
class CopiedFile:
    """A file of a version, by its name below the table's folder. ``size`` in bytes; None where the log does
    not say it.
    """

    name: str
    size: int | None


@dataclass(frozen=True)
class Copied:
    """How far a copy is. ``found`` are files that were there already, whole."""

    files: int
    bytes: int
    found: int


class Progress:
    """Tells how far a copy is, every few seconds. ``tell`` gets numbers by name."""

    def __init__(
        self,
        tell: Callable[..., None],
        check: Callable[[], None],
        total: int,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._tell, self._check, self._total, self._monotonic = tell, check, total, monotonic
        self._told = monotonic()
        self._files = self._bytes = self._found = 0

    def add(self, size: int, found: bool) -> None:
        """Count one file."""
        self._files, self._bytes, self._found = self._files + 1, self._bytes + size, self._found + found
        if self._monotonic() - self._told >= TELL_EVERY:
            self._told = self._monotonic()
            self._check()
            self._tell(files=self._files, of=self._total, bytes=self._bytes)

    def so_far(self) -> Copied:
        """Give what was counted."""
        return Copied(self._files, self._bytes, self._found)


def check_copyable(table: str, protocol: dict[str, Any]) -> None:
    """Make sure that a table is whole with its files and one commit.

    :raises RequestError: it uses a feature of which that is not known.
    """
    used = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    unknown = sorted(used - FEATURES)
    if unknown:
        raise RequestError(
            f"The table at {table} uses {', '.join(unknown)}, and it is not known whether a copy of its files"
            " is a copy of such a table. Nothing was copied. Drop the feature (ALTER TABLE … DROP FEATURE),"
            " or copy the table by other means."
        )


def files_of(commit: Iterable[str]) -> Iterator[CopiedFile]:
    """Give every file that the actions of a commit name, each once: data files, and the files of deletion
    vectors.

    :raises RequestError: one lies outside of the table's folder, as those of a shallow clone do.
    """
    vectors: set[str] = set()
    for line in commit:
        add = json.loads(line).get("add")
        if add is None:
            continue
        yield CopiedFile(_inside(unquote(add["path"])), int(add["size"]))
        vector = _vector_file(add.get("deletionVector") or {})
        if vector is not None and vector not in vectors:
            vectors.add(vector)
            yield CopiedFile(vector, None)


def copy_files(
    source: Storage, target: Storage, files: Iterable[CopiedFile], progress: Progress, share: bool = False
) -> Copied:
    """Copy files under their own names. One that is there with the right size is left: each comes whole or
    not at all, and never changes.

    :param share: copy no byte where the storage can let both have a file.
    :raises RecoveryError: a file is not there any more; what was copied stays, and a copy begun again goes on
        from it.
    :raises StorageError: one cannot be read or written.
    """
    pending = iter(files)
    with ThreadPoolExecutor(THREADS) as pool:
        while group := list(islice(pending, _IN_HAND)):
            for size, found in pool.map(lambda file: _copy_file(source, target, file, share), group):
                progress.add(size, found)
    return progress.so_far()


def _copy_file(source: Storage, target: Storage, file: CopiedFile, share: bool) -> tuple[int, bool]:
    size = source.size(file.name) if file.size is None else file.size
    if size is not None and target.size(file.name) == size:
        return size, True
    there = source.size(file.name)
    if there is None or there != size:
        what = "is not there any more" if there is None else f"has {there} bytes, and the log says {size}"
        raise RecoveryError(
            f"{source.path(file.name)} {what}: VACUUM, DROP or something else took it while it was copied."
            " Make a new plan: the table as it is now can be copied."
        )
    (target.share if share else target.bring)(source, file.name, file.name)
    return there, False


def _inside(name: str) -> str:
    if "://" in name or name.startswith(("/", "file:")) or ".." in name.split("/"):
        raise RequestError(
            f"The table has a file outside of its folder, {name}: it is a shallow clone, or was put together"
            " by hand. Copying its folder would not copy it. Write it into a table of its own first (CREATE"
            " TABLE … AS SELECT)."
        )
    return name


def _vector_file(vector: dict[str, Any]) -> str | None:
    """Give the file that a deletion vector lies in, below the table's folder; None where it lies in the log
    itself.
    """
    kind, place = vector.get("storageType"), str(vector.get("pathOrInlineDv", ""))
    if kind is None or kind == "i":
        return None
    if kind != "u":
        return _inside(unquote(place))
    folder, text = place[:-_UUID_TEXT], place[-_UUID_TEXT:]
    name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(text.translate(_FROM_Z85)))}.bin"
    return f"{folder}/{name}" if folder else name
