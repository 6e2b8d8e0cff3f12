"""How far a flow is behind its sources: what the monitor measured last, and how that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import linear_regression
from typing import Any

from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.json_values import read_as
from streamkeeper.sources.base.format import Lag
from streamkeeper.storage import read_json, to_json

TREND_SECONDS = 900.0
"""Time over which the trend is told."""
_POINTS = 30
"""Measures that are kept for it."""


@dataclass(frozen=True)
class Behind:
    """How far a flow is behind its sources.

    ``at`` is when it was measured, ``since`` since when input waits without a break, both in seconds since
    1970 by the storage's clock; ``since`` is None if nothing waits. ``trend`` is how much ``seconds`` changes
    a second, over some 15 minutes: above 0 it grows; None while that is unknown. ``unknown`` says of each
    source that could not be measured why.
    """

    at: float
    sources: Mapping[str, Lag]
    trend: float | None = None
    since: float | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """Age of the oldest input that waits in any source; None where no source tells."""
        known = [lag.seconds for lag in self.sources.values() if lag.seconds is not None]
        return max(known, default=None)

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
        if self.seconds == 0:
            return 0.0
        if self.seconds is None or self.trend is None or self.trend >= 0:
            return None
        return self.seconds / -self.trend

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, with the numbers of all sources together."""
        together = ("seconds", "records", "files", "bytes", "versions", "caught_up_in")
        return {**asdict(self), **{name: getattr(self, name) for name in together}}

    def _sum_of_some(self, name: str) -> int | None:
        lags = self.sources.values()
        if any(lag == Lag() for lag in lags):
            return None
        return _sum([found for lag in lags if (found := getattr(lag, name)) is not None])


@dataclass(frozen=True)
class Measured:
    """One measure of a flow: what waits by source, why where that is unknown, and the ``seconds`` that it
    took. ``generation`` is the newest that has begun, None if none has.
    """

    sources: Mapping[str, Lag]
    unknown: Mapping[str, str] = field(default_factory=dict)
    generation: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class _Kept:
    """Content of a flow's ``lag.json``: ``points`` are the times of the last measures, each with its seconds;
    ``took`` is how long the last one took.
    """

    behind: Behind
    generation: int | None = None
    points: tuple[tuple[float, float], ...] = ()
    took: float = 0.0


def read(home: FlowHome) -> Behind | None:
    """Return how far a flow is behind, as it was measured last; None if it never was.

    :raises StorageError: the file is damaged.
    """
    kept = _read(home)
    return None if kept is None else kept.behind


def keep(home: FlowHome, measured: Measured, at: float) -> Behind:
    """Write a measure over the last one, of which trend and duration go on; a damaged file counts as none.

    :param at: the storage's time, in seconds.
    """
    try:
        last = _read(home)
    except StorageError:
        last = None
    if last is not None and last.generation != measured.generation:  # it stands elsewhere now
        last = None
    now = Behind(at, measured.sources, unknown=measured.unknown)
    points = () if last is None else last.points
    points = tuple(point for point in points if point[0] > at - TREND_SECONDS) or points[-1:]
    if now.seconds is not None:
        points = (*points, (at, now.seconds))[-_POINTS:]
    found = Behind(
        at, measured.sources, _trend(points), _since(now, None if last is None else last.behind), now.unknown
    )
    kept = _Kept(found, measured.generation, points, measured.seconds)
    home.storage.overwrite(home.lag, to_json(asdict(kept)))
    return found


def _trend(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of the line that lies closest to the points; None of fewer than two."""
    if len({at for at, _ in points}) < 2:
        return None
    return linear_regression([at for at, _ in points], [seconds for _, seconds in points]).slope


def _since(now: Behind, last: Behind | None) -> float | None:
    """Return since when a flow is behind: if all is younger than the last measure, that one was read."""
    waits = any((value or 0) > 0 for lag in now.sources.values() for value in asdict(lag).values())
    if not waits:
        return None if last is None or not now.unknown else last.since
    oldest = now.at if now.seconds is None else now.at - now.seconds
    if last is None or last.since is None or (now.seconds is not None and oldest >= last.at):
        return oldest
    return min(oldest, last.since)


def _read(home: FlowHome) -> _Kept | None:
    found = read_json(home.storage, home.lag)
    try:
        return None if found is None else read_as(_Kept, found)
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"{home.storage.path(home.lag)} does not say how far the flow is behind: {error!r}. Remove it:"
            " the monitor writes it again."
        ) from error


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
