"""Whether the sources of a running query still give it rows, where Spark does not tell that they ended."""

from __future__ import annotations

import time
from datetime import datetime

from pyspark.sql.streaming.query import StreamingQuery

from streamkeeper.errors import SourceError
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.formats import format_in_job

_BETWEEN = 2.0
"""Seconds between two looks."""
_NOT_YET = "Initializing"


class Connections:
    """The connections of the sources of one query."""

    def __init__(self, job: Job) -> None:
        self._job, self._looked = job, time.monotonic()
        self._sources = [source for source in job.sources if source.kind.connection]
        self._ended: dict[str, float] = {}

    def look(self, query: StreamingQuery) -> None:
        """Look at the connections, if that is due and the query has opened its sources.

        What came before an end is written first: by the first trigger that began after it.

        :raises SourceError: one has ended; the next driver connects anew.
        """
        now = time.monotonic()
        if not self._sources or now - self._looked < _BETWEEN or not has_begun(query):
            return
        self._looked = now
        for source in self._sources:
            reason = format_in_job(source).ended(self._job.spark, source)
            if reason is None:
                self._ended.pop(source.name, None)  # it was being made
            elif _last_trigger(query) > self._ended.setdefault(source.name, time.time()):
                raise SourceError(
                    f"The source {source.name} gives no more rows: {reason}. The next driver connects anew;"
                    " what is sent meanwhile is lost, unless its sender keeps it."
                )


def _last_trigger(query: StreamingQuery) -> float:
    """Return when the last trigger began that Spark has told of, in epoch seconds: it tells of those without
    rows every ten seconds.
    """
    progress = query.lastProgress
    if progress is None:
        return 0.0
    return datetime.fromisoformat(str(progress["timestamp"]).replace("Z", "+00:00")).timestamp()


def has_begun(query: StreamingQuery) -> bool:
    """Return whether a query has opened its sources."""
    return not str(query.status["message"]).startswith(_NOT_YET)
