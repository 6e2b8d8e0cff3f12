"""The files that a source has now, exactly as Spark would find them: by Spark's own files source, in a checkpoint that is thrown away."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.functions import lit

from streamkeeper.checkpoint import Checkpoint, FileEntry
from streamkeeper.declarations import Source
from streamkeeper_jobs.job import Job
from streamkeeper_jobs.origins import Listing
from streamkeeper_jobs.query import run_muted
from streamkeeper_jobs.sources import is_there, read_stream


def lister(job: Job, folder: str, schemas: Mapping[str, str]) -> Listing:
    """Give a function that lists a source's files, once for each source.

    :param folder: the name in the state storage of a folder to be made and removed.
    """
    found: dict[str, tuple[FileEntry, ...]] = {}

    def listed(source: Source) -> tuple[FileEntry, ...]:
        if source.name not in found:
            found[source.name] = _list(job, source, folder, schemas)
        return found[source.name]

    return listed


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
