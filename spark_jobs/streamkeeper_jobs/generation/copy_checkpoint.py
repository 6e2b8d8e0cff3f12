"""Copying a checkpoint as far as one of its batches, for a query of another id: what the old one goes on
writing is not looked at.

Everything that a query needs to continue after batch B is immutable once B is in the sink: Spark writes the
state of a batch (version B+1) before the sink's commit, and names every file by its batch, its version or a
random id. So a copy that takes only what belongs to B and before is right even while the old query still
writes its own folder. Hidden files are left out: twins (``.X.crc``), of which a reader needs none, and files
that are being written. Layout: FACTS-spark ("Checkpoint layout"); tests/spark/generation/test_take_over.py
tries each state store provider.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import damaged
from streamkeeper.checkpoint.state_versions import VERSIONED, WHOLE
from streamkeeper.declare.offsets import FILES, kind_of
from streamkeeper.storage import Storage
from streamkeeper_jobs.spark.session import spark_url

_SHARED = (("sstFiles", "SSTs", "dfsSstFileName"), ("logFiles", "logs", "dfsLogFileName"))
"""What a RocksDB version shares with others: the list in its metadata, the folder, the name's key (Spark
4.2.0, RocksDBFileManager).
"""
_SCHEMA_LOG = "_schema_log"
"""How the folders begin that Delta keeps of a source's schemas (Delta 4.4.0,
DeltaSourceMetadataTrackingLog).
"""
_AT_ONCE = 8
_OWN_PATH = re.compile(rb'"[^"]*/(state/[0-9]+/[^"]*)"')
"""How a stateful operator's metadata name files of its own (Spark 4.2.0, ``stateSchemaFilePaths``)."""


@dataclass(frozen=True)
class Copied:
    """What a copy holds. Where ``committed`` is False its batch is planned and its state is not there: it is
    to be run once, muted.
    """

    batch: int
    committed: bool
    files: int


def copy_checkpoint(  # noqa: PLR0917 - what is copied, and where to
    old: Checkpoint,
    batch: int,
    folder: str,
    query_id: str,
    before_each: Callable[[], None],
    into: Storage | None = None,
    *,
    sources: bool = True,
) -> Copied:
    """Copy a checkpoint up to and with one batch that is in the sink, into a folder with nothing in it.

    What it costs is proportional to the state at that batch and to the newest two compacted lists of
    processed files, not to history.

    :param batch: a batch that the checkpoint has planned; one that only the sink has committed is left to be
        run again.
    :param into: the storage that the copy goes to; by default that of the old checkpoint.
    :param folder: a name in it.
    :param before_each: called between two files; may end the copying by raising.
    :param sources: copy what the sources keep of their own, too.
    :raises CheckpointError: the checkpoint lacks what the batch needs.
    """
    storage = into or old.storage
    commits = old.commit_batches()
    committed = batch in commits
    version = batch + 1 if committed else batch
    names = [f"offsets/{number}" for number in old.offset_batches() if batch - 1 <= number <= batch]
    names += [f"commits/{number}" for number in commits if batch - 1 <= number <= batch]
    if f"offsets/{batch}" not in names:
        old.read(f"offsets/{batch}")  # says what is missing, and what to do
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
    return Copied(batch, committed, len(names) + 1)


def schema_logs(old: Checkpoint, source: str) -> Iterator[str]:
    """Give the files in which a Delta source keeps the schemas that it has gone through, where it tracks
    them.
    """
    kept = f"sources/{source}"
    for log in (name for name in old.names(kept) if name.startswith(_SCHEMA_LOG)):
        yield from (f"{kept}/{log}/{name}" for name in _visible(old, f"{kept}/{log}"))


def copy_file(old: Checkpoint, name: str, storage: Storage, folder: str) -> None:
    """Copy one file; a stateful operator's own metadata, and the log of a source's schemas, name files by
    their full path, which has to lead into the new folder. The offset log is copied as the checkpoint reads:
    that of an adopted one says other names.
    """
    if "/_metadata/" in name or f"/{_SCHEMA_LOG}" in name:
        storage.overwrite(f"{folder}/{name}", _led_into(old, old.read(name), storage, folder))
    elif name.startswith("offsets/"):
        storage.overwrite(f"{folder}/{name}", old.read(name))
    else:
        storage.bring(old.storage, old.name(name), f"{folder}/{name}")


def _led_into(old: Checkpoint, content: bytes, storage: Storage, folder: str) -> bytes:
    """Let the paths that a file of a checkpoint names lead into its copy, however they were spelled in
    another storage.
    """
    if storage.root == old.storage.root:
        return content.replace(f"/{old.folder}/".encode(), f"/{folder}/".encode())
    url = spark_url(storage.path(folder))
    root = url if "://" in url else f"file:{url}"
    return _OWN_PATH.sub(lambda match: b'"' + root.encode() + b"/" + match[1] + b'"', content)


def _sources(old: Checkpoint, batch: int) -> Iterator[str]:
    """Give what the sources keep of their own: of a files log no more than the batch read, of others all."""
    offsets = old.offsets(batch).sources
    for source in old.sources():
        yield from schema_logs(old, source)
        offset = offsets.get(source)
        kept = f"sources/{source}"
        if offset is not None and kind_of(offset) == FILES:
            yield from _files_log(old, source, int(offset["logOffset"]))
        elif old.initial_offsets(source) is not None:
            yield f"{kept}/0"
        else:
            yield from _files_log(old, source, None)


def _files_log(old: Checkpoint, source: str, upto: int | None) -> Iterator[str]:
    """Give the newest two compacted lists (from whose distance Spark learns how often to compact) and each
    plain one after the last.
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
    """Give the files of every state store that its version needs; of each operator what describes it."""
    for operator in _visible(old, "state"):
        for part in _visible(old, f"state/{operator}"):
            folder = f"state/{operator}/{part}"
            if part.isdecimal():
                yield from _partition(old, folder, version)
            else:
                yield from _all(old, folder, version)


def _partition(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Give the files of one partition: those of its only store, and those of each store that has a folder of
    its own (joins).
    """
    yield from _store(old, folder, version)
    for name in _visible(old, folder):
        if name == "_metadata":
            yield from _all(old, f"{folder}/{name}", version)
        elif VERSIONED.fullmatch(name) is None and name not in {shared for _, shared, _ in _SHARED}:
            yield from _partition(old, f"{folder}/{name}", version)


def _store(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Give the files of one state store from the newest whole version on; all where versions have ids, whose
    lineage only Spark knows.
    """
    found = [
        match
        for match in map(VERSIONED.fullmatch, _visible(old, folder))
        if match and int(match[1]) <= version
    ]
    whole = [int(match[1]) for match in found if match[3] in WHOLE and not match[4]]
    base = 0 if any(match[2] for match in found) else max(whole, default=0)
    shared: set[str] = set()
    for match in found:
        if int(match[1]) < base:
            continue
        yield f"{folder}/{match[0]}"
        if match[3] == "zip" and not match[4]:
            shared.update(_shared(old, f"{folder}/{match[0]}"))
    yield from sorted(f"{folder}/{name}" for name in shared)


def _shared(old: Checkpoint, name: str) -> Iterator[str]:
    """Give the files that a RocksDB version shares with others, by its metadata."""
    try:
        with zipfile.ZipFile(io.BytesIO(old.read(name))) as version:
            told = json.loads(version.read("metadata").decode().partition("\n")[2])
        for listed, folder, key in _SHARED:
            yield from (f"{folder}/{item[key]}" for item in told.get(listed, ()))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(old.path(name), f"is no version of a RocksDB state store ({error!r})") from error


def _all(old: Checkpoint, folder: str, version: int) -> Iterator[str]:
    """Give all files below a folder; of those that are named by a batch alone, only of batches whose state is
    there.
    """
    for name in _visible(old, folder):
        if _visible(old, f"{folder}/{name}"):
            yield from _all(old, f"{folder}/{name}", version)
        elif not (name.isdecimal() and int(name) >= version):
            yield f"{folder}/{name}"


def _visible(old: Checkpoint, folder: str) -> list[str]:
    return [name for name in old.names(folder) if not name.startswith(".")]
