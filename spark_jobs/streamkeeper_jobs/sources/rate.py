"""The rate source in a driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.sources.rate import RatePosition
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.job_format import JobFormat, Planting


class RateInJob(JobFormat[None, RatePosition]):
    """Spark's rate source."""

    def look(self, job: Job, source: Source, folder: str, schemas: Mapping[str, str]) -> None:
        return None

    def write_position(self, into: Planting, position: RatePosition, look: Callable[[], None]) -> list[Any]:
        into.write(position.started())
        return [position.seconds]
