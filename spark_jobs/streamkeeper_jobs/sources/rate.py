"""The rate source in a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamkeeper.sources.rate import RatePosition
from streamkeeper_jobs.sources.job_format import JobFormat, Planting


class RateInJob(JobFormat[None, RatePosition]):
    """Spark's rate source."""

    def write_position(self, into: Planting, position: RatePosition, look: Callable[[], None]) -> list[Any]:
        into.write(position.started())
        if into.as_it_came:
            return [] if into.first is None else [into.first]
        return [position.seconds]
