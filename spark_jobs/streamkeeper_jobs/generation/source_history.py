"""Checks, before anything is changed, that what a generation must still read or read again is available.

Spark would find some losses itself, in the middle of a batch. It cannot detect a topic that was created again
and has grown past the old position: it would continue there and skip the earlier records.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.amounts import MISSING_HISTORY
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import Generation, Start
from streamkeeper_jobs.generation.start_position import FilesOrigin, Origin, SourceOrigin
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources import start_delta, start_kafka
from streamkeeper_jobs.sources.look import Looks
from streamkeeper_jobs.sources.start_delta import DeltaOrigin
from streamkeeper_jobs.sources.start_kafka import KafkaOrigin
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.stream.readers import hadoop_path

ANY_LOSS = ()
"""Nothing is accepted by a start that no recovery decided."""


def check_histories(job: Job, start: Start) -> None:
    """Check that the Kafka and Delta sources still have what follows the last committed batch.

    :raises RecoveryError: they have not.
    :raises SourceError: a source cannot be read now.
    """
    checkpoint = Checkpoint(job.home.storage, start.checkpoint)
    last = checkpoint.last_commit()
    offsets: dict[str, Any] = (
        checkpoint.offsets(last).sources if last is not None and last in checkpoint.offset_batches() else {}
    )
    looks = Looks(job, f"{start.checkpoint}-listing", start.schemas)
    for source in job.sources:
        offset = offsets.get(source.name)
        if offset is None:
            continue
        if source.format == KAFKA:
            ids = start.evidence.get("topics", {}).get(source.name, {})
            _, notes = start_kafka.after_last(
                source, offset, None, looks.topics(source), ids=ids, accepted=ANY_LOSS
            )
        elif source.format == DELTA:
            _, notes = start_delta.after_last(source, offset, looks.history(source), ANY_LOSS)
        else:
            continue
        for note in notes:
            say(f"{job.flow.full_name}: {note}.")


def check_history(job: Job, generation: Generation, origin: Origin, looks: Looks) -> None:
    """Check that everything a rebuilt state is made of is still there.

    Spark silently replays without files that are gone, and with the new content of files that were
    overwritten.

    :raises RecoveryError: something is gone, and its loss was not accepted.
    """
    for source in job.sources:
        found = origin.sources.get(source.name)
        if isinstance(found, DeltaOrigin):
            _check_table(job.spark, source, found, looks)
        words = _gone(source, found, looks)
        if words is None:
            continue
        if MISSING_HISTORY not in generation.accepted:
            raise RecoveryError(
                f"The state of {job.flow.full_name} cannot be rebuilt from its whole history: {words}."
                " Restore them and start again, or reset the flow again with state `empty`, or with"
                f" `{MISSING_HISTORY}` accepted."
            )
        say(f"The state is rebuilt without part of its history, as accepted: {words}.")


def _gone(source: Source, found: SourceOrigin | None, looks: Looks) -> str | None:
    """Return a description of what is gone and can be accepted as missing; None if nothing is."""
    match found:
        case FilesOrigin(entries):
            there = {entry.path: entry.timestamp_ms for entry in looks.files(source)}
            gone = [entry.path for entry in entries() if there.get(entry.path) != entry.timestamp_ms]
            if gone:
                return (
                    f"{len(gone)} of the processed files of source {source.name} are gone or rewritten, the"
                    f" first of them {gone[0]}"
                )
        case KafkaOrigin(offsets, gone=records) if offsets is not None and records:
            return (
                f"up to {records} of the processed records of source {source.name} are gone from its topics"
            )
        case _:
            pass
    return None


def _check_table(spark: SparkSession, source: Source, origin: DeltaOrigin, looks: Looks) -> None:
    """Check that Spark can read the table at the version with which a replay starts.

    A table cannot be replayed in part, so no loss can be accepted here.

    :raises RecoveryError: it cannot be read.
    """
    if origin.first_read is not None:
        _check_commits(source, origin.first_read, looks)
        return
    version, advice = origin.replayed_version, "Reset the flow again with state `empty`, or from earliest."
    assert source.path is not None, "an opened Delta source has a path"
    if version < 0:
        raise RecoveryError(
            f"The source {source.name} is to start before version 0, where there is no history to rebuild"
            f" state from. {advice}"
        )
    if not looks.history(source).holds_snapshot(version):
        raise RecoveryError(
            f"The state cannot be rebuilt: the table of source {source.name} cannot be reconstructed at"
            f" version {version}, since its log was cleaned up. {advice}"
        )
    files = (
        spark.read.format("delta").option("versionAsOf", version).load(spark_url(source.path)).inputFiles()
    )
    gone = [file for file in files if not _exists(spark, file)]
    if gone:
        raise RecoveryError(
            f"The state cannot be rebuilt: {len(gone)} files of version {version} of the table of source"
            f" {source.name} were removed by VACUUM, such as {gone[0]}. {advice}"
        )


def _check_commits(source: Source, first: int, looks: Looks) -> None:
    history = looks.history(source)
    if not history.holds_from(first):
        raise RecoveryError(
            f"The state cannot be rebuilt: the flow began with version {first} of the table of source"
            f" {source.name}, and its log starts at {history.oldest} now. Reset the flow again with state"
            " `empty`, or from earliest."
        )


def _exists(spark: SparkSession, file: str) -> bool:
    path, file_system = hadoop_path(spark, file)
    return bool(file_system.exists(path))
