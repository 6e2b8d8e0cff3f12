"""Files in a driver, listed by Spark's own files source in a temporary checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declare.model import Source
from streamkeeper.sources.files.impacts import FilesPosition
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.files_log_writer import FilesLog, write_as_it_came, write_in_steps
from streamkeeper_jobs.sources.job_format import JobFormat, Planting
from streamkeeper_jobs.stream.query import run_muted
from streamkeeper_jobs.stream.readers import base_url, is_there, read_stream

Listing = tuple[FileEntry, ...]


class FilesInJob(JobFormat[Listing, FilesPosition]):
    """Files of one of Spark's formats."""

    def look(self, job: Job, source: Source, folder: str, schemas: Mapping[str, str]) -> Listing:
        if not is_there(job.spark, source):
            return ()
        storage = job.home.storage
        try:
            frame = read_stream(job.spark, source, schemas).where(lit(False))
            run_muted(frame, f"{job.flow.full_name} (listing {source.name})", storage.path(folder), job.watch)
            return tuple(Checkpoint(storage, folder).files_log(source.name).entries())
        finally:
            storage.remove(folder)

    def write_position(
        self, into: Planting, position: FilesPosition, look: Callable[[], Listing]
    ) -> list[Any]:
        base = base_url(into.job.spark, into.source)
        log = FilesLog(f"{into.folder}/sources/{into.source.name}", into.source, base, position.entries)
        if into.as_it_came and into.bound is not None:
            return write_as_it_came(into.job.home.storage, log, into)
        return write_in_steps(into.job.home.storage, log, into.bound, into.made_of)

    def missing(
        self, spark: SparkSession, source: Source, position: FilesPosition, look: Callable[[], Listing]
    ) -> str | None:
        """Compare the files: Spark silently replays without those that are gone, and with the new content of
        those that were overwritten.
        """
        timestamps = {entry.path: entry.timestamp_ms for entry in look()}
        gone = [
            entry.path for entry in position.entries() if timestamps.get(entry.path) != entry.timestamp_ms
        ]
        if not gone:
            return None
        return (
            f"{len(gone)} of the processed files of source {source.name} are gone or rewritten, the first"
            f" of them {gone[0]}"
        )
