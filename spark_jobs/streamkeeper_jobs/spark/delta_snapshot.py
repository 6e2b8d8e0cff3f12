"""A version of a Delta table as its actions, each in the JSON form of the log; and what its checksum says of
these without a Spark job.

Delta writes a checksum with each commit, beside the log, and keeps that of the newest version in memory. Uses
internals of Delta; tests/spark/recover/test_backup_table.py and tests/spark/cdc/test_breaks_and_misfits.py
pin them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, IntegralType, StringType, StructField, TimestampType

from streamkeeper.delta.log import rows_of
from streamkeeper_jobs.spark.delta_table import snapshot_at
from streamkeeper_jobs.spark.jvm import Classes, classes, json_of, python_list, scala_seq

JsonObject = dict[str, Any]

_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WHOLE_MINUTES = 1973
"""The year after which time zones differ from UTC by whole minutes."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a version. ``adds`` are its active files; ``others`` its transactions and domains."""

    version: int
    protocol: JsonObject
    metadata: JsonObject
    others: tuple[JsonObject, ...]
    adds: tuple[JsonObject, ...]

    @property
    def bytes(self) -> int:
        """Size of the active files, in bytes."""
        return sum(int(add["size"]) for add in self.adds)

    @property
    def rows(self) -> int | None:
        """Number of rows by the statistics of the files; None if a file has none."""
        counts = [rows_of(add) for add in self.adds]
        return None if None in counts else sum(count for count in counts if count is not None)


def read_snapshot(spark: SparkSession, path: str, version: int | None = None) -> Snapshot:
    """Read a version of the table at a path or URL, by default the newest.

    :raises Py4JJavaError: the log no longer holds it.
    """
    return snapshot_of(spark, snapshot_at(spark, path, version))


def read_metadata(spark: SparkSession, path: str, version: int | None = None) -> JsonObject:
    """Read only the metadata of a version, at a cost that does not grow with its files.

    :raises Py4JJavaError: the log no longer holds it.
    """
    return metadata_of(spark, snapshot_at(spark, path, version))


def snapshot_of(spark: SparkSession, snapshot: Any) -> Snapshot:
    """Convert Delta's own snapshot object, such as that of a transaction."""
    return Snapshot(
        int(snapshot.version()),
        json.loads(snapshot.protocol().json())["protocol"],
        metadata_of(spark, snapshot),
        tuple(
            json.loads(action.json())
            for actions in (snapshot.setTransactions(), snapshot.domainMetadata())
            for action in python_list(actions)
        ),
        tuple(_adds(spark, snapshot)),
    )


def domains_of(snapshot: Any) -> dict[str, JsonObject]:
    """Return the domains in Delta's own snapshot object, by name."""
    domains = (
        json.loads(action.json())["domainMetadata"] for action in python_list(snapshot.domainMetadata())
    )
    return {domain["domain"]: domain for domain in domains}


def metadata_of(spark: SparkSession, snapshot: Any) -> JsonObject:
    """Return the metadata of Delta's own snapshot or transaction."""
    metadata: JsonObject = json_of(classes(spark), snapshot.metadata())
    return metadata


def _adds(spark: SparkSession, snapshot: Any) -> Iterator[JsonObject]:
    files = DataFrame(snapshot.allFiles().toDF(), spark).withColumn("dataChange", F.lit(True))
    for row in files.select(F.to_json(F.struct("*")).alias("add")).toLocalIterator():
        yield json.loads(row["add"])


def actions_of(transaction: Any, name: str) -> list[Any] | None:
    """Return a list of actions of a transaction's version; None if its checksum does not have it."""
    actions = _checksum_field(_checksum_of(transaction), name)
    return None if actions is None else python_list(actions)


@dataclass(frozen=True)
class Listed:
    """Files of a version, as Delta's own list, and the statistics of each: ``{}`` for one without any."""

    files: Any
    statistics: tuple[JsonObject, ...]

    def matching(self, java: Classes, *may_hold: Callable[[JsonObject], bool]) -> Listed:
        """Return the files whose statistics meet all conditions."""
        numbers = [
            number for number, one in enumerate(self.statistics) if all(holds(one) for holds in may_hold)
        ]
        if len(numbers) == len(self.statistics):
            return self
        files = scala_seq(java, [self.files.apply(number) for number in numbers])
        return Listed(files, tuple(self.statistics[number] for number in numbers))

    @property
    def rows(self) -> int:
        """The number of rows in them by statistics, marked ones included."""
        return sum(int(one.get("numRecords", 0)) for one in self.statistics)

    def all_below(self, value: Any, *path: StructField) -> bool:
        """Return whether all rows have a lower value of a column, as far as statistics say that.

        :param value: see :func:`within_bounds`.
        :param path: the column, or a field of it, from the table's own schema.
        """
        highest = [_bound(one, "maxValues", *path) for one in self.statistics]
        return all(most is not None and most < value for most in highest)


def files_of(java: Classes, transaction: Any) -> Listed | None:
    """Return all files of a transaction's version with their statistics; None where they are too many.

    Whoever writes it sets how many it lists (``spark.databricks.delta.allFilesInCrc.thresholdNumFiles``). A
    list that has not as many as the checksum itself counts is not used.
    """
    checksum: Any = _checksum_of(transaction)
    files = _checksum_field(checksum, "allFiles")
    if files is None or files.size() != checksum.numFiles():
        return None
    return Listed(files, tuple(json.loads(file.get("stats") or "{}") for file in json_of(java, files)))


def within_bounds(field: StructField, lowest: Any, highest: Any) -> Callable[[JsonObject], bool]:
    """Return a condition on a file's statistics: values of a column may lie within bounds.

    :param field: of the table's own schema. Statistics have the name of its column in the files, which
        another column may show.
    :param lowest: a timestamp in microseconds since 1970, like all values that are compared with statistics.
    """

    def holds(statistics: JsonObject) -> bool:
        least, most = (_bound(statistics, which, field) for which in ("minValues", "maxValues"))
        return least is None or most is None or bool(least <= highest and lowest <= most)

    return holds


def null_or_from(field: StructField, least: Any) -> Callable[[JsonObject], bool]:
    """Return a condition on a file's statistics: a column may be null, or have a value from one on.

    Of the parameters see :func:`within_bounds`.
    """

    def holds(statistics: JsonObject) -> bool:
        most = _bound(statistics, "maxValues", field)
        nulls = statistics.get("nullCount", {}).get(name_in_files(field))
        return nulls != 0 or most is None or bool(most >= least)

    return holds


def _bound(statistics: JsonObject, which: str, *path: StructField) -> Any:
    """Return a bound of a column; None without, and of types and years that Python cannot compare.

    A text's bounds are cut, but outwards.
    """
    bound: Any = statistics.get(which)
    for field in path:
        bound = bound.get(name_in_files(field)) if isinstance(bound, dict) else None
    try:
        return None if bound is None else _compared(bound, which, path[-1].dataType)
    except ValueError:  # Spark knows years below 1 and above 9999
        return None


def _compared(bound: Any, which: str, dtype: DataType) -> Any:
    match dtype:
        case IntegralType():
            return bound
        case StringType() if dtype == StringType():  # another collation compares otherwise
            return bound
        case DateType():
            return date.fromisoformat(bound)
        case TimestampType() if which == "maxValues":
            return _latest(datetime.fromisoformat(bound))
        case _:
            return None


def _latest(at: datetime) -> int:
    """Return the latest time that statistics may mean, in microseconds since 1970.

    They are cut to milliseconds; the offset of a time zone to minutes, and until 1972 it could have seconds.
    """
    cut = timedelta(milliseconds=1) if at.year > _WHOLE_MINUTES else timedelta(minutes=1)
    return (at - _1970 + cut) // timedelta(microseconds=1)


def name_in_files(field: StructField) -> str:
    """Return the name that a column, or a field of one, from the table's own schema has in its files."""
    return str((field.metadata or {}).get("delta.columnMapping.physicalName", field.name))


def _checksum_of(transaction: Any) -> Any | None:
    checksum = transaction.snapshot().checksumOpt()
    return checksum.get() if checksum.isDefined() else None


def _checksum_field(checksum: Any | None, name: str) -> Any | None:
    field = getattr(checksum, name)() if checksum is not None else None
    return field.get() if field is not None and field.isDefined() else None
