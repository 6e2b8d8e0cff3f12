"""A version of a Delta table as its actions, each in the JSON form of the log; and what its checksum says of
these without a Spark job.

Delta writes a checksum with each commit, beside the log, and keeps that of the newest version in memory. Uses
internals of Delta; tests/spark/recover/test_backup_table.py and tests/spark/cdc/test_edges.py pin them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegralType, StringType, StructField

from streamkeeper_jobs.spark.delta_table import delta_log_of
from streamkeeper_jobs.spark.jvm import Classes, json_of, python_list, scala_seq

JsonObject = dict[str, Any]


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
    return _metadata(snapshot_at(spark, path, version))


def snapshot_of(spark: SparkSession, found: Any) -> Snapshot:
    """Convert Delta's own snapshot object, such as that of a transaction."""
    return Snapshot(
        int(found.version()),
        json.loads(found.protocol().json())["protocol"],
        _metadata(found),
        tuple(
            json.loads(action.json())
            for actions in (found.setTransactions(), found.domainMetadata())
            for action in _each(actions)
        ),
        tuple(_adds(spark, found)),
    )


def domains_of(found: Any) -> dict[str, JsonObject]:
    """Return the domains in Delta's own snapshot object, by name."""
    domains = (json.loads(action.json())["domainMetadata"] for action in _each(found.domainMetadata()))
    return {domain["domain"]: domain for domain in domains}


def snapshot_at(spark: SparkSession, path: str, version: int | None) -> Any:
    """Return Delta's own snapshot object of a version, by default the newest."""
    log = delta_log_of(spark, path)
    if version is None:
        return log.update(*(getattr(log, f"update$default${argument}")() for argument in (1, 2, 3)))
    return log.getSnapshotAt(
        version, *(getattr(log, f"getSnapshotAt$default${argument}")() for argument in (2, 3, 4))
    )


def _metadata(found: Any) -> JsonObject:
    metadata: JsonObject = json.loads(found.metadata().json())["metaData"]
    return metadata


def _adds(spark: SparkSession, found: Any) -> Iterator[JsonObject]:
    files = DataFrame(found.allFiles().toDF(), spark).withColumn("dataChange", F.lit(True))
    for row in files.select(F.to_json(F.struct("*")).alias("add")).toLocalIterator():
        yield json.loads(row["add"])


def _each(actions: Any) -> Iterator[Any]:
    """Iterate over a Scala collection."""
    iterator = actions.iterator()
    while iterator.hasNext():
        yield iterator.next()


def rows_of(add: JsonObject) -> int | None:
    """Return the number of rows of a file that are not deleted; None if its statistics lack it."""
    count = json.loads(add.get("stats") or "{}").get("numRecords")
    return (
        None if count is None else int(count) - int((add.get("deletionVector") or {}).get("cardinality", 0))
    )


def actions_of(java: Classes, transaction: Any, name: str) -> list[Any] | None:
    """Return a list of actions of a transaction's version; None if its checksum does not have it."""
    found = _of(transaction, name)
    return None if found is None else python_list(java, found)


def files_of(transaction: Any) -> Any | None:
    """Return all files of a transaction's version with their statistics; None where they are too many.

    Whoever writes it sets how many it lists (``spark.databricks.delta.allFilesInCrc.thresholdNumFiles``). A
    list that has not as many as the checksum itself counts is not used.
    """
    files = _of(transaction, "allFiles")
    if files is None:
        return None
    checksum = transaction.snapshot().checksumOpt().get()
    return files if files.size() == checksum.numFiles() else None


def files_that_meet(java: Classes, files: Any, key: StructField, lowest: Any, highest: Any) -> Any:
    """Return those files of a list whose values of a column may lie within bounds.

    Whole numbers, texts and dates are compared, which JSON keeps in order: a text's bounds are cut, but
    outwards. By other types, or without statistics, no file is left aside.

    :param key: a field of the table's own schema. Statistics have the name of its column in the files, which
        another column may show.
    """
    match key.dataType:
        case IntegralType():
            pass
        case DateType():
            lowest, highest = lowest.isoformat(), highest.isoformat()
        case StringType() if key.dataType == StringType():  # another collation compares otherwise
            pass
        case _:
            return files
    found: list[dict[str, Any]] = json_of(java, files)
    name = (key.metadata or {}).get("delta.columnMapping.physicalName", key.name)
    meets = [_meets(json.loads(file.get("stats") or "{}"), name, lowest, highest) for file in found]
    if all(meets):
        return files
    return scala_seq(java, [files.apply(number) for number, meet in enumerate(meets) if meet])


def _meets(statistics: dict[str, Any], column: str, lowest: Any, highest: Any) -> bool:
    least = statistics.get("minValues", {}).get(column)
    most = statistics.get("maxValues", {}).get(column)
    return least is None or most is None or bool(least <= highest and lowest <= most)


def _of(transaction: Any, name: str) -> Any | None:
    checksum = transaction.snapshot().checksumOpt()
    found = getattr(checksum.get(), name)() if checksum.isDefined() else None
    return found.get() if found is not None and found.isDefined() else None
