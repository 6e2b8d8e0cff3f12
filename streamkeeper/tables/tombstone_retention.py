"""Retention of an AUTO CDC table's tombstones, by the positions of its flows. No JVM, nothing is changed.

The retention is how late a change may arrive at its source. A flow that was stopped meanwhile, or was
rewound, reads it even later. So the longest pause in a flow's commits is added, which gives it as long as the
retention to read what waited. And nothing is removed while a flow may read changes of unknown age: one that
never committed, one that runs once and is not done, one that was rewound less than the retention ago.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import ADOPTED, AFTER_LAST, LATEST, Generation
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import own_commits
from streamkeeper.storage import Storage
from streamkeeper.support.times import describe_age

LOOKED_AT = 100
"""Newest commits of each generation that are read: as many as Spark keeps."""
MENTIONED_PAUSE = 3600.0
"""Seconds from which on a pause is mentioned."""
_ONWARD = (AFTER_LAST, LATEST, ADOPTED)


@dataclass(frozen=True)
class Forgets:
    """Tombstones that may be removed: those learned before a time (epoch seconds); None for none.

    ``reason`` says why these are fewer than the retention alone allows, or None.
    """

    before: float | None
    reason: str | None = None


def forgets(storage: Storage, writers: Iterable[Flow], retention: float, now: float) -> Forgets:
    """Return which tombstones of a table may be removed.

    :param writers: the flows that are declared to write it. One that runs once and is done does not count.
    :param retention: in seconds.
    :param now: in epoch seconds.
    :raises StorageError: a file of a flow cannot be read.
    """
    all_homes = [(FlowHome(storage, flow.pipeline.name, flow.name), flow) for flow in writers]
    homes = [
        (home, flow)
        for home, flow in all_homes
        if not (flow.declaration.once and generations.finished(home) is not None)
    ]
    began = [moment for home, _ in homes if (moment := _first_decided(home)) is not None]
    is_old = bool(began) and min(began) < now - retention
    pause, slowest = 0.0, ""
    for home, flow in homes:
        reason = _reads_what_is_older(home, flow, now - retention, is_old)
        if reason is not None:
            return Forgets(None, reason)
        own = _longest_pause(home, now)
        if own is None:
            return Forgets(
                None,
                f"{flow.full_name}, which writes it, has committed nothing: the first changes that it reads"
                " may be older than any delete",
            )
        if own > pause:
            pause, slowest = own, flow.full_name
    pause_reason = (
        f"{slowest}, which writes it, committed nothing for {describe_age(pause)}, and may have to read"
        " changes that arrived meanwhile"
    )
    return Forgets(now - retention - pause, pause_reason if pause >= MENTIONED_PAUSE else None)


def _reads_what_is_older(home: FlowHome, flow: Flow, since: float, is_old: bool) -> str | None:
    """Return why a flow may read changes older than its position; None if it may not.

    :param is_old: flows wrote the table before ``since``, so a flow added later may first read older changes.
    """
    if flow.declaration.once:
        return f"{flow.full_name}, which writes it, runs once and is not done"
    newest = max(home.generations(), default=None)
    for decided in generations.decided(home):
        if decided.start.mode in _ONWARD or (decided.previous is None and not is_old):
            continue
        start = generations.read_start(home, decided.number)
        superseded = start is None and decided.number != newest
        if superseded or (start is not None and datetime.fromisoformat(start.at).timestamp() < since):
            continue
        return f"{flow.full_name}, which writes it, {_what_it_did(decided, start is not None)}"
    return None


def _what_it_did(decided: Generation, begun: bool) -> str:
    description = f"generation {decided.number} ({decided.start.mode})"
    return (
        f"began {description} within the retention, and may read older changes"
        if begun
        else f"is to start {description}, and may read older changes"
    )


def _longest_pause(home: FlowHome, now: float) -> float | None:
    """Return the longest time in seconds without a batch of a flow, up to now, as far back as its checkpoints
    reach; None without a commit.
    """
    moments: list[float] = []
    for number in home.generations():
        start = generations.read_start(home, number)
        if start is None or generations.is_gone(home, number):
            continue
        checkpoint = Checkpoint(home.storage, start.checkpoint)
        own = own_commits(checkpoint, start)[-LOOKED_AT:]
        moments += [moment for batch in own if (moment := checkpoint.committed_at(batch)) is not None]
    if not moments:
        return None
    return max(0.0, *(later - earlier for earlier, later in pairwise([*sorted(moments), max(now, *moments)])))


def _first_decided(home: FlowHome) -> float | None:
    decided = next(generations.decided(home), None)
    return None if decided is None else datetime.fromisoformat(decided.at).timestamp()
