"""Copies of one version of a Delta table: its files and one commit, without a JVM.

A version is its active files, their deletion vectors, and one commit that names them: protocol, metadata,
domains, transactions, files. All names in the commit are relative. So the same bytes in another folder under
that commit are the same table: schema, partitions or clustering, properties, constraints, comments, generated
and identity columns. The commit is written last; until then there is no table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

from streamkeeper.delta import remembered
from streamkeeper.delta.log import vector_file
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.storage import Storage

FIRST_COMMIT = "_delta_log/00000000000000000000.json"

THREADS = 4
TELL_EVERY = 5.0
"""Seconds between two reports of progress."""
_IN_HAND = 1000
"""Files handed to the threads at once."""

FEATURES = frozenset(
    {
        "allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "clustering",
        "columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "identityColumns",
        "inCommitTimestamp", "inCommitTimestamp-preview", "invariants", "rowTracking", "timestampNtz",
        "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck", "variantType",
        "variantType-preview", "variantShredding-preview",
    }
)  # fmt: skip
"""Table features with which the files and one commit are the whole table; of others this is unknown."""


@dataclass(frozen=True)
class CopiedFile:
    """File of a version, below the table's folder; ``size`` in bytes, None if the log does not have it."""

    name: str
    size: int | None


@dataclass(frozen=True)
class Copied:
    """Progress of a copy: files and bytes so far. ``skipped`` of these files were there already, whole."""

    files: int
    bytes: int
    skipped: int


class Progress:
    """Reports of a copy's progress, one every :data:`TELL_EVERY` seconds.

    :param tell: called with ``files``, ``of`` (in total) and ``bytes``.
    :param check: called before each report.
    """

    def __init__(
        self,
        tell: Callable[..., None],
        check: Callable[[], None],
        total: int,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._tell, self._check, self._total, self._monotonic = tell, check, total, monotonic
        self._told = monotonic()
        self._files = self._bytes = self._skipped = 0

    def add(self, size: int, skipped: bool) -> None:
        """Count one file of ``size`` bytes."""
        self._files, self._bytes, self._skipped = self._files + 1, self._bytes + size, self._skipped + skipped
        if self._monotonic() - self._told >= TELL_EVERY:
            self._told = self._monotonic()
            self._check()
            self._tell(files=self._files, of=self._total, bytes=self._bytes)

    def so_far(self) -> Copied:
        """Return the counts so far."""
        return Copied(self._files, self._bytes, self._skipped)


def check_copyable(table: str, protocol: dict[str, Any]) -> None:
    """Check that a table's files and one commit are the whole table.

    :raises RequestError: the table uses a feature for which this is unknown.
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
    """Yield every file that a commit's actions name, each once: data files, files of deletion vectors, and
    those of what an AUTO CDC table remembers.

    :raises RequestError: a file lies outside of the table's folder, as in a shallow clone.
    """
    vectors: set[str] = set()
    for line in commit:
        action = json.loads(line)
        memory = remembered.of_actions([action])
        if memory is not None:
            yield from (CopiedFile(_inside(name), size) for name, size in memory.files)
        add = action.get("add")
        if add is None:
            continue
        yield CopiedFile(_inside(unquote(add["path"])), int(add["size"]))
        vector = vector_file(add.get("deletionVector"))
        if vector is not None and vector not in vectors:
            vectors.add(vector)
            yield CopiedFile(_inside(vector), None)


def copy_files(
    source: Storage, target: Storage, files: Iterable[CopiedFile], progress: Progress, share: bool = False
) -> Copied:
    """Copy files under their own names; a file that is there with the right size is skipped.

    :param share: share files without copying bytes, if the storages can.
    :raises RecoveryError: a file is missing or of another size. Copied files stay, and a second run continues
        from them.
    :raises StorageError: a file cannot be read or written.
    """
    source_sizes, target_sizes, pending = source.sizes(), target.sizes(), iter(files)
    with ThreadPoolExecutor(THREADS) as pool:
        while group := list(islice(pending, _IN_HAND)):
            copied = pool.map(
                lambda file: _copy_file(source, target, file, source_sizes, target_sizes, share), group
            )
            for size, skipped in copied:
                progress.add(size, skipped)
    target.sync()
    return progress.so_far()


def _copy_file(  # noqa: PLR0917 - two sides, each with what is there
    source: Storage,
    target: Storage,
    file: CopiedFile,
    source_sizes: Mapping[str, int],
    target_sizes: Mapping[str, int],
    share: bool,
) -> tuple[int, bool]:
    source_size = source_sizes.get(file.name)
    size = source_size if file.size is None else file.size
    # A file is copied whole or not at all, and never changes.
    if size is not None and target_sizes.get(file.name) == size:
        return size, True
    if source_size is None or source_size != size:
        problem = (
            "is not there any more"
            if source_size is None
            else f"has {source_size} bytes, and the log says {size}"
        )
        raise RecoveryError(
            f"{source.path(file.name)} {problem}: VACUUM, DROP or something else took it while it was copied."
            " Make a new plan: the table as it is now can be copied."
        )
    (target.share if share else target.bring)(source, file.name, file.name)
    return source_size, False


def _inside(name: str) -> str:
    if "://" in name or name.startswith(("/", "file:")) or ".." in name.split("/"):
        raise RequestError(
            f"The table has a file outside of its folder, {name}: it is a shallow clone, or was put together"
            " by hand. Copying its folder would not copy it. Write it into a table of its own first (CREATE"
            " TABLE … AS SELECT)."
        )
    return name
