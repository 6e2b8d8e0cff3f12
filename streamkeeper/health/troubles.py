"""Troubles of flows: one table (:data:`TROUBLES`) for the monitor's alerts and for Prometheus' rules.

The monitor judges a flow that runs by numbers that are kept (:mod:`streamkeeper.history.rows`), so that it
needs no memory of its own. A trouble begins and ends at different bounds, so that it is told once and not
again and again. A flow to which nothing waits is never behind, however long ago its last commit was.
Prometheus knows the metrics alone (:mod:`streamkeeper.health.metrics`), and nothing of what a pipeline
declares: its rules have the bounds of a pipeline that declares none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from streamkeeper.declare.checkpoint_window import trigger_seconds
from streamkeeper.declare.language import MOST_BEHIND_FOR
from streamkeeper.declare.model import DEFAULT_BEHIND_FOR, DEFAULT_LATE, DEFAULT_NO_PROGRESS, Pipeline
from streamkeeper.health.flows import IDLE, RETRYING, SLOW, UNREADABLE, FlowHealth
from streamkeeper.history.rows import Row
from streamkeeper.observe.status import FlowState
from streamkeeper.support.amounts import counted, size_in_words
from streamkeeper.support.times import describe_age
from streamkeeper.watch.alerts import AlertKind
from streamkeeper.watch.batch_numbers import Machinery
from streamkeeper.watch.behind import TREND_SECONDS

JUDGED = (FlowState.RUNNING, FlowState.CHANGE_REFUSED, IDLE, SLOW)
"""States of flows that are judged: what stands still has another alert, or somebody wants it so."""
STANDS = (FlowState.PARKED, FlowState.HELD, FlowState.STOPPING)
"""States in which no input is read, which is not the flow's being behind: the time after them is counted."""
WINDOW = 3600.0
"""Seconds of history of which late rows are counted."""
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


MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True)
class Judgement:
    """What is to be said of one kind of trouble: that it is open (``is_open``), or that it is over."""

    kind: AlertKind
    is_open: bool
    text: str


@dataclass(frozen=True)
class _Evidence:
    """What the monitor knows of a flow; the parameters of :func:`judge`."""

    row: FlowHealth
    rows: Sequence[Row]
    pipeline: Pipeline
    ran_on: Machinery | None
    now: float

    @property
    def lately(self) -> list[Row]:
        """The rows of the last :data:`WINDOW`."""
        return [row for row in self.rows if row.at > self.now - WINDOW]


_Verdict = tuple[bool, str] | None
"""Whether a trouble is open, and what is to be said of it; None between its bounds, or of unknown numbers."""


@dataclass(frozen=True)
class Trouble:
    """One row of the table.

    ``rule`` names Prometheus' rule, ``expr`` is its condition in PromQL, and ``lasts`` for how many seconds
    that must hold. ``severity`` is ``page`` (somebody gets up) or ``ticket``. ``summary`` is a sentence with
    Prometheus' templates, ``advice`` says what to do. ``kind`` is the monitor's alert of the same trouble,
    None where it has none; ``judge`` is its judgement of a flow that runs, None where no numbers decide.
    """

    rule: str
    expr: str
    lasts: float
    severity: str
    summary: str
    advice: str
    kind: AlertKind | None = None
    judge: Callable[[_Evidence], _Verdict] | None = None


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
    evidence = _Evidence(row, rows, pipeline, ran_on, now)
    for trouble in TROUBLES:
        verdict = None if trouble.judge is None else trouble.judge(evidence)
        if verdict is not None and trouble.kind is not None:
            yield Judgement(trouble.kind, *verdict)


def advice(kind: AlertKind) -> str:
    """Return what to do about a trouble."""
    return next(trouble.advice for trouble in TROUBLES if trouble.kind is kind)


def _behind(evidence: _Evidence) -> _Verdict:
    row, rows, pipeline, now = evidence.row, evidence.rows, evidence.pipeline, evidence.now
    bound, lag = pipeline.behind_above, row.lag
    if bound is None or lag is None or lag.seconds is None:
        return None
    if lag.seconds < bound * AGAIN:
        if lag.partly_unknown:
            return None  # what cannot be measured may be what is behind
        text = f"{row.flow} is {describe_age(lag.seconds)} behind; {describe_age(bound)} are allowed."
        return False, text
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
    return (
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


def _state_grows(evidence: _Evidence) -> _Verdict:
    """Judge whether a state in memory will not fit in a day. RocksDB's is on disk, of which nobody tells."""
    row, ran_on = evidence.row, evidence.ran_on
    sizes = [(one.at, one.state_bytes) for one in evidence.rows if one.state_bytes]
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
        return True, f"In a day it will not fit: {description} {advice(AlertKind.STATE_GROWS)}"
    return (False, f"It fits for a day: {description}") if then < ran_on.memory * AGAIN else None


def _slow(evidence: _Evidence) -> _Verdict:
    row, now = evidence.row, evidence.now
    every = trigger_seconds(row.trigger)
    ran = [one for one in evidence.lately if one.batches and one.at > now - SLOW_FOR]
    times = [one.batch_seconds / one.batches for one in ran]
    waits = row.lag is not None and bool(row.lag.seconds)
    unknown = row.lag is not None and row.lag.partly_unknown
    if (waits or unknown) and not ran:
        return None  # as after a hold: what its batches take is yet to be seen
    if unknown and not waits and min(times) > every * AGAIN:
        return None
    if not waits or min(times) <= every * AGAIN:
        return False, f"{row.flow} keeps up with its trigger ({row.trigger})."
    whole = now - (ran[0].at - ran[0].seconds) >= SLOW_FOR - _STILL
    if not whole or min(times) <= every:
        return None
    mean = sum(one.batch_seconds for one in ran) / sum(one.batches for one in ran)
    return (
        True,
        f"{row.flow} has taken {mean:.1f} s a batch for {describe_age(SLOW_FOR)}, longer than its trigger"
        f" ({row.trigger}), and input waits. {advice(AlertKind.SLOW)}",
    )


def _late(evidence: _Evidence) -> _Verdict:
    row, rows, bound = evidence.row, evidence.lately, evidence.pipeline.late_above
    if bound is None:
        return None
    late, read = sum(one.late for one in rows), sum(one.rows for one in rows)
    description = f"of {read:,} rows that {row.flow} read in the last hour, {late:,} were dropped as late"
    if late > bound * max(1, read):
        share = f"({late / max(1, read):.2%}; allowed are {bound:.2%})"
        return True, f"{description} {share}. {advice(AlertKind.LATE_ROWS)}"
    if late <= bound * AGAIN * read:
        return False, f"{description}; allowed are {bound:.2%}."
    return None


def _state(*states: str) -> str:
    """Return the PromQL of a flow's being in one of these states: 1 where it is, 0 where it is not."""
    equals = "=" if len(states) == 1 else "=~"
    return f'streamkeeper_flow_state{{state{equals}"{"|".join(states)}"}}'


def span(seconds: float) -> str:
    """Return a duration as Prometheus writes it: ``2h``, ``10m``, ``90s``."""
    whole = int(seconds)
    unit, length = next((unit, length) for unit, length in _UNITS if whole % length == 0)
    return f"{whole // length}{unit}"


_UNITS = (("h", 3600), ("m", 60), ("s", 1))
_FLOW = "{{ $labels.pipeline }}.{{ $labels.flow }}"
_VALUE = "{{ $value | humanizeDuration }}"
_LAG, _MEMORY = "streamkeeper_flow_lag_seconds", "streamkeeper_flow_state_memory_bytes"
_SEE_LOG = "See the log of its DAG, and `streamkeeper flows`."
TROUBLES = (
    Trouble(
        "StreamParked",
        f"{_state(FlowState.PARKED)} == 1",
        0.0,
        "page",
        f"{_FLOW} is parked: it waits for a recovery.",
        "Its page has the cause and the recovery that fits.",
        AlertKind.PARKED,
    ),
    Trouble(
        "StreamDown",
        f"max by (pipeline, flow) ({_state(FlowState.DOWN, RETRYING, FlowState.STARTING, UNREADABLE)}) == 1",
        10 * MINUTE,
        "page",
        f"{_FLOW} has no driver that runs.",
        _SEE_LOG,
    ),
    Trouble(
        "StreamBehind",
        f"max by (pipeline, flow) ({_LAG} > 900 and deriv({_LAG}[{span(TREND_SECONDS)}]) > 0)"
        f" unless on (pipeline, flow) {_state(*STANDS)} == 1",
        DEFAULT_BEHIND_FOR,
        "page",
        f"{_FLOW} is {_VALUE} behind, and that grows.",
        "Let each batch read more, trigger more often, or give it more cores: its page tells which.",
        AlertKind.BEHIND,
        _behind,
    ),
    Trouble(
        "StreamWaits",
        f"time() - streamkeeper_flow_input_waiting_since_timestamp_seconds > {DEFAULT_NO_PROGRESS:.0f}",
        0.0,
        "page",
        f"{_FLOW} has committed nothing for {_VALUE}, although input waits.",
        f"{_SEE_LOG} If such a wait is normal, declare a longer no_progress_after in dp.configure_pipeline.",
        AlertKind.NO_PROGRESS,
    ),
    Trouble(
        "StreamSlow",
        f"{_state(SLOW)} == 1",
        SLOW_FOR,
        "ticket",
        f"{_FLOW} needs more time for a batch than its trigger gives.",
        "Give it more cores, or declare a longer trigger; `streamkeeper advise` tells what takes the time.",
        AlertKind.SLOW,
        _slow,
    ),
    Trouble(
        "StreamRestarts",
        f"increase(streamkeeper_flow_drivers_total[{span(HOUR)}]) > 3",
        0.0,
        "ticket",
        f"{_FLOW} was started more than three times in an hour.",
        "Its page tells what ended its drivers.",
    ),
    Trouble(
        "StreamStateGrows",
        f"{_MEMORY} > 1e9 and predict_linear({_MEMORY}[{span(GROWTH)}], {DAY:.0f}) > 2 * {_MEMORY}",
        LEAST_GROWTH,
        "ticket",
        f"The state of {_FLOW} doubles within a day.",
        'Declare state_store="rocksdb", a watermark or a shorter one, or give it more memory.',
        AlertKind.STATE_GROWS,
        _state_grows,
    ),
    Trouble(
        "StreamDropsLateRows",
        f"increase(streamkeeper_flow_late_rows_total[{span(WINDOW)}]) > {DEFAULT_LATE:g} *"
        f" clamp_min(increase(streamkeeper_flow_input_rows_total[{span(WINDOW)}]), 1)",
        0.0,
        "ticket",
        f"{_FLOW} dropped more than {DEFAULT_LATE:.0%} of the last hour's rows as later than its watermark.",
        "Declare a longer watermark, and reset the flow to read them again.",
        AlertKind.LATE_ROWS,
        _late,
    ),
    Trouble(
        "RecoveryStands",
        'streamkeeper_recovery_steps{step!="planned"} > 0',
        2 * HOUR,
        "ticket",
        "A {{ $labels.recovery }} of {{ $labels.pipeline }} stands at its step {{ $labels.step }}.",
        "See the log of that step in the recovery's DAG: clear its task, or abandon the recovery.",
    ),
    Trouble(
        "MonitorStands",
        f"time() - streamkeeper_monitor_last_look_timestamp_seconds > {10 * MINUTE:.0f}",
        0.0,
        "page",
        f"The DAG monitor_flows has not looked for {_VALUE}: lag is unknown, and it alerts nobody.",
        "Unpause the DAG, or see the log of its newest run and whether Airflow's scheduler works.",
    ),
    Trouble(
        "StateFolderHangs",
        f"time() - streamkeeper_last_look_timestamp_seconds > {5 * MINUTE:.0f}",
        0.0,
        "page",
        f"The state folder has not answered for {_VALUE}.",
        "See whether its disk is full or its store is away. Drivers are started again until it works.",
        AlertKind.STATE_FAILS,
    ),
    Trouble(
        "MetricsMissing",
        'up{job="streamkeeper"} == 0',
        5 * MINUTE,
        "page",
        "Airflow's API server gives no metrics of streams.",
        "See whether the API server works, and whether Prometheus has the token of the metrics.",
    ),
)
"""Every trouble. Bounds that only Prometheus has are in its expression, and all others are named once."""
