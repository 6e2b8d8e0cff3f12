"""Troubles of a flow that runs: it is behind, its state grows, it is slower than its trigger, rows come late.

Each is judged by numbers that are kept (:mod:`streamkeeper.history.rows`), so that the monitor needs no
memory of its own. A trouble begins and ends at different bounds, so that it is told once and not again and
again. A flow to which nothing waits is never behind, however long ago its last commit was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from streamkeeper.amounts import counted, size_in_words
from streamkeeper.declare.checkpoint_window import trigger_seconds
from streamkeeper.declare.language import MOST_BEHIND_FOR
from streamkeeper.declare.model import Pipeline
from streamkeeper.drivers.alerts import AlertKind
from streamkeeper.drivers.batch_numbers import Machinery
from streamkeeper.flows.status import FlowState
from streamkeeper.health.flows import IDLE, SLOW, FlowHealth
from streamkeeper.history.rows import Row
from streamkeeper.times import describe_age

JUDGED = (FlowState.RUNNING, FlowState.CHANGE_REFUSED, IDLE, SLOW)
"""States of flows that are judged: what stands still has another alert, or somebody wants it so."""
STANDS = (FlowState.HELD, FlowState.PARKED, FlowState.STOPPING)
"""States in which no input is read, which is not the flow's being behind: the time after them is counted."""
WINDOW = 3600.0
"""Seconds of history that are looked at; :data:`GROWTH` of a flow with state."""
GROWTH = MOST_BEHIND_FOR
"""Seconds over which the growth of a state is taken."""
LEAST_GROWTH = 3600.0
"""Seconds of history without which the growth of a state is not judged."""
DAY = 86400.0
SLOW_FOR = 900.0
"""Seconds for which batches must take longer than their trigger."""
AGAIN = 0.5
"""Part of the bound below which a trouble is over."""
_STILL = 90.0
"""Seconds by which the monitor may look late."""


@dataclass(frozen=True)
class Judgement:
    """What is to be said of one kind of trouble: that it is open (``is_open``), or that it is over."""

    kind: AlertKind
    is_open: bool
    text: str


def judge(
    row: FlowHealth, rows: Sequence[Row], pipeline: Pipeline, ran_on: Machinery | None, now: float
) -> Iterator[Judgement]:
    """Yield what is to be said of a flow; nothing of a trouble between its two bounds, or of unknown numbers.

    :param rows: its history by the minute, oldest first, of :data:`GROWTH` seconds.
    :param ran_on: what its last batch ran on, None where it never told.
    :param now: the storage's time, in seconds since 1970.
    """
    if row.state not in JUDGED:
        return
    lately = [one for one in rows if one.at > now - WINDOW]
    for judgement in (
        _behind(row, rows, pipeline, now),
        _state_grows(row, rows, ran_on, now),
        _slow(row, lately, now),
        _late(row, lately, pipeline),
    ):
        if judgement is not None:
            yield judgement


def _behind(row: FlowHealth, rows: Sequence[Row], pipeline: Pipeline, now: float) -> Judgement | None:
    bound, lag = pipeline.behind_above, row.lag
    if bound is None or lag is None or lag.seconds is None:
        return None
    if lag.seconds < bound * AGAIN:
        if lag.partly_unknown:
            return None  # what cannot be measured may be what is behind
        text = f"{row.flow} is {describe_age(lag.seconds)} behind; {describe_age(bound)} are allowed."
        return Judgement(AlertKind.BEHIND, False, text)
    measured = [one for one in reversed(rows) if one.lag_seconds is not None]
    above = list(
        takewhile(lambda one: one.state not in STANDS and (one.lag_seconds or 0.0) > bound, measured)
    )
    since = above[-1].at - above[-1].seconds if above else now
    if lag.seconds <= bound or now - since < pipeline.behind_for:
        return None
    waits = "" if lag.records is None else f", {counted(lag.records, 'records')}"
    waits += "" if lag.files is None else f", {counted(lag.files, 'files')}"
    ends = lag.caught_up_in
    if lag.trend is not None and lag.trend > 0:
        pace = f"It grows by {lag.trend * 60:.0f} s a minute."
    else:
        pace = "" if ends is None else f"At this pace it has caught up in {describe_age(ends)}."
    return Judgement(
        AlertKind.BEHIND,
        True,
        f"{row.flow} has been more than {describe_age(bound)} behind for {describe_age(now - since)}: the"
        f" oldest input that waits is {describe_age(lag.seconds)} old{waits}. {pace} {_what_fits(row)}",
    )


def _what_fits(row: FlowHealth) -> str:
    last = row.batch_numbers
    if last is None:
        return "Its driver has run no batch yet."
    if last.seconds > trigger_seconds(row.trigger):
        return (
            f"Its last batch took {last.seconds:.0f} s, longer than its trigger ({row.trigger}): give it more"
            " cores, or look at `streamkeeper advise`."
        )
    return (
        "Its batches are shorter than its trigger: let each read more (maxFilesPerTrigger,"
        " maxOffsetsPerTrigger), or trigger more often."
    )


def _state_grows(
    row: FlowHealth, rows: Sequence[Row], ran_on: Machinery | None, now: float
) -> Judgement | None:
    """Judge whether a state in memory will not fit in a day. RocksDB's is on disk, of which nobody tells."""
    sizes = [(one.at, one.state_bytes) for one in rows if one.state_bytes]
    if ran_on is None or ran_on.rocksdb or not ran_on.memory or len(sizes) < 2:
        return None
    (first, small), (last, large) = sizes[0], sizes[-1]
    if last - first < LEAST_GROWTH:
        return None
    then = large + (large - small) / (last - first) * DAY
    description = (
        f"the state of {row.flow} has {size_in_words(large)} in memory, and grew by"
        f" {size_in_words(max(0, large - small))} in {describe_age(last - first)}; its"
        f" {'executors have' if ran_on.executors > 1 else 'executor has'} {size_in_words(ran_on.memory)}."
    )
    if then > ran_on.memory:
        way = 'Declare state_store="rocksdb", a watermark or a shorter one, or give it more memory.'
        return Judgement(AlertKind.STATE_GROWS, True, f"In a day it will not fit: {description} {way}")
    fits = then < ran_on.memory * AGAIN
    return Judgement(AlertKind.STATE_GROWS, False, f"It fits for a day: {description}") if fits else None


def _slow(row: FlowHealth, rows: Sequence[Row], now: float) -> Judgement | None:
    every = trigger_seconds(row.trigger)
    ran = [one for one in rows if one.batches and one.at > now - SLOW_FOR]
    times = [one.batch_seconds / one.batches for one in ran]
    waits = row.lag is not None and bool(row.lag.seconds)
    unknown = row.lag is not None and row.lag.partly_unknown
    if (waits or unknown) and not ran:
        return None  # as after a hold: what its batches take is yet to be seen
    if unknown and not waits and min(times) > every * AGAIN:
        return None
    if not waits or min(times) <= every * AGAIN:
        text = f"{row.flow} keeps up with its trigger ({row.trigger})."
        return Judgement(AlertKind.SLOW, False, text)
    whole = now - (ran[0].at - ran[0].seconds) >= SLOW_FOR - _STILL
    if not whole or min(times) <= every:
        return None
    mean = sum(one.batch_seconds for one in ran) / sum(one.batches for one in ran)
    return Judgement(
        AlertKind.SLOW,
        True,
        f"{row.flow} has taken {mean:.1f} s a batch for {describe_age(SLOW_FOR)}, longer than its trigger"
        f" ({row.trigger}), and input waits. Give it more cores, or declare a longer trigger; `streamkeeper"
        " advise` tells what takes the time.",
    )


def _late(row: FlowHealth, rows: Sequence[Row], pipeline: Pipeline) -> Judgement | None:
    bound = pipeline.late_above
    if bound is None:
        return None
    late, read = sum(one.late for one in rows), sum(one.rows for one in rows)
    description = f"of {read:,} rows that {row.flow} read in the last hour, {late:,} were dropped as late"
    if late > bound * max(1, read):
        return Judgement(
            AlertKind.LATE_ROWS,
            True,
            f"{description} ({late / max(1, read):.2%}; allowed are {bound:.2%}). Declare a longer watermark,"
            " and reset the flow to read them again.",
        )
    if late <= bound * AGAIN * read:
        return Judgement(AlertKind.LATE_ROWS, False, f"{description}; allowed are {bound:.2%}.")
    return None
