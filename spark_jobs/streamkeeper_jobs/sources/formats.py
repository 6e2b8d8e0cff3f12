"""The formats of source in a driver, by name, and the look that each source is taken once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.declare.model import DELTA, FILE_FORMATS, KAFKA, RATE, SOCKET, Source
from streamkeeper.flows.generations import StartAt
from streamkeeper.sources.base.format import LOOKS_AGAIN, Before, Resolved
from streamkeeper.sources.starts import starts_of
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.delta import DeltaInJob
from streamkeeper_jobs.sources.files import FilesInJob
from streamkeeper_jobs.sources.job_format import JobFormat
from streamkeeper_jobs.sources.kafka import KafkaInJob
from streamkeeper_jobs.sources.rate import RateInJob
from streamkeeper_jobs.sources.socket import SocketInJob
from streamkeeper_jobs.spark.log import say

FORMATS: dict[str, JobFormat[Any, Any]] = {
    **dict.fromkeys(FILE_FORMATS, FilesInJob()),
    KAFKA: KafkaInJob(),
    DELTA: DeltaInJob(),
    RATE: RateInJob(),
    SOCKET: SocketInJob(),
}


def format_in_job(source: Source) -> JobFormat[Any, Any]:
    """Return the format of a source, as a driver knows it."""
    return FORMATS[source.format]


def look_with_spark(spark: SparkSession, source: Source) -> Any:
    """Return what a source whose unread data can expire holds now.

    :raises SourceError: it does not answer, or is not there.
    """
    return format_in_job(source).look_directly(spark, source)


class Looks:
    """Present contents of the sources of one flow, cached for its driver.

    :param folder: the name in the state storage of a temporary folder.
    """

    def __init__(self, job: Job, folder: str, schemas: Mapping[str, str]) -> None:
        self._job, self._folder, self._schemas = job, folder, schemas
        self._looks: dict[str, Any] = {}

    def look(self, source: Source) -> Any:
        """Return what a source holds now.

        :raises SourceError: it does not answer, or is not there.
        """
        if source.name not in self._looks:
            look = partial(format_in_job(source).look, self._job, source)
            self._looks[source.name] = look(self._folder, self._schemas)
        return self._looks[source.name]

    def resolve(self, source: Source, start: StartAt, before: Before) -> Resolved[Any]:
        """Return the position of a start in a source; what may pass in a moment is looked at again.

        :raises SourceError: it does not answer, or is not there.
        :raises CheckpointError: the old checkpoint lacks what the start needs.
        :raises Stopped: an order ended the wait.
        """
        find = partial(starts_of(source).resolve, source, start, before, partial(self.look, source))
        resolved = find()
        for pause in LOOKS_AGAIN:
            if not resolved.may_pass:
                break
            say(
                f"{self._job.flow.full_name}: {resolved.lost}. That may pass: looked at again in {pause:g} s."
            )
            self._job.watch.wait(pause)
            del self._looks[source.name]
            resolved = find()
        return resolved

    def complete(self, source: Source, position: Any) -> Any:
        """Return a position with what only the driver knows of it."""
        return format_in_job(source).complete(self._job, source, position)

    def topic_ids(self) -> dict[str, dict[str, str]]:
        """Return the ids of all topics that the flow reads, by source and topic.

        :raises SourceError: the brokers do not answer, or a topic does not exist.
        """
        sources = (source for source in self._job.sources if format_in_job(source).has_ids)
        return {source.name: format_in_job(source).ids(self.look(source)) for source in sources}
