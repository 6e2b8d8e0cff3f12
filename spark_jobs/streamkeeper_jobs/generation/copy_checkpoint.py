"""A copy of a checkpoint up to one of its batches, for a query with another id.

Everything that a query needs to continue after batch B is immutable once B is in the sink: Spark writes the
state of a batch (version B+1) before the sink's commit, and names every file by its batch, its version or a
random id. So a copy of what belongs to B and before is correct even while the old query still writes to its
own folder. Hidden files are left out: checksums (``.X.crc``), which no reader needs, and files that are being
written. tests/spark/generation/test_take_over.py tries each state
store provider.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import damaged
from streamkeeper.checkpoint.older_state import VERSIONED
from streamkeeper.checkpoint.state_versions import SHARED_FOLDERS, WHOLE, shared_files, visible
from streamkeeper.declare.offsets import files_batch
from streamkeeper.storage import Storage
from streamkeeper_jobs.spark.session import spark_url

_SCHEMA_LOG = "_schema_log"
"""Prefix of the folders in which Delta keeps the schemas of a source.

Source: Delta 4.4.0, DeltaSourceMetadataTrackingLog.
"""
_AT_ONCE = 8
_OWN_PATH = re.compile(rb'"[^"]*/(state/[0-9]+/[^"]*|sources/[^"/]*)"')
"""Path of a state file within a stateful operator's metadata (Spark 4.2.0, ``stateSchemaFilePaths``), or of a
source's folder within its log of schemas (Delta 4.4.0, ``sourceMetadataPath``).
"""


@dataclass(frozen=True)
class Copied:
    """Result of a copy.

    If ``committed`` is False, the batch is planned but its state is missing: it must be run once without
    output.
    """

    batch: int
    committed: bool


def copy_checkpoint(  # noqa: PLR0917 - what is copied, and where to
    old: Checkpoint,
    batch: int,
    folder: str,
    query_id: str,
    before_each: Callable[[], None],
    into: Storage | None = None,
    *,
    sources: bool = True,
    with_state: bool = False,
) -> Copied:
    """Copy a checkpoint up to and including one batch that is in the sink, into an empty folder.

    The cost is proportional to the state at that batch and to the newest two compacted lists of processed
    files, not to the length of the history.

    :param batch: a batch that the checkpoint has planned; one that only the sink has committed is left to be
        run again.
    :param into: the storage of the copy; by default that of the old checkpoint.
    :param folder: a name in that storage.
    :param before_each: called between two files; may end the copying by raising.
    :param sources: also copy what the sources keep in the checkpoint.
    :param with_state: also copy the state of a batch that is not committed, which cannot be run again.
    :raises CheckpointError: the checkpoint lacks something that the batch needs.
    """
    storage = into or old.storage
    commits = old.commit_batches()
    committed = batch in commits
    version = batch + 1 if committed or with_state else batch
    names = [f"offsets/{number}" for number in old.offset_batches() if batch - 1 <= number <= batch]
    names += [f"commits/{number}" for number in commits if batch - 1 <= number <= batch]
    if f"offsets/{batch}" not in names:
        old.read(f"offsets/{batch}")  # raises with what is missing, and what to do
    names += _sources(old, batch) if sources else ()
    names += _state(old, version)
    storage.overwrite(f"{folder}/metadata", json.dumps({"id": query_id}, separators=(",", ":")).encode())
    with ThreadPoolExecutor(_AT_ONCE, "streamkeeper-copy") as pool:
        try:
            for _ in pool.map(lambda name: copy_file(old, name, storage, folder), names):
                before_each()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    storage.sync(folder)
    return Copied(batch, committed)


def schema_logs(old: Checkpoint, source: str) -> Iterator[str]:
    """Yield the files in which a Delta source tracks its schemas; none if it does not track them."""
    folder = f"sources/{source}"
    for log in (name for name in old.names(folder) if name.startswith(_SCHEMA_LOG)):
        yield from (f"{folder}/{log}/{name}" for name in visible(old, f"{folder}/{log}"))


def copy_file(old: Checkpoint, name: str, storage: Storage, folder: str, share: bool = False) -> None:
    """Copy one file of a checkpoint, or share it where it need not be changed.

    A stateful operator's metadata and a source's schema log name files by full path: these paths are changed
    to the new folder. The offset log is copied as the checkpoint reads it, since an adopted one uses other
    source names.
    """
    if "/_metadata/" in name or f"/{_SCHEMA_LOG}" in name:
        storage.overwrite(f"{folder}/{name}", _led_into(old, old.read(name), storage, folder))
    elif name.startswith("offsets/"):
        storage.overwrite(f"{folder}/{name}", old.read(name))
    else:
        (storage.share if share else storage.bring)(old.storage, old.name(name), f"{folder}/{name}")


def _led_into(old: Checkpoint, content: bytes, storage: Storage, folder: str) -> bytes:
    """Return the content with the checkpoint's own paths replaced by those of its copy.

    The paths of another storage are found by their ending, however their beginning is spelled.
    """
    if storage.root == old.storage.root:
        return content.replace(f"/{old.folder}/".encode(), f"/{folder}/".encode())
    url = spark_url(storage.path(folder))
    root = url if "://" in url else f"file:{url}"
    return _OWN_PATH.sub(lambda match: b'"' + root.encode() + b"/" + match[1] + b'"', content)


def _sources(old: Checkpoint, batch: int) -> Iterator[str]:
    """Yield the files that the sources keep: of a files log those up to the batch, of other sources all."""
    offsets = old.offsets(batch).sources
    for source in old.sources():
        yield from schema_logs(old, source)
        last = files_batch(offsets.get(source))
        folder = f"sources/{source}"
        if last is not None:
            yield from _files_log(old, source, last)
        elif old.initial_offsets(source) is not None:
            yield f"{folder}/0"
        else:
            yield from _files_log(old, source, None)


def _files_log(old: Checkpoint, source: str, upto: int | None) -> Iterator[str]:
    """Yield the newest two compacted lists, and each plain list after the last of them.

    Spark derives its compaction interval from the distance between the two.
    """
    plain, compact = (
        [number for number in numbers if upto is None or number <= upto]
        for numbers in old.files_log(source).batches()
    )
    start = compact[-1] if compact else -1
    later = [number for number in plain if number > start]
    last = upto if upto is not None else max(later, default=start)
    if missing := sorted(set(range(start + 1, last + 1)) - set(later)):
        raise damaged(
            old.path(f"sources/{source}"),
            f"lacks batch {missing[0]} of the processed files, and {len(missing) - 1} more",
        )
    yield from (f"sources/{source}/{number}.compact" for number in compact[-2:])
    yield from (f"sources/{source}/{number}" for number in later)


def _state(old: Checkpoint, version: int) -> Iterator[str]:
    """Yield the files of every state store that its version needs, and each operator's metadata."""
    for operator in visible(old, "state"):
        for part in visible(old, f"state/{operator}"):
            folder = f"state/{operator}/{part}"
            if part.isdecimal():
                yield from _partition(old, folder, version)
            else:
                yield from _all(old, folder, version)


def _partition(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Yield the files of one partition: of its only store, or of each store with its own folder (joins)."""
    yield from _store(old, folder, version)
    for name in visible(old, folder):
        if name == "_metadata":
            yield from _all(old, f"{folder}/{name}", version)
        elif VERSIONED.fullmatch(name) is None and name not in SHARED_FOLDERS:
            yield from _partition(old, f"{folder}/{name}", version)


def _store(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Yield the files of one state store, from the newest full version on.

    If versions have ids, all files are taken: only Spark knows their lineage.
    """
    matches = [
        match
        for match in map(VERSIONED.fullmatch, visible(old, folder))
        if match and int(match[1]) <= version
    ]
    whole = [int(match[1]) for match in matches if match[3] in WHOLE and not match[4]]
    base = 0 if any(match[2] for match in matches) else max(whole, default=0)
    shared: set[str] = set()
    for match in matches:
        if int(match[1]) < base:
            continue
        yield f"{folder}/{match[0]}"
        if match[3] == "zip" and not match[4]:
            whole_file = f"{folder}/{match[0]}"
            shared.update(shared_files(old.read(whole_file), old.path(whole_file)))
    yield from sorted(f"{folder}/{name}" for name in shared)


def _all(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Yield all files below a folder; those that are named by a batch only if the batch's state is copied."""
    for name in visible(old, folder):
        if visible(old, f"{folder}/{name}"):
            yield from _all(old, f"{folder}/{name}", version)
        elif not (name.isdecimal() and int(name) >= version):
            yield f"{folder}/{name}"
