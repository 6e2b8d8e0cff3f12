"""Start position of a generation in a Delta source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.amounts import LOSS
from streamkeeper.declare.model import Source
from streamkeeper.declare.source_options import moment_ms
from streamkeeper.delta.history import (
    History,
    commits,
    is_gone,
    next_held,
    offset_before,
    vacuumed,
    version_at,
)
from streamkeeper.errors import RecoveryError
from streamkeeper.sources.kafka.options import fails_on_loss
from streamkeeper.sources.replay_steps import Bound, cut_files, cut_versions, own_files
from streamkeeper_jobs.spark.session import spark_url


@dataclass(frozen=True)
class DeltaOrigin:
    """The offset after which a generation reads, as Spark writes it.

    ``first_read`` is the version with which the flow began, if its source is declared to start later than
    with the whole table: only versions from there on are its history.
    """

    offset: dict[str, Any]
    first_read: int | None = None

    @property
    def version(self) -> int:
        """The version that is read next, or was being read."""
        return int(self.offset["reservoirVersion"])

    def version_before(self, history: History) -> int:
        """Return the version before the position.

        The position's own version if the table no longer holds that one.
        """
        return self.version - 1 if self.version > 0 and history.holds_from(self.version - 1) else self.version

    def replay_options(self, history: History) -> dict[str, str]:
        """Return the reader options that limit a replay up to the offset to the flow's own history."""
        if self.first_read is None:
            return {}
        if self.first_read < self.version:
            return {"startingVersion": str(self.first_read)}
        return {
            "startingVersion": str(self.version_before(history)),
            "excludeRegex": ".*",
        }  # nothing was read yet

    @property
    def replayed_version(self) -> int:
        """The version of the table that a replay up to the offset reads first (source:

        DeltaSource.getBatch).
        """
        return self.version if self.offset.get("isStartingVersion") else self.version - 1


def after_last(
    source: Source, offset: dict[str, Any], history: History, accepted: tuple[str, ...]
) -> tuple[DeltaOrigin | None, list[str]]:
    """Continue after an old offset; None if a table that was created again is read from its beginning.

    :raises RecoveryError: unread data is gone, and its loss was not accepted.
    """
    why = is_gone(offset, history)
    if why is None:
        if gone := vacuumed(offset, history):
            raise RecoveryError(
                f"The source {source.name} cannot continue from its position: {gone}. Nothing was changed."
                " Restore them, or reset the flow from a timestamp, latest or earliest: its plan counts"
                " the cost."
            )
        return DeltaOrigin(offset), []
    if fails_on_loss(source) and LOSS not in accepted:
        raise RecoveryError(
            f"The source {source.name} cannot continue from its position: {why}. Nothing was changed."
            f" reset_checkpoint continues with the rows that still exist, if `{LOSS}` is accepted; its plan"
            " counts the loss."
        )
    if offset["reservoirId"] != history.table_id:
        return None, [f"source {source.name}: {why}; the new table is read from its beginning"]
    version = next_held(offset, history)
    return DeltaOrigin(_before(history, version)), [
        f"source {source.name}: {why}; it continues with version {version}"
    ]


def at(source: Source, offset: dict[str, Any], history: History) -> DeltaOrigin:
    """Continue at a requested offset.

    :raises RecoveryError: it belongs to another table, or to a version that is not held.
    """
    why = is_gone(offset, history)
    if why is not None:
        raise RecoveryError(
            f"The offset of source {source.name} cannot be used: {why}. Reset the flow again with another."
        )
    return DeltaOrigin(offset)


def at_end(history: History) -> DeltaOrigin:
    """Continue with the next commit."""
    return DeltaOrigin(_before(history, history.newest + 1))


def at_moment(history: History, moment: int) -> DeltaOrigin:
    """Continue with the first version committed at a time (epoch ms) or later.

    :raises SourceError: the commits of that time were removed from the log.
    """
    return DeltaOrigin(_before(history, version_at(history, moment)))


def as_declared(source: Source, history: History) -> DeltaOrigin | None:
    """Start where the source is declared to start; None for its beginning.

    :raises RecoveryError: it is declared to start at a version that is not held.
    :raises SourceError: the commits of the declared time were removed from the log.
    """
    kind, _, rest = str(source.start).partition(":")
    if kind == "latest":
        return at_end(history)
    if kind == "timestamp":
        moment = moment_ms(rest)
        assert moment is not None, "it was checked when the source was declared"
        return at_moment(history, moment)
    if kind == "version":
        if not history.holds_from(int(rest)):
            raise RecoveryError(
                f"The source {source.name} is declared to start at version {rest}, and its table holds"
                f" {history.oldest} to {history.newest}. Correct its start."
            )
        return DeltaOrigin(_before(history, int(rest)))
    return None


def delta_ends(
    spark: SparkSession, source: Source, origin: DeltaOrigin, history: History, bound: Bound
) -> list[dict[str, Any]]:
    """Cut a replay up to the offset into steps.

    Return the offset after each, the last being the origin's own.

    A snapshot is cut by files, since Spark counts its files; commits are cut by versions.
    """
    if origin.first_read is not None:
        first = min(origin.first_read, origin.version)
        sizes = {commit.version: commit.bytes for commit in commits(history, first, origin.version - 1)}
        versions = cut_versions(first, origin.version, sizes, bound)
        return [*(_before(history, version) for version in versions[:-1]), origin.offset]
    version, snapshot = origin.replayed_version, bool(origin.offset.get("isStartingVersion"))
    assert source.path is not None, "an opened Delta source has a path"
    table: Any = spark.read.format("delta").option("versionAsOf", version).load(spark_url(source.path))
    files = len(table.inputFiles())
    each = int(str(table._jdf.queryExecution().analyzed().stats().sizeInBytes())) // max(1, files)
    count = min(files, int(origin.offset["index"]) + 1) if snapshot else files
    ends = cut_files([each] * count, bound, own_files(source))[:-1]
    within = {**_before(history, version), "isStartingVersion": True}
    return [*({**within, "index": end - 1} for end in ends), origin.offset]


def _before(history: History, version: int) -> dict[str, Any]:
    assert history.table_id is not None, "a driver's look at a table finds its id"
    return offset_before(history.table_id, version)
