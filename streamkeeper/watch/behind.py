"""How far a flow is behind its sources: what the monitor measured last, and how that changes."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import linear_regression
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.errors import SourceError, StorageError, StreamkeeperError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.history import events
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.redaction import redact_text
from streamkeeper.sources.base.format import Lag
from streamkeeper.sources.formats import format_of
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.amounts import sum_known
from streamkeeper.watch.pending_input import pause_after

MEASURE_SECONDS = 20.0
"""Seconds that measures may take of a look of the monitor at all flows."""
_AT_ONCE = 8
TREND_SECONDS = 900.0
"""Time over which the trend is told."""
STEADY = 0.02
"""Seconds behind that are added or gone each second, below which a lag neither grows nor shrinks."""
_POINTS = 30
"""Measures that are kept for it."""


@dataclass(frozen=True)
class Behind:
    """How far a flow is behind its sources.

    ``at`` is when it was measured, ``since`` since when input waits without a break, both in seconds since
    1970 by the storage's clock; ``since`` is None if nothing waits. ``trend`` is how much ``seconds`` changes
    a second, over some 15 minutes: above 0 it grows; None while that is unknown.
    """

    at: float
    sources: Mapping[str, Lag]
    trend: float | None = None
    since: float | None = None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest input that waits in any source; None where no source tells."""
        ages = [lag.seconds for lag in self.sources.values() if lag.seconds is not None]
        return max(ages, default=None)

    @property
    def partly_unknown(self) -> bool:
        """Whether nothing is known of what waits in some source."""
        return any(lag.unknown for lag in self.sources.values())

    @property
    def records(self) -> int | None:
        """Records that wait in all sources; None where a source cannot tell."""
        return _sum([lag.records for lag in self.sources.values()])

    @property
    def bytes(self) -> int | None:
        """Bytes that wait in all sources; None where a source cannot tell."""
        return _sum([lag.bytes for lag in self.sources.values()])

    @property
    def files(self) -> int | None:
        """Files that wait in all sources that have files; None where none has, or one cannot tell."""
        return self._sum_of_some("files")

    @property
    def versions(self) -> int | None:
        """Versions that wait in all sources that have some; None where none has, or one cannot tell."""
        return self._sum_of_some("versions")

    @property
    def caught_up_in(self) -> float | None:
        """Seconds until nothing waits, if the trend stays; None if that is unknown, or it does not shrink."""
        if self.seconds == 0 and not self.partly_unknown:
            return 0.0
        if self.seconds is None or self.trend is None or self.trend >= 0:
            return None
        return self.seconds / -self.trend

    @property
    def moves(self) -> str | None:
        """``grows``, ``steady`` or ``shrinks``; None while that is unknown, or where nothing waits."""
        if self.trend is None or not self.seconds:
            return None
        return "steady" if abs(self.trend) < STEADY else "grows" if self.trend > 0 else "shrinks"

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, with the numbers of all sources together."""
        together = (
            *("seconds", "records", "files", "bytes", "versions"),
            *("caught_up_in", "moves", "partly_unknown"),
        )
        return {**asdict(self), **{name: getattr(self, name) for name in together}}

    def _sum_of_some(self, name: str) -> int | None:
        if self.partly_unknown:
            return None
        lags = self.sources.values()
        return _sum([number for lag in lags if (number := getattr(lag, name)) is not None])


@dataclass(frozen=True)
class Measured:
    """One measure of a flow: what waits by source, and the ``seconds`` that it took. ``generation`` is the
    newest that has begun, None if none has.
    """

    sources: Mapping[str, Lag]
    generation: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class _LagRecord:
    """Content of a flow's ``lag.json``: ``points`` are the times of the last measures, each with its seconds;
    ``took`` is how long the last one took.
    """

    behind: Behind
    generation: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    took: float = 0.0


def measure(home: FlowHome, flow: Flow, opened: Callable[[Flow], Flow]) -> Measured | None:
    """Return how much waits in each source of a flow; whatever is wrong is the reason why it is unknown.

    None for a flow that runs once and is done: nothing more is read.

    :param opened: opens the sources of a flow as far as this process can.
    """
    begun, generation = time.monotonic(), None
    try:
        if flow.declaration.once and generations.finished(home) is not None:
            return None
        observed = Observed(home)
        generation = None if observed.begun is None else observed.begun[0].number
        ends, checkpoint = observed.offsets, observed.checkpoint
        lags = {
            source.name: _lag_of(source, checkpoint, source.name, ends.get(source.name))
            for source in opened(flow).sources
        }
    except Exception as error:  # noqa: BLE001 - whatever is wrong in one flow, the others are measured
        lags = _unknown(flow, _in_words(error))
    return Measured(lags, generation, time.monotonic() - begun)


def measure_all(
    storage: Storage,
    flows: Sequence[Flow],
    opened: Callable[[Flow], Flow],
    now: float,
    within: float = MEASURE_SECONDS,
) -> list[str]:
    """Measure flows and keep what is found, several together, first those that were measured longest ago.

    After so many seconds nothing more is begun, and nothing waited for. A flow that is not through by then is
    unknown, and left alone for as long as if it had taken that long.

    :param opened: as :func:`measure` takes it.
    :param now: the storage's time, in seconds.
    :return: which flows could not be kept, and why.
    """
    begun, over = time.monotonic(), threading.Event()
    pending, faults = _due(storage, flows, now), []
    running: dict[str, FlowHome] = {}

    def keep_or_say(home: FlowHome, measured: Measured) -> None:
        try:
            keep(home, measured, now + time.monotonic() - begun)
        except StorageError as error:
            faults.append(f"{home.full_name}: {error}")

    def work() -> None:
        while not over.is_set():
            try:
                home, flow = pending.popleft()
            except IndexError:
                return
            running[flow.full_name] = home
            if (measured := measure(home, flow, opened)) is not None:
                keep_or_say(home, measured)
            del running[flow.full_name]

    threads = [threading.Thread(target=work, daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begun + within - time.monotonic()))
    over.set()
    declared = {flow.full_name: flow for flow in flows}
    reason = f"it could not be measured within {within:g} s"
    for name, home in tuple(running.items()):
        keep_or_say(home, Measured(_unknown(declared[name], reason), None, within))
    return faults


def _due(storage: Storage, flows: Sequence[Flow], now: float) -> deque[tuple[FlowHome, Flow]]:
    """Return the flows to measure now, the one that was measured longest ago first."""
    due: list[tuple[float, int]] = []
    homes = of_each(storage, [flow.full_name for flow in flows], lambda home: (home, _last(home)))
    for number, (_, last) in enumerate(homes):
        if last is None or last.behind.at + pause_after(last.took) <= now:
            due.append((-math.inf if last is None else last.behind.at, number))
    return deque((homes[number][0], flows[number]) for _, number in sorted(due))


def _lag_of(source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
    try:
        misfit = misfit_of(source.format, end)
        if misfit is not None:
            raise SourceError(f"it was another kind of source at the last commit: {misfit}")
        return format_of(source).lag(source, checkpoint, key, end)
    except Exception as error:  # noqa: BLE001 - whatever is wrong in one source, the others are measured
        return Lag(reason=_in_words(error))


def _in_words(error: Exception) -> str:
    return redact_text(str(error) if isinstance(error, StreamkeeperError) else repr(error))


def _unknown(flow: Flow, reason: str) -> dict[str, Lag]:
    return {source.name: Lag(reason=reason) for source in flow.sources}


def read(home: FlowHome) -> Behind | None:
    """Return how far a flow is behind, as it was measured last; None if it never was.

    :raises StorageError: the file is damaged.
    """
    record = _read(home)
    return None if record is None else record.behind


def keep(home: FlowHome, measured: Measured, at: float) -> Behind:
    """Write a measure over the last one, from which trend and time behind go on while its generation stays.

    :param at: the storage's time, in seconds.
    """
    last = _last(home)
    generation = measured.generation if last is None else measured.generation or last.generation
    if last is not None and last.generation not in (None, generation):  # it stands elsewhere now
        last = None
    now = Behind(at, measured.sources)
    points = () if last is None else last.points
    points = tuple(point for point in points if point[0] > at - TREND_SECONDS) or points[-1:]
    trend = None
    if now.seconds is not None and all(lag.seconds is not None for lag in measured.sources.values()):
        points = (*points, (at, now.seconds))[-_POINTS:]
        trend = _trend(points)
    behind = replace(now, trend=trend, since=_since(now, None if last is None else last.behind))
    record = _LagRecord(behind, generation, points, measured.seconds)
    home.storage.overwrite(home.lag, to_json(asdict(record)))
    _note_skipped(home, measured.sources, {} if last is None else last.behind.sources)
    return behind


def _note_skipped(home: FlowHome, now: Mapping[str, Lag], before: Mapping[str, Lag]) -> None:
    """Note each source of which more files are skipped than at the last measure."""
    for name, lag in now.items():
        if lag.skipped > before.get(name, Lag()).skipped:
            text = f"{name}: {lag.skipped_reason}"
            events.note(home, events.Kind.FILES_SKIPPED, text, text)


def _last(home: FlowHome) -> _LagRecord | None:
    """Return what is kept; a damaged file counts as none, for it is written over."""
    try:
        return _read(home)
    except StorageError:
        return None


def _trend(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the line that lies closest to the points; None of fewer than two."""
    if len({at for at, _ in points}) < 2:
        return None
    return linear_regression([at for at, _ in points], [seconds for _, seconds in points]).slope


def _since(now: Behind, last: Behind | None) -> float | None:
    """Return since when a flow is behind: if all is younger than the last measure, that one was read."""
    lags = now.sources.values()
    if not any(lag.records or lag.files or lag.versions or lag.seconds for lag in lags):
        return last.since if last is not None and any(lag.unknown for lag in lags) else None
    oldest = now.at if now.seconds is None else now.at - now.seconds
    if last is None or last.since is None or (now.seconds is not None and oldest >= last.at):
        return oldest
    return min(oldest, last.since)


def _read(home: FlowHome) -> _LagRecord | None:
    way = "Remove it: the monitor writes it again."
    return read_record(home.storage, home.lag, _LagRecord, "a measure of how far the flow is behind", way)


def _sum(numbers: Sequence[int | None]) -> int | None:
    return sum_known(numbers) if numbers else None
