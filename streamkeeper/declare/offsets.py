"""Offsets of a checkpoint: their description as text, and the sources that they fit.

Shapes: those of Spark 4.2 (``FileStreamSourceOffset``, ``KafkaSourceOffset``) and of Delta 4.4
(``DeltaSourceOffset``); ``tests/spark/checkpoint/test_checkpoint_reader.py`` pins them.
"""

from __future__ import annotations

from typing import Any

from streamkeeper.checkpoint.log_entries import is_number, is_whole
from streamkeeper.declare.model import FORMATS

FILES, KAFKA, DELTA, RATE, UNKNOWN = "files", "kafka", "delta", "rate", "unknown"

_SHAPES = {
    FILES: '{"logOffset": <batch of the files log>}',
    KAFKA: '{"<topic>": {"<partition>": <next offset>}}',
    DELTA: '{"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}',
    RATE: "a number of seconds",
}
_BEFORE_ALL = (-1, -100)
"""Index of "nothing of this version yet", in Delta's source versions 1 and 3 (read: DeltaSourceOffset)."""


def kind_of(offset: Any) -> str:
    """Return the kind of an offset by its shape: ``files``, ``kafka``, ``delta``, ``rate`` or ``unknown``."""
    if is_whole(offset):
        return RATE
    if not isinstance(offset, dict) or not offset:
        return UNKNOWN
    if offset.keys() == {"logOffset"} and is_whole(offset["logOffset"]):
        return FILES
    if offset.keys() == {"offset", "timestamp"} and all(map(is_whole, offset.values())):
        return RATE  # rate-micro-batch
    if {"reservoirId", "reservoirVersion", "index"} <= offset.keys():
        return DELTA
    return KAFKA if all(map(_is_topic, offset.values())) else UNKNOWN


def files_batch(offset: Any) -> int | None:
    """Return the batch of its files log that an offset names; None for one of another kind of source."""
    return offset["logOffset"] if kind_of(offset) == FILES else None


def describe(offset: Any) -> str:
    """Return as text what was read up to an offset."""
    if offset is None:
        return "nothing read yet"
    match kind_of(offset):
        case "files":
            return f"files log {offset['logOffset']}"
        case "kafka":
            return "; ".join(
                f"topic {topic}: {_partitions(partitions)}" for topic, partitions in offset.items()
            )
        case "delta":
            return _describe_delta(offset)
        case "rate":
            return _describe_number(offset) if is_whole(offset) else f"row {offset['offset']}"
        case _:
            return f"offset {offset}"


def check_fits(source_format: str, offset: Any) -> str | None:
    """Return why an offset does not fit a source of this format; None if it does, as None always does."""
    if source_format not in FORMATS:
        return f"No offsets of a {source_format!r} source are known. Allowed are {', '.join(FORMATS)}."
    expected_kind = FORMATS[source_format].offsets
    if offset is None:
        return None
    kind = kind_of(offset)
    if kind != expected_kind:
        whose = "of no source that is known" if kind == UNKNOWN else f"of a {kind} source"
        return (
            f"{offset!r} is an offset {whose}; a {source_format} source has {_SHAPES[expected_kind]}. Give"
            " one of that shape."
        )
    return _out_of_range(expected_kind, offset, -1 if FORMATS[source_format].connection else 0)


def misfit_of(source_format: str, offset: Any) -> str | None:
    """Return as :func:`check_fits` for an offset that Spark itself wrote."""
    # Spark writes {} for a Kafka source whose pattern matches no topic yet.
    source_kind = FORMATS.get(source_format)
    empty = source_kind is not None and source_kind.offsets == KAFKA and offset == {}
    return None if empty else check_fits(source_format, offset)


def is_reached(offset: Any, end: Any) -> bool:
    """Return whether one offset of a source is at or before another; False if that is unknown."""
    if offset is None:
        return True
    kind = kind_of(offset)
    if end is None or kind != kind_of(end):
        return False
    reached = False
    match kind:
        case "files":
            reached = offset["logOffset"] <= end["logOffset"]
        case "rate":
            reached = is_whole(offset) and is_whole(end) and offset <= end
        case "kafka":
            ends = {(topic, part): upto for topic, parts in end.items() for part, upto in parts.items()}
            read = {(topic, part): upto for topic, parts in offset.items() for part, upto in parts.items()}
            reached = all(upto <= ends.get(part, 0) for part, upto in read.items())
        case "delta":
            same = (
                offset["reservoirId"] == end["reservoirId"]
                and not offset.get("isStartingVersion")
                and not end.get("isStartingVersion")
            )
            reached = same and (offset["reservoirVersion"], offset["index"]) <= (
                end["reservoirVersion"],
                end["index"],
            )
    return reached


def _out_of_range(kind: str, offset: Any, least: int) -> str | None:
    """Return why an offset's numbers are ones that no source writes; None if they are not."""
    # -1 of a files log is "no batch yet"; -2 and -1 of Kafka are earliest and latest.
    if kind == FILES and offset["logOffset"] < -1:
        return f"The files log has no batch {offset['logOffset']}. Allowed is -1 (nothing yet) and above."
    if kind == RATE and is_whole(offset) and offset < least:
        return f"{offset} s is before the source's start. Allowed is {least} and above."
    if kind == KAFKA:
        low = [
            f"{topic}/{part}: {end}"
            for topic, parts in offset.items()
            for part, end in parts.items()
            if end < -2
        ]
        return (
            f"Kafka has no offset {', '.join(low)}. Allowed is 0 and above, -2 (earliest) and -1 (latest)."
            if low
            else None
        )
    if kind == DELTA and not (
        is_whole(offset["reservoirVersion"]) and is_whole(offset["index"]) and offset["reservoirVersion"] >= 0
    ):
        return (
            f"A Delta table has no version {offset['reservoirVersion']!r} with index {offset['index']!r}."
            " Give whole numbers, 0 and above."
        )
    return None


def _describe_number(offset: int) -> str:
    return f"{offset} s of rows" if offset >= 0 else "no line of its connection"


def _describe_delta(offset: dict[str, Any]) -> str:
    version, index = offset["reservoirVersion"], offset["index"]
    whole = f"version {version}"
    if offset.get("isStartingVersion"):
        return f"initial snapshot of {whole}, " + (
            "nothing of it done" if index in _BEFORE_ALL else f"files 0 to {index} of it done"
        )
    if index in _BEFORE_ALL:
        return f"{whole}, all before it done"
    return (
        f"{whole}, its change of the table's metadata"
        if index < 0
        else f"{whole}, files 0 to {index} of it done"
    )


def _partitions(partitions: dict[str, int]) -> str:
    ordered = sorted(partitions.items(), key=lambda item: int(item[0]))
    return ", ".join(f"partition {number} → {end}" for number, end in ordered) or "no partitions"


def _is_topic(partitions: Any) -> bool:
    return isinstance(partitions, dict) and all(
        isinstance(number, str) and is_number(number) and is_whole(end) for number, end in partitions.items()
    )
