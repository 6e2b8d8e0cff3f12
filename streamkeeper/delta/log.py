"""Writers in a Delta table's log, read without a JVM: last transactions, fences, commits.

Delta's streaming sink writes, with each batch, a ``txn`` action: the query's id and the batch's. A recovery
*fences* a query id with one more ``txn``, of version 2^62: Delta then skips every later batch of that id,
silently. So the last real version is the highest below the fence. It stays right even if a late batch is
written between reading the log and the fence.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

from streamkeeper.delta.remembered import DOMAIN, Remembered, of_actions
from streamkeeper.errors import CheckpointError
from streamkeeper.storage import Storage, open_storage
from streamkeeper.support.json_values import parse

FENCE = 2**62
"""Transaction version of a fence; no batch id is ever as high."""

LOG = "_delta_log"
"""Folder of a table's log."""
COMMIT = re.compile(r"([0-9]{20})\.json")
"""Name of a commit in it."""
_FROM_Z85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
"""To the letters of Python's base 85."""


@dataclass(frozen=True)
class Transactions:
    """Transactions of one writer in the log's JSON files.

    ``version`` is its last real transaction, or None if none was found. ``fenced_at`` is the table version of
    its fence, or None. ``complete`` is True if the answer is certain: a real version was found, or the log
    was read back to its first commit. Otherwise the older commits were cleaned up, and only Spark can answer,
    from the table's checkpoints.
    """

    version: int | None
    fenced_at: int | None
    complete: bool

    @property
    def fenced(self) -> bool:
        """Whether the writer is fenced."""
        return self.fenced_at is not None


def exists(table_path: str) -> bool:
    """Return whether there is a Delta table at a path or URL: whether its log has a commit or checkpoint."""
    return any(
        COMMIT.fullmatch(name) or ".checkpoint" in name for name in open_storage(table_path).names(LOG)
    )


def latest_version(table_path: str) -> int | None:
    """Return a table's newest version by its log's JSON files; None if there is no table."""
    versions = _versions(open_storage(table_path))
    return versions[0] if versions else None


def last_transaction(table_path: str, app_id: str, at_most: int | None = None) -> Transactions:
    """Return a writer's last real transaction and whether it is fenced, reading the newest commit first.

    The log is read back to the last real transaction. A path without a table has no version, and is complete.

    :param at_most: number of commits to read; all by default.
    :raises CheckpointError: a commit of the log is not JSON lines.
    """
    storage = open_storage(table_path)
    versions = _versions(storage)
    fenced_at: int | None = None
    for version in versions[:at_most]:
        for transaction in _transactions(storage, version, app_id):
            if transaction < FENCE:
                return Transactions(transaction, fenced_at, True)
            fenced_at = version
    if at_most is not None and len(versions) > at_most:
        return Transactions(None, fenced_at, complete=False)
    return Transactions(None, fenced_at, complete=versions[-1] == 0 if versions else not exists(table_path))


@dataclass(frozen=True)
class LogCommit:
    """One commit of a table.

    ``operation`` and ``user_metadata`` are the writer's. ``transactions`` are keyed by writer (a fence among
    them). ``changes_data`` is True if it changed the table's content. ``removed`` and ``added`` are data
    files by their paths in the log, each with its deletion vector's file or None. ``restored`` is the version
    that a RESTORE went back to, if given by number. ``rows`` is the number of rows in the added files, by
    their statistics; None if unknown. ``remembered`` is what an AUTO CDC table remembers from then on; None
    if the commit does not say it.
    """

    version: int
    operation: str | None
    user_metadata: str | None
    transactions: dict[str, int]
    removed: tuple[tuple[str, str | None], ...]
    added: tuple[tuple[str, str | None], ...]
    changes_data: bool
    restored: int | None = None
    rows: int | None = 0
    remembered: Remembered | None = None


def commits(table_path: str, at_once: int = 1, upto: int | None = None) -> Iterator[LogCommit]:
    """Return the commits whose JSON is still there, newest first, each read when it is asked for.

    :param at_once: how many are read together, for whoever wants most of them.
    :param upto: the newest version to read; without it the table's newest.
    :raises CheckpointError: a commit of the log holds something else than JSON lines.
    """
    storage = open_storage(table_path)
    pending = (version for version in _versions(storage) if upto is None or version <= upto)
    with ThreadPoolExecutor(at_once) as pool:
        while group := list(islice(pending, at_once)):
            yield from pool.map(lambda version: _commit(storage, version), group)


def versions(table_path: str) -> list[int]:
    """Return the versions with JSON still in the log, newest first."""
    return _versions(open_storage(table_path))


def _commit(storage: Storage, version: int) -> LogCommit:
    operation: str | None = None
    metadata: str | None = None
    restored: int | None = None
    transactions: dict[str, int] = {}
    removed: list[tuple[str, str | None]] = []
    added: list[tuple[str, str | None]] = []
    changes_data = False
    rows: int | None = 0
    remembered: Remembered | None = None
    for line in (storage.read(f"{LOG}/{version:020d}.json") or b"").splitlines():
        action = action_in(storage, version, line) if line.strip() else {}
        if "commitInfo" in action:
            operation, metadata = (
                action["commitInfo"].get("operation"),
                action["commitInfo"].get("userMetadata"),
            )
            restored = _restored(action["commitInfo"]) if operation == "RESTORE" else None
        elif "domainMetadata" in action:
            if action["domainMetadata"]["domain"] == DOMAIN:
                remembered = of_actions([action])
        elif "txn" in action:
            transactions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
        for kind, files in (("add", added), ("remove", removed)):
            if kind in action:
                files.append((unquote(action[kind]["path"]), vector_file(action[kind].get("deletionVector"))))
                changes_data = changes_data or bool(action[kind].get("dataChange", True))
        if "add" in action and rows is not None:
            file_rows = rows_of(action["add"])
            rows = None if file_rows is None else rows + file_rows
    return LogCommit(
        version,
        operation,
        metadata,
        transactions,
        tuple(removed),
        tuple(added),
        changes_data,
        restored,
        rows,
        remembered,
    )


def rows_of(added: dict[str, Any]) -> int | None:
    """Return the rows of an added file, by its statistics and its deletion vector; None if unknown."""
    try:
        record_count = json.loads(added.get("stats") or "{}").get("numRecords")
        deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
        return None if record_count is None else int(record_count) - int(deleted)
    except (ValueError, TypeError, AttributeError):  # writers need not write valid statistics
        return None


def _restored(info: dict[str, Any]) -> int | None:
    """Return the version of a RESTORE; None if it was given as a time."""
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if _VERSION.fullmatch(version) else None


def vector_file(descriptor: Any) -> str | None:
    """Return the file of a deletion vector, relative to the table; None if there is none, or it is in the log
    itself.

    Delta's protocol: storage type ``u`` is a prefix and a UUID of 20 characters in Z85; ``i`` is the vector
    itself, ``p`` an absolute path.
    """
    if not descriptor or descriptor.get("storageType") == "i":
        return None
    location = str(descriptor["pathOrInlineDv"])
    if descriptor.get("storageType") == "p":
        return unquote(location)
    number = base64.b85decode(location[-20:].translate(_FROM_Z85))
    return f"{location[:-20]}/deletion_vector_{uuid.UUID(bytes=number)}.bin".lstrip("/")


_VERSION = re.compile(r"[0-9]{1,18}")
_NEEDED = ("path", "appId", "version", "domain")
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "add": {"path": str, "size": int, "stats": str, "deletionVector": dict},
    "remove": {"path": str, "deletionVector": dict},
    "cdc": {"path": str},
    "txn": {"appId": str, "version": int},
    "commitInfo": {
        "operation": str,
        "operationParameters": dict,
        "userMetadata": str,
        "inCommitTimestamp": int,
    },
    "metaData": {"id": str, "configuration": dict, "schemaString": str},
    "protocol": {"readerFeatures": list, "writerFeatures": list},
    "domainMetadata": {"domain": str, "configuration": str},
}
"""Fields of a log's actions that are read here, with their types; those in ``_NEEDED`` may not be absent."""


def action_in(storage: Storage, version: int, line: bytes) -> dict[str, Any]:
    """Return the action in a line of a commit, with fields of the types that Delta's protocol has; empty if
    it is none.

    :raises CheckpointError: the line is not JSON, or no such action.
    """
    try:
        value = parse(line)
        items = value.items() if isinstance(value, dict) else ()
        action = {kind: content for kind, content in items if content is not None}
        check_action(action)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        is_no = "no action" if isinstance(error, TypeError) else "not JSON"
        raise CheckpointError(
            f"{storage.path(f'{LOG}/{version:020d}.json')} holds {line[:60]!r}…, which is {is_no}: the"
            f" table's log is damaged, so the table's content is unknown ({error}). Restore the table from a"
            " backup."
        ) from error
    return action


def check_action(action: Mapping[str, Any]) -> None:
    """Check what is read of an action.

    :raises TypeError: a field lacks, or is of another type.
    """
    for kind, content in action.items():
        fields = _FIELDS.get(kind, {})
        if fields and not isinstance(content, dict):
            raise TypeError(f"{kind} is {str(content)[:60]}")
        for name, field_type in fields.items():
            value = content.get(name)
            is_other = isinstance(value, bool) or not isinstance(value, field_type | None)
            if is_other or (value is None and name in _NEEDED):
                raise TypeError(f"{name} of {kind} is {str(value)[:60]}")
    try:
        for kind in ("add", "remove"):
            vector_file(action.get(kind, {}).get("deletionVector"))
        for features in ("readerFeatures", "writerFeatures"):
            set(action.get("protocol", {}).get(features) or ())
        of_actions([action])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise TypeError(f"what it refers to cannot be read: {error!r}") from error


def _versions(storage: Storage) -> list[int]:
    matches = (COMMIT.fullmatch(name) for name in storage.names(LOG))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _transactions(storage: Storage, version: int, app_id: str) -> Iterator[int]:
    """Yield the versions of one writer's ``txn`` actions in one commit."""
    content = storage.read(f"{LOG}/{version:020d}.json")
    # Parsing is slow: commits without the writer's id are skipped as bytes.
    if content is None or app_id.encode() not in content:
        return
    for line in content.splitlines():
        if b'"txn"' not in line or app_id.encode() not in line:
            continue
        transaction = action_in(storage, version, line).get("txn")
        if transaction and transaction["appId"] == app_id:
            yield int(transaction["version"])
