"""End offsets of a batch whose file ``offsets/<N>`` cannot be read, where the rest of a checkpoint implies
them.

Spark plans a batch only if a source has moved on, or if a stateful query needs one for its watermark alone.
So each batch adds at least one list to a log of processed files, and a start that dies before it plans adds
more. Where the lists are as many as the batches, none of them was read without its batch (Spark 4.2.0,
MicroBatchExecution.constructNextBatch, FileStreamSource.fetchMaxOffset). Other sources are known where the
batches before and after have them at the same offset, since offsets never go back, and where the driver wrote
the ends of just this batch down after it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamkeeper.checkpoint.log_entries import OffsetEntry
from streamkeeper.errors import CheckpointError

if TYPE_CHECKING:
    from streamkeeper.checkpoint.reader import Checkpoint

_MOVED_BY_INPUT = frozenset({"dedupe", "stateStoreSave"})
"""Stateful operators that, without a watermark, never ask for a batch that reads nothing."""


@dataclass(frozen=True)
class Ends:
    """Offsets by source at the end of ``batch``; -1: none, as before the first."""

    batch: int
    sources: Mapping[str, Any]


def implied(
    checkpoint: Checkpoint, batch: int, began: Ends, names: Collection[str], recorded: Ends | None = None
) -> OffsetEntry:
    """Return the end position of a batch that is in the sink and in the newest commit or after it.

    :param began: what counted as read when the generation began.
    :param names: all sources that the query had.
    :param recorded: what its driver wrote down of its last batch.
    :raises CheckpointError: it is not certain; the message says why.
    """
    before, after = _around(checkpoint, batch, began)
    source_names = {*names, *before.sources, *(after.sources if after else ())}
    if not names or not {*checkpoint.sources()} <= source_names:
        raise CheckpointError("the sources that the query had are not on record")
    same = {name for name in source_names if after and before.sources.get(name) == after.sources.get(name)}
    ends = {name: before.sources.get(name) for name in same}
    if recorded is not None and recorded.batch == batch:
        ends |= {name: recorded.sources.get(name) for name in source_names}
    moved = sorted(source_names - ends.keys())
    if moved:
        ends |= _listed(checkpoint, batch, before, after, moved)
    at = {name: offset for name, offset in ends.items() if offset is not None}
    conf = before.conf or (after.conf if after else {})
    return OffsetEntry(batch, 2, _watermark(checkpoint, batch, before), 0, conf, at)


def newest_before(checkpoint: Checkpoint, batch: int, began: Ends, names: Collection[str]) -> str | None:
    """Return the newest known offsets before a batch, as JSON for a request; None if some source has none."""
    sources = dict(_around(checkpoint, batch, began)[0].sources)
    return json.dumps(sources) if sources and sources.keys() >= {*names} else None


def _around(checkpoint: Checkpoint, batch: int, began: Ends) -> tuple[OffsetEntry, OffsetEntry | None]:
    """Return the nearest readable offsets before and after a batch."""
    planned = checkpoint.offset_batches()
    before = _first_readable(checkpoint, (one for one in reversed(planned) if began.batch <= one < batch))
    after = _first_readable(checkpoint, (one for one in planned if one > batch))
    return before or OffsetEntry(began.batch, 2, 0, 0, {}, dict(began.sources)), after


def _first_readable(checkpoint: Checkpoint, batches: Iterable[int]) -> OffsetEntry | None:
    for one in batches:
        try:
            return checkpoint.offsets(one)
        except CheckpointError:
            continue
    return None


def _listed(
    checkpoint: Checkpoint, batch: int, before: OffsetEntry, after: OffsetEntry | None, moved: list[str]
) -> dict[str, Any]:
    """Return the ends of sources that may have moved, if each list of their files has a batch of its own.

    :raises CheckpointError: it is not certain.
    """
    if not _needs_input(checkpoint, batch):
        raise CheckpointError("its state may have asked for batches that read nothing")
    first = {name: _list_of(checkpoint, name, before.sources.get(name)) for name in moved}
    last = {
        name: _newest_list(checkpoint, name)
        if after is None
        else _list_of(checkpoint, name, after.sources.get(name))
        for name in moved
    }
    lists = sum(last[name] - first[name] for name in moved)
    batches = (batch if after is None else after.batch) - before.batch
    if lists != batches:
        raise CheckpointError(
            f"since batch {before.batch} there are {batches} batches, and {lists} lists of files that were"
            " read: a start may have listed files without a batch"
        )
    if after is None:
        return {name: {"logOffset": last[name]} for name in moved}
    if len(moved) > 1:
        raise CheckpointError(f"batch {batch} may have read any of {', '.join(moved)}")
    return {moved[0]: {"logOffset": first[moved[0]] + batch - before.batch}}


def _needs_input(checkpoint: Checkpoint, batch: int) -> bool:
    """Return whether each batch up to this one read something."""
    operators = checkpoint.operators()
    if not checkpoint.names("state"):
        return True
    moved_by_input = operators and _MOVED_BY_INPUT.issuperset(one.name for one in operators)
    return bool(moved_by_input) and checkpoint.commit(batch).next_watermark_ms == 0


def _list_of(checkpoint: Checkpoint, name: str, offset: Any) -> int:
    """Return the list of files at which a source stands; -1 before the first.

    :raises CheckpointError: it is no source of files, or that is not known.
    """
    if isinstance(offset, dict) and offset.keys() == {"logOffset"}:
        return int(offset["logOffset"])
    if offset is None and checkpoint.keeps_lists(name):
        return -1
    raise CheckpointError(f"nothing else tells how far the source {name} was read")


def _newest_list(checkpoint: Checkpoint, name: str) -> int:
    newest = checkpoint.files_log(name).last_batch()
    return -1 if newest is None else newest


def _watermark(checkpoint: Checkpoint, batch: int, before: OffsetEntry) -> int:
    """Return the watermark of a batch: that which the commit before it tells, 0 for the first batch.

    :raises CheckpointError: a state depends on it, and the commit cannot be read.
    """
    if batch == 0:
        return 0
    try:
        return checkpoint.commit(batch - 1).next_watermark_ms
    except CheckpointError:
        if checkpoint.names("state"):
            raise CheckpointError(f"the watermark of batch {batch} is not known") from None
        return before.watermark_ms
