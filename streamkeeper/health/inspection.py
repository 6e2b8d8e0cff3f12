"""Content of a checkpoint: the query's position, and problems, read at a cost that history does not raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from streamkeeper.checkpoint.damage import Problem
from streamkeeper.checkpoint.log_entries import OffsetEntry, StateOperator
from streamkeeper.checkpoint.reader import Checkpoint
from streamkeeper.declare.offsets import FILES, describe, kind_of
from streamkeeper.errors import CheckpointError
from streamkeeper.storage import Storage

Read = TypeVar("Read")


@dataclass(frozen=True)
class SourceStand:
    """Position of one source, with offsets as Spark wrote them.

    ``offset`` is that of the last committed batch, ``in_flight`` that of the batch in progress. ``initial``
    is the start of a Kafka source, or the start time of a rate source (epoch ms). ``files`` is the number of
    processed files, if requested.
    """

    name: str
    kind: str
    position: str
    offset: Any
    in_flight: Any = None
    initial: Any = None
    files: int | None = None


@dataclass(frozen=True)
class Inspection:
    """Content of a checkpoint; a value that cannot be determined is None, and ``problems`` say why.

    ``last_commit_at`` is in seconds since the epoch, by the storage's clock; ``last_commit_age_s`` is for
    people only. ``flow``, ``generation`` and the ``schemas`` that were inferred for its sources are of a
    Streamkeeper flow; whoever knows it fills them in.
    """

    path: str
    query_id: str | None
    last_commit: int | None
    last_commit_at: float | None
    last_commit_age_s: float | None
    in_flight: int | None
    offset_log_version: int | None
    watermark_ms: int | None
    sources: tuple[SourceStand, ...]
    operators: tuple[StateOperator, ...]
    problems: tuple[Problem, ...]
    flow: str | None = None
    generation: int | None = None
    schemas: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content as plain values."""
        return asdict(self)


def inspect(storage: Storage, folder: str, count_files: bool = False) -> Inspection:
    """Read a checkpoint without changing it.

    :param count_files: count the processed files, which takes longer the more there are.
    :raises CheckpointError: there is no checkpoint at this place; a damaged one is described, not refused.
    """
    checkpoint = Checkpoint(storage, folder)
    checkpoint.require()
    planned, last = checkpoint.offset_batches(), checkpoint.last_commit()
    in_flight = planned[-1] if planned and (last is None or planned[-1] > last) else None
    done = _or_none(lambda: checkpoint.offsets(last)) if last is not None else None
    running = _or_none(lambda: checkpoint.offsets(in_flight)) if in_flight is not None else None
    committed = _or_none(lambda: checkpoint.commit(last)) if last is not None else None
    modified = checkpoint.committed_at(last)
    entry = done or running
    return Inspection(
        path=checkpoint.path(),
        query_id=_or_none(checkpoint.query_id),
        last_commit=last,
        last_commit_at=modified,
        last_commit_age_s=None if modified is None else max(0.0, time.time() - modified),
        in_flight=in_flight,
        offset_log_version=entry.version if entry else None,
        watermark_ms=committed.next_watermark_ms if committed else entry.watermark_ms if entry else None,
        sources=_sources(checkpoint, done, running, count_files),
        operators=_or_none(checkpoint.operators) or (),
        problems=checkpoint.problems(),
    )


def _sources(
    checkpoint: Checkpoint, done: OffsetEntry | None, running: OffsetEntry | None, count_files: bool
) -> tuple[SourceStand, ...]:
    before, after = done.sources if done else {}, running.sources if running else {}
    names = dict.fromkeys([*before, *after, *checkpoint.sources()])
    return tuple(_stand(checkpoint, name, before.get(name), after.get(name), count_files) for name in names)


def _stand(checkpoint: Checkpoint, name: str, offset: Any, in_flight: Any, count_files: bool) -> SourceStand:
    kind = kind_of(offset if offset is not None else in_flight)
    files = initial = None
    if kind == FILES and count_files:
        files = (
            _or_none(lambda: checkpoint.files_log(name).count(offset["logOffset"]))
            if offset is not None
            else 0
        )
    elif kind != FILES:
        initial = _or_none(lambda: checkpoint.initial_offsets(name))
    position = f"line {offset + 1} of its connection" if _is_line(offset, initial) else describe(offset)
    return SourceStand(name, kind, position, offset, in_flight, initial, files)


def _is_line(offset: Any, initial: Any) -> bool:
    """Return whether an offset is a socket's: that of a rate source comes with a start time."""
    return isinstance(offset, int) and offset >= 0 and initial is None


def _or_none(reading: Callable[[], Read]) -> Read | None:
    """Return None for what cannot be read: Checkpoint.problems says why."""
    try:
        return reading()
    except CheckpointError:
        return None
