"""The toy format of :mod:`tests.worlds.sources.toy_source`, as a driver knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.formats import FORMATS
from streamkeeper_jobs.sources.job_format import JobFormat, Planting

from streamkeeper.declare.model import Source
from tests.worlds.sources import toy_source
from tests.worlds.sources.toy_source import Offset


class NumberedInJob(JobFormat[None, Offset]):
    """Rows with numbers: Spark keeps nothing of them in a checkpoint but offsets."""

    def look(self, job: Job, source: Source, folder: str, schemas: Mapping[str, str]) -> None:
        return None

    def write_position(self, into: Planting, position: Offset, look: Callable[[], None]) -> list[Any]:
        return [position]


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the format to plans and drivers for the length of a test."""
    toy_source.register(monkeypatch)
    monkeypatch.setitem(FORMATS, toy_source.NAME, NumberedInJob())
