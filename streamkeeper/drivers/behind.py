"""How far a flow is behind its sources: what the monitor measured last, and how that changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamkeeper.sources.base.format import Lag


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
        known = [lag.seconds for lag in self.sources.values() if lag.seconds is not None]
        return max(known, default=None)

    @property
    def records(self) -> int | None:
        """Records that wait in all sources; None where a source cannot tell."""
        return self._sum("records")

    @property
    def files(self) -> int | None:
        """Files that wait in all sources that have files; None where none has, or one cannot tell."""
        return self._sum("files")

    @property
    def bytes(self) -> int | None:
        """Bytes that wait in all sources; None where a source cannot tell."""
        return self._sum("bytes")

    @property
    def caught_up_in(self) -> float | None:
        """Seconds until nothing waits, if the trend stays; None if that is unknown, or it does not shrink."""
        if self.seconds is None or self.trend is None or self.trend >= 0:
            return None
        return self.seconds / -self.trend

    def _sum(self, name: str) -> int | None:
        found: list[int | None] = [getattr(lag, name) for lag in self.sources.values()]
        return None if not found or None in found else sum(one for one in found if one is not None)
