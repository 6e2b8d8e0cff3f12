"""Present contents of a flow's sources, each read once.

Files are listed exactly as Spark would find them: by Spark's own files source, in a temporary checkpoint.
Brokers are asked for their topics; of a Delta table the log is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declare.model import KAFKA, Source
from streamkeeper.delta.history import History, require_history
from streamkeeper.flows import generations
from streamkeeper.flows.generations import ADOPTED, EARLIEST
from streamkeeper.sources.kafka.offsets import Offsets, Topics
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark import kafka_topics
from streamkeeper_jobs.spark.delta_table import delta_log_of
from streamkeeper_jobs.stream.query import run_muted
from streamkeeper_jobs.stream.readers import is_there, read_stream

Found = TypeVar("Found")


class Looks:
    """Present contents of the sources of one flow, cached for its driver.

    :param folder: the name in the state storage of a temporary folder.
    """

    def __init__(self, job: Job, folder: str, schemas: Mapping[str, str]) -> None:
        self._job, self._folder, self._schemas = job, folder, schemas
        self._found: dict[tuple[str, str], Any] = {}

    def files(self, source: Source) -> tuple[FileEntry, ...]:
        """List the files that a files source has now."""
        return self._once("files", source, lambda: _list(self._job, source, self._folder, self._schemas))

    def topics(self, source: Source) -> Topics:
        """Return the offsets that the topics of a Kafka source hold.

        :raises SourceError: the brokers do not answer, or a topic does not exist.
        """
        return self._once("topics", source, lambda: kafka_topics.look_at(self._job.spark, source))

    def at_time(self, source: Source, moment_ms: int) -> Offsets:
        """Return the offsets of the first records at or after a time, in each partition of a Kafka source.

        :raises SourceError: the brokers do not answer, or a topic does not exist.
        """
        return kafka_topics.at_time(self._job.spark, source, moment_ms)

    def history(self, source: Source) -> History:
        """Return the history in the log of a Delta source's table; its table id is never None.

        :raises SourceError: there is no table.
        """
        return self._once("history", source, lambda: _history(self._job.spark, source))

    def first_read(self, source: Source) -> int | None:
        """Return the version with which the flow began, for a Delta source that is declared to start later.

        None if some generation read the whole table, or the version is unknown.
        """
        if source.start == "earliest":
            return None
        for number in reversed(self._job.home.generations()):
            decided, start = (
                generations.read(self._job.home, number),
                generations.read_start(self._job.home, number),
            )
            if decided is None or start is None:
                continue
            if decided.start.mode == ADOPTED:
                return None  # what came before was read by another job's query
            if decided.previous is None:
                begun = start.positions.get(source.name)
                return None if begun is None else int(begun["reservoirVersion"])
            if decided.start.mode == EARLIEST:
                return None
        return None

    def topic_ids(self) -> dict[str, dict[str, str]]:
        """Return the ids of all topics that the flow reads, by source and topic.

        :raises SourceError: the brokers do not answer, or a topic does not exist.
        """
        return {
            source.name: dict(self.topics(source).ids)
            for source in self._job.sources
            if source.format == KAFKA
        }

    def _once(self, kind: str, source: Source, look: Callable[[], Found]) -> Found:
        if (kind, source.name) not in self._found:
            self._found[kind, source.name] = look()
        found: Found = self._found[kind, source.name]
        return found


def _list(job: Job, source: Source, folder: str, schemas: Mapping[str, str]) -> tuple[FileEntry, ...]:
    if not is_there(job.spark, source):
        return ()
    storage = job.home.storage
    try:
        frame = read_stream(job.spark, source, schemas).where(lit(False))
        run_muted(frame, f"{job.flow.full_name} (listing {source.name})", storage.path(folder), job.watch)
        return tuple(Checkpoint(storage, folder).files_log(source.name).entries())
    finally:
        storage.remove(folder)


def _history(spark: SparkSession, source: Source) -> History:
    assert source.path is not None, "an opened Delta source has a path"
    found = require_history(source.path, source.name)
    if found.table_id is not None:
        return found
    return replace(found, table_id=str(delta_log_of(spark, source.path).tableId()))
