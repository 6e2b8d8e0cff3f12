"""A Delta table as a source in a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.delta.history import History, commits, is_gone, require_history, vacuumed
from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import ADOPTED, EARLIEST, SIDE_TABLE
from streamkeeper.sources.delta.start import DeltaPosition, before, path_of
from streamkeeper.sources.replay_steps import Bound, cut_files, cut_versions, own_files
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.job_format import JobFormat, Planting
from streamkeeper_jobs.spark.delta_table import delta_log_of
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.stream.readers import hadoop_path

_ADVICE = "Reset the flow again with state `empty`, or from earliest."

Look = Callable[[], History]


class DeltaInJob(JobFormat[History, DeltaPosition]):
    """A Delta table."""

    twice = True

    def look_directly(self, spark: SparkSession, source: Source) -> History:
        """Return the history in the table's log; its table id is never None."""
        path = path_of(source)
        history = require_history(path, source.name)
        if history.table_id is not None:
            return history
        return replace(history, table_id=str(delta_log_of(spark, path).tableId()))

    def complete(self, job: Job, source: Source, position: DeltaPosition) -> DeltaPosition:
        return replace(position, first_read=_first_read(job.home, source))

    def write_position(self, into: Planting, position: DeltaPosition, look: Look) -> list[Any]:
        if into.bound is None:
            return [position.offset]
        if into.as_it_came:
            if into.first is None:
                return []
            position = replace(position, offset=into.first)
        if position.first_read is not None:
            return _commits_in_steps(position, position.first_read, look(), into.bound)
        return _snapshot_in_steps(into.job.spark, into.source, position, look(), into.bound)

    def for_replay(self, source: Source, position: DeltaPosition, look: Look, rebuilds: bool) -> Source:
        history = look()
        only = (
            position.replay_options(history)
            if rebuilds
            else {"startingVersion": str(position.version_before(history))}
        )
        return replace(source, options={**source.options, **only})

    def missing(self, spark: SparkSession, source: Source, position: DeltaPosition, look: Look) -> str | None:
        """Check that Spark can read the table at the version with which a replay starts.

        A table cannot be replayed in part, so no loss can be accepted here.
        """
        history, version = look(), position.replayed_version
        if position.first_read is not None:
            _check_commits(source, position.first_read, history)
            return None
        if version < 0:
            raise RecoveryError(
                f"The source {source.name} is to start before version 0, where there is no history to"
                f" rebuild state from. {_ADVICE}"
            )
        if not history.holds_snapshot(version):
            raise RecoveryError(
                f"The state cannot be rebuilt: the table of source {source.name} cannot be reconstructed at"
                f" version {version}, since its log was cleaned up. {_ADVICE}"
            )
        if gone := _gone_files(spark, source, version):
            raise RecoveryError(
                f"The state cannot be rebuilt: {len(gone)} files of version {version} of the table of source"
                f" {source.name} were removed by VACUUM, such as {gone[0]}. {_ADVICE}"
            )
        return None

    def comes_again(
        self,
        spark: SparkSession,
        source: Source,
        position: DeltaPosition,
        offsets: Sequence[Any],
        look: Look,
    ) -> bool:
        if position.offset != offsets[-1]:
            return False
        if position.first_read is not None:
            return look().holds_from(position.first_read)
        history, first = look(), next(offset for offset in offsets if offset is not None)
        version = DeltaPosition(first).replayed_version
        if is_gone(first, history) or version < 0 or not history.holds_snapshot(version):
            return False
        return vacuumed(first, history) is None and not _gone_files(spark, source, version)


def _gone_files(spark: SparkSession, source: Source, version: int) -> list[str]:
    return [file for file in _table(spark, source, version).inputFiles() if not _exists(spark, file)]


def _first_read(home: FlowHome, source: Source) -> int | None:
    """Return the first version that any generation began with, for a source that is declared to start later.

    None if some generation read the whole table, or the version is unknown.
    """
    if source.start == "earliest":
        return None
    began: list[int] = []
    for number in home.generations():
        decided, start = generations.read(home, number), generations.read_start(home, number)
        if decided is None or start is None:
            continue
        # A side table is read from the beginning, and what came before an adoption another job read.
        whole = decided.start.mode in (ADOPTED, SIDE_TABLE)
        if whole or (decided.start.mode == EARLIEST and decided.previous is not None):
            return None
        if source.name in start.positions:
            began.append(int(start.positions[source.name]["reservoirVersion"]))
    return min(began, default=None)


def _commits_in_steps(
    position: DeltaPosition, first_read: int, history: History, bound: Bound
) -> list[dict[str, Any]]:
    """Cut the commits up to a position into steps; return the offset after each."""
    first = min(first_read, position.version)
    sizes = {commit.version: commit.bytes for commit in commits(history, first, position.version - 1)}
    versions = cut_versions(first, position.version, sizes, bound)
    return [*(before(history, version) for version in versions[:-1]), position.offset]


def _snapshot_in_steps(
    spark: SparkSession, source: Source, position: DeltaPosition, history: History, bound: Bound
) -> list[dict[str, Any]]:
    """Cut the table as of a position into steps by files, since Spark counts its files."""
    version, snapshot = position.replayed_version, bool(position.offset.get("isStartingVersion"))
    table: Any = _table(spark, source, version)
    files = len(table.inputFiles())
    each = int(str(table._jdf.queryExecution().analyzed().stats().sizeInBytes())) // max(1, files)
    count = min(files, int(position.offset["index"]) + 1) if snapshot else files
    ends = cut_files([each] * count, bound, own_files(source))[:-1]
    within = {**before(history, version), "isStartingVersion": True}
    return [*({**within, "index": end - 1} for end in ends), position.offset]


def _check_commits(source: Source, first: int, history: History) -> None:
    if not history.holds_from(first):
        raise RecoveryError(
            f"The state cannot be rebuilt: the flow began with version {first} of the table of source"
            f" {source.name}, and its log starts at {history.oldest} now. {_ADVICE}"
        )


def _table(spark: SparkSession, source: Source, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(spark_url(path_of(source)))


def _exists(spark: SparkSession, file: str) -> bool:
    path, file_system = hadoop_path(spark, file)
    return bool(file_system.exists(path))
