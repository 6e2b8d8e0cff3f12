"""Entries of a checkpoint's logs: parsed from bytes, and written as exactly the bytes that Spark writes.

Every log file is a version line (``v1``, ``v2``), then JSON lines, with no newline after the last. Spark's
JSON is compact and keeps its order, so an entry that is read and written again is the same, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from streamkeeper.distribution.versions import SPARK
from streamkeeper.errors import CheckpointError, NewerCheckpoint
from streamkeeper.support.json_values import parse

JsonObject = dict[str, Any]
NONE = "-"
"""Placeholder in the offset log for a source without an offset."""
PARTITIONS = "spark.sql.shuffle.partitions"
"""Setting that v1 of the offset log pins and v2 does not."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_BIGINT = range(-(2**63), 2**63)
_PARTITIONS = range(100_000)
"""Numbers of operators, and of the partitions of a state: each has a folder."""
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
"""Setting of the class of the state store."""
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
"""Setting by which RocksDB writes what a batch changed instead of a snapshot."""
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Setting by which sources have names."""
WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
"""Setting of which of several watermarks rules: the slowest (``min``) or the fastest (``max``)."""
PINNED: Mapping[str, str] = {
    "spark.sql.function.protobufExtensions.enabled": "false",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    WATERMARK_POLICY: "min",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
}
"""Spark's own values of what it pins (Spark 4.2.0; compared in tests/spark/checkpoint/test_pins.py)."""
KNOWN_PINS = {
    *PINNED,
    PARTITIONS,
    EVOLUTION,
    "spark.databricks.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",  # of Spark before 4.0
}
"""Settings that this Spark, or an older one, pins."""
TO_NEWER_SPARK = (
    "Use it with the Spark that wrote it. A flow can have a new checkpoint instead, by reset_checkpoint."
)
"""What to do about a checkpoint of a newer Spark."""


@dataclass(frozen=True)
class OffsetEntry:
    """One file of ``offsets/``: the end position of a batch in each source.

    ``sources`` has the source's name as key (v2), or ``"0"``, ``"1"``, … (v1, and v2 without names). Its
    values are the parsed JSON offsets, None for a source that had none yet (v2 leaves such a source out).
    ``conf`` holds the settings that the checkpoint pins: v2 does not pin ``spark.sql.shuffle.partitions``.
    ``header`` is the rest of the header (v2: ``sourceMetadataInfo``).
    """

    batch: int
    version: int
    watermark_ms: int
    timestamp_ms: int
    conf: dict[str, str]
    sources: dict[str, Any]
    header: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class CommitEntry:
    """One file of ``commits/``. ``state_unique_ids`` (v2): by operator, partition and store; None in v1."""

    batch: int
    version: int
    next_watermark_ms: int
    state_unique_ids: JsonObject | None = None


@dataclass(frozen=True)
class FileEntry:
    """One processed file in a files source's log: URL, modification time (epoch ms), batch that read it."""

    path: str
    timestamp_ms: int
    batch: int


@dataclass(frozen=True)
class StateOperator:
    """Stateful operator, as Spark names it (``dedupe``, ``stateStoreSave``, ``symmetricHashJoin``, …).

    ``partitions`` is the number of partitions of its state. Offset log v1 pins that number for the next
    start. v2 does not: with another ``spark.sql.shuffle.partitions`` the start fails. ``time_mode`` is the
    time of a ``transformWithState``'s timers and times to live (``NoTime``: it has none); None of others.
    """

    id: int
    name: str
    partitions: int
    stores: tuple[str, ...]
    time_mode: str | None = None


def parse_offsets(content: bytes, batch: int, path: str) -> OffsetEntry:
    """Parse the bytes of ``offsets/<batch>``; ``path`` names the file in messages.

    :raises CheckpointError: the file is empty, cut off, not an offset log entry, or of an unknown version.
    """
    version, lines = _versioned(content, path, (1, 2))
    if len(lines) < 2:
        raise damaged(path, "is cut off: it has no offset after its header")
    header = _object(lines[0], path)
    try:
        watermark, timestamp = (
            whole_number(header.pop("batchWatermarkMs")),
            whole_number(header.pop("batchTimestampMs")),
        )
        conf = {str(name): str(value) for name, value in header.pop("conf", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise damaged(path, f"has no offset log's header in its second line ({error!r})") from error
    sources: dict[str, Any] = {}
    for index, line in enumerate(lines[1:]):
        name, text = (str(index), line) if version == 1 else _named(line, path)
        sources[name] = None if text == NONE else _json(text, path)
    return OffsetEntry(batch, version, watermark, timestamp, conf, sources, header)


def parse_commit(content: bytes, batch: int, path: str) -> CommitEntry:
    """Parse the bytes of ``commits/<batch>``.

    :raises CheckpointError: the file is empty, cut off, not a commit, or of an unknown version.
    """
    version, lines = _versioned(content, path, (1, 2))
    # Spark, too, accepts a bare version as an empty commit.
    value = _object(lines[0], path) if lines else {}
    ids = value.get("stateUniqueIds")
    if not is_whole(value.get("nextBatchWatermarkMs", 0)) or not (ids is None or isinstance(ids, dict)):
        raise damaged(path, f"holds {_shown(lines[0])}, which is not a commit")
    return CommitEntry(batch, version, value.get("nextBatchWatermarkMs", 0), ids)


def parse_operator(content: bytes, path: str) -> StateOperator:
    """Parse the bytes of an operator's metadata, v1 or v2.

    :raises CheckpointError: the file is empty, cut off, not an operator's metadata, or of an unknown version.
    """
    _, lines = _versioned(content, path, (1, 2))
    value = _object("".join(lines), path)
    try:
        info, stores = value["operatorInfo"], value["stateStoreInfo"]
        partitions = max((whole_number(store["numPartitions"], _PARTITIONS) for store in stores), default=0)
        return StateOperator(
            whole_number(info["operatorId"], _PARTITIONS),
            str(info["operatorName"]),
            partitions,
            tuple(str(item["storeName"]) for item in stores),
            _object(value.get("operatorPropertiesJson") or "{}", path).get("timeMode"),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, f"is not a state operator's metadata ({error!r})") from error


def parse_file_entry(line: str, path: str) -> FileEntry:
    """Parse one line of a files source's log.

    :raises CheckpointError: the line is cut off, or not a processed file.
    """
    value = _object(line, path)
    try:
        return FileEntry(str(value["path"]), whole_number(value["timestamp"]), whole_number(value["batchId"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(path, f"holds {_shown(line)}, which is not a processed file ({error!r})") from error


def parse_initial_offsets(content: bytes, path: str) -> Any:
    """Parse ``sources/<source>/0``: a Kafka source's first offsets or a rate source's start time; None for a
    files log.

    :raises CheckpointError: the file is empty, cut off, or not JSON.
    """
    # Kafka sources write a zero byte first, for Spark 2.1 to read.
    _, lines = _versioned(content.removeprefix(b"\0"), path, (1,))
    if not lines:
        return None
    value = _json(lines[0], path)
    if isinstance(value, dict) and {"path", "batchId"} <= value.keys():
        return None
    if not is_whole(value) and not (isinstance(value, dict) and all(map(is_partitions, value.values()))):
        raise damaged(path, f"holds {_shown(lines[0])}, which is neither Kafka's offsets nor a time")
    return value


def is_partitions(value: object) -> bool:
    """Return whether a value from JSON is the offsets of a topic by partition."""
    return isinstance(value, dict) and all(is_number(part) and is_whole(end) for part, end in value.items())


def write_offsets(entry: OffsetEntry) -> bytes:
    """Return the bytes of ``offsets/<batch>``, as Spark writes them."""
    header = {
        "batchWatermarkMs": entry.watermark_ms,
        "batchTimestampMs": entry.timestamp_ms,
        "conf": entry.conf,
        **entry.header,
    }
    if entry.version == 2:
        lines = [f"{name}:{_compact(offset)}" for name, offset in entry.sources.items() if offset is not None]
    else:
        lines = [NONE if offset is None else _compact(offset) for offset in entry.sources.values()]
    return "\n".join([f"v{entry.version}", _compact(header), *lines]).encode()


def write_initial_offsets(offsets: Any) -> bytes:
    """Return the bytes of a Kafka source's first offsets as Spark writes them: a zero byte, then v1."""
    return b"\0v1\n" + _compact(offsets).encode()


def write_commit(entry: CommitEntry) -> bytes:
    """Return the bytes of ``commits/<batch>``, as Spark writes them."""
    value: JsonObject = {"nextBatchWatermarkMs": entry.next_watermark_ms}
    if entry.version == 2:
        value["stateUniqueIds"] = entry.state_unique_ids or {}
    return f"v{entry.version}\n{_compact(value)}".encode()


def write_files_log(entries: Iterable[FileEntry]) -> Iterable[bytes]:
    """Yield the bytes of one file of a files source's log, piece by piece, as Spark writes them."""
    yield b"v1"
    for entry in entries:
        yield (
            b"\n"
            + _compact({"path": entry.path, "timestamp": entry.timestamp_ms, "batchId": entry.batch}).encode()
        )


def is_number(name: str) -> bool:
    """Return whether a file's name is a number of Spark's: ASCII digits, no leading zero, within BIGINT."""
    return _NUMBER.fullmatch(name) is not None and int(name) < 2**63


def gaps(numbers: Sequence[int], first: int, upto: int) -> Iterator[range]:
    """Yield the gaps in ascending numbers from ``first`` to before ``upto``: one range each, of any width."""
    expected = first
    for number in (*(number for number in numbers if first <= number < upto), upto):
        if number > expected:
            yield range(expected, number)
        expected = number + 1


def damaged(path: str, description: str) -> CheckpointError:
    """Return the error for a damaged file: what was found, and what to do."""
    return CheckpointError(
        f"{path} {description}. Nothing was changed. Restore the file from a copy of the checkpoint, together"
        " with its hidden .crc file, or give the flow a new checkpoint with reset_checkpoint."
    )


def check_version(line: str, path: str, allowed: tuple[int, ...]) -> None:
    """Check that the first line of a file names no later version than those that are allowed.

    :raises NewerCheckpoint: it does.
    """
    version = re.fullmatch(r"v([0-9]{1,9})", line)
    if version is not None and int(version[1]) > max(allowed, default=0):
        versions = " and ".join(f"v{number}" for number in allowed) or "a file without a version"
        raise NewerCheckpoint(
            f"{path} is of version {line}, and Spark {SPARK} reads {versions}: a newer Spark wrote it."
            f" Nothing was changed. {TO_NEWER_SPARK}"
        )


def _versioned(content: bytes, path: str, allowed: tuple[int, ...]) -> tuple[int, list[str]]:
    if not content:
        raise damaged(path, "is empty: the process or the machine stopped while it was written")
    try:
        first, *lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise damaged(
            path, f"is damaged: it is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    if first not in {f"v{version}" for version in allowed}:
        check_version(first, path, allowed)
        raise damaged(path, f"starts with {_shown(first)} instead of a version such as v1")
    return int(first[1:]), lines


def _named(line: str, path: str) -> tuple[str, str]:
    name, colon, text = line.partition(":")
    if not colon or not name or name.startswith("{"):
        raise damaged(path, f"holds {_shown(line)} where version 2 of the offset log has name:offset")
    return name, text


def _object(text: str, path: str) -> JsonObject:
    value = _json(text, path)
    if not isinstance(value, dict):
        raise damaged(path, f"holds {_shown(text)} where a JSON object is expected")
    return value


def _json(text: str, path: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise damaged(path, f"is cut off or damaged: {_shown(text)} is not JSON") from error


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:30]}…{text[-30:]}")


def is_whole(value: object) -> bool:
    """Return whether a value from JSON is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_number(value: object, allowed: range = _BIGINT) -> int:
    """Return a value from JSON that is a whole number.

    :raises TypeError: it is none.
    :raises ValueError: it is not an allowed one.
    """
    if not is_whole(value):
        raise TypeError(f"{_shown(repr(value))} is not a whole number")
    number = cast("int", value)
    if number not in allowed:
        raise ValueError(f"{number} is not from {allowed.start} to {allowed.stop - 1}")
    return number
