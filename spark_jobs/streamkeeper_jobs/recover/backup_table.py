"""The Spark steps of ``backup_table``: pin versions that belong together, and compare the copy with them."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.delta import remembered
from streamkeeper.delta.copy_files import FIRST_COMMIT, check_copyable, files_of
from streamkeeper.delta.log import FENCE, Transactions
from streamkeeper.errors import CheckpointError, RecoveryError
from streamkeeper.flows.files import FlowHome
from streamkeeper.recover.plans.kind import Work
from streamkeeper.storage import open_storage
from streamkeeper.tables import recovery_lock
from streamkeeper.tables.backups import (
    COMMIT,
    PIN,
    TARGET,
    AllPinned,
    AllVerified,
    Checksum,
    CopiedTable,
    Copying,
    Pinned,
    PinnedTable,
    Verified,
)
from streamkeeper.tables.flows_at_version import FlowAt, WritersAt, flow_at, query_ids
from streamkeeper.tables.other_writers import undeclared
from streamkeeper_jobs.spark.delta_snapshot import JsonObject, Snapshot, read_snapshot
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.row_checksums import checksum
from streamkeeper_jobs.spark.session import spark_url

_CLOCKED = "delta.enableInCommitTimestamps"
_CLOCKED_SINCE = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")
"""Properties that name versions of the copied table; the copy has versions of its own."""


def pin(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Choose the version of each table to copy, and write the commit that the copy will have.

    :raises TableLocked: a recovery works on a table, or began to meanwhile; nothing was copied.
    """
    copied = work.plan.details_as(Copying).copied
    return asdict(AllPinned(tuple(_pin(spark, work, table) for table in copied)))


def _pin(spark: SparkSession, work: Work, table: CopiedTable) -> Pinned:
    work.check_stop()

    def check_free() -> None:
        recovery_lock.check_free(work.book.storage, table.pipeline, table.table, work.plan.recovery_id)

    check_free()
    version = delta_log.latest_version(table.path)
    check_free()  # again: a version of a table that is being restored must not be pinned
    snapshot = _read(spark, table.path, version)
    return Pinned(_pinned(work, table, snapshot), tuple(_flows(work, table, snapshot)))


def verify(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Compare each pinned version with its copy: rows, checksums, columns.

    :raises RecoveryError: a copy differs from what was pinned, or either cannot be read.
    """
    pinned = work.result(PIN, AllPinned).pinned
    return asdict(AllVerified(tuple(_verify(spark, work, one.table) for one in pinned)))


def _flows(work: Work, table: CopiedTable, snapshot: Snapshot) -> list[FlowAt]:
    """Return the position of each flow, by the snapshot's transactions, which outlive the commits in the log.

    If the last transaction is a fence, the log says what was written before it. Included are the flows that
    were declared when the backup was planned, and undeclared ones that still have state and wrote copied
    rows: these may be declared again. An undeclared flow whose position cannot be determined is left out, and
    a restore asks for consent to what follows.
    """
    last = {
        action["txn"]["appId"]: int(action["txn"]["version"]) for action in snapshot.others if "txn" in action
    }
    in_log = WritersAt(table.path, snapshot.version)

    def wrote(app_id: str) -> Transactions:
        version = last.get(app_id)
        return in_log(app_id) if version == FENCE else Transactions(version, None, complete=True)

    storage, pipeline, declared = work.book.storage, table.pipeline, table.flows
    stood = [flow_at(FlowHome(storage, pipeline, name), wrote) for name in declared]
    for home in undeclared(storage, pipeline, declared):
        if last.keys().isdisjoint(query_ids(home).values()):
            continue
        try:
            stood.append(flow_at(home, wrote))
        except (CheckpointError, RecoveryError) as error:
            say(
                f"{home.full_name} is no longer declared and wrote rows that are copied; the backup does"
                f" not say up to which batch: {error}"
            )
    return stood


def _read(spark: SparkSession, path: str, version: int | None) -> Snapshot:
    if version is None:
        raise RecoveryError(f"There is no table at {path} any more. Nothing was copied. Give the backup up.")
    return read_snapshot(spark, path, version)


def _pinned(work: Work, table: CopiedTable, snapshot: Snapshot) -> PinnedTable:
    path = table.path
    check_copyable(path, snapshot.protocol)
    table_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{work.plan.recovery_id}/{table.table}"))
    lines = commit_of(
        snapshot,
        table_id,
        {"source": path, "sourceVersion": str(snapshot.version), "backup": work.plan.recovery_id},
    )
    files = sum(1 for _ in files_of(lines))
    copies = open_storage(table.folder)
    copies.overwrite(COMMIT, ("\n".join(lines) + "\n").encode())
    say(f"{path} is backed up at version {snapshot.version}: {files:,} files, {snapshot.bytes:,} bytes.")
    return PinnedTable(
        source=path,
        path=copies.path(TARGET),
        version=snapshot.version,
        table_id=table_id,
        files=files,
        bytes=snapshot.bytes,
        rows=snapshot.rows,
    )


def commit_of(snapshot: Snapshot, table_id: str, parameters: dict[str, str]) -> list[str]:
    """Return the lines of the one commit that makes a table of a version's files.

    :param table_id: the id of the new table: streaming readers of the old one must see that this is another.
    :param parameters: operation parameters for its history.
    """
    moment = int(time.time() * 1000)
    configuration = {
        name: value
        for name, value in snapshot.metadata.get("configuration", {}).items()
        if name not in _CLOCKED_SINCE
    }
    info: dict[str, Any] = {
        "timestamp": moment,
        "operation": "BACKUP",
        "operationParameters": parameters,
        "isBlindAppend": False,
    }
    if configuration.get(_CLOCKED) == "true":
        info = {"inCommitTimestamp": moment, **info}
    metadata = {**snapshot.metadata, "id": table_id, "configuration": configuration}
    adds = ({"add": add} for add in snapshot.adds)
    actions = [
        {"commitInfo": info},
        {"protocol": snapshot.protocol},
        {"metaData": metadata},
        *(remembered.moved(action, table_id, since=-1) for action in snapshot.others),
        *adds,
    ]
    return [json.dumps(action, ensure_ascii=False, separators=(",", ":")) for action in actions]


def make_table(
    path: str, snapshot: Snapshot, parameters: dict[str, str], *more: JsonObject, table_id: str = ""
) -> None:
    """Create a table that is not there by one commit: of a version whose files are in the table's folder.

    :param more: further actions of that commit.
    :param table_id: by default a new one.
    """
    lines = [*commit_of(snapshot, table_id or str(uuid.uuid4()), parameters), *map(json.dumps, more)]
    open_storage(path).create(FIRST_COMMIT, ("\n".join(lines) + "\n").encode())


def _verify(spark: SparkSession, work: Work, table: PinnedTable) -> Verified:
    work.check_stop()
    source = read_version(spark, table.source, table.version)
    copy = read_version(spark, table.path, 0)
    if source.schema != copy.schema:
        raise RecoveryError(
            f"The copy {table.path} has other columns than the chosen version:"
            f" {copy.schema.simpleString()}. {_NOT_A_BACKUP}"
        )
    source_checksum, copy_checksum = read_checksum(source, table.source), read_checksum(copy, table.path)
    if source_checksum != copy_checksum:
        raise RecoveryError(
            f"The copy {table.path} differs from the chosen version: it has {describe(copy_checksum)};"
            f" version {table.version} of {table.source} has {describe(source_checksum)}. {_NOT_A_BACKUP}"
        )
    say(f"{table.path} has the rows of the chosen version: {describe(copy_checksum)}.")
    return Verified(copy_checksum, copy.schema.json())


_NOT_A_BACKUP = "It is not listed as a backup. Give this one up and back up the table again."


def read_version(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Read a version of the table at a path or URL, by default the newest.

    :raises RecoveryError: it cannot be read.
    """
    reader = spark.read.format("delta")
    try:
        return (reader if version is None else reader.option("versionAsOf", version)).load(spark_url(path))
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(path, error) from error


def read_checksum(frame: DataFrame, path: str) -> Checksum:
    """Read all rows and return their checksum.

    :raises RecoveryError: some cannot be read.
    """
    try:
        return checksum(frame)
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(path, error) from error


def describe(rows_checksum: Checksum) -> str:
    """Return a checksum as words for a message."""
    return f"{rows_checksum.rows:,} rows, checksum {rows_checksum.sum}/{rows_checksum.xor}"


def _unreadable(path: str, error: Exception) -> RecoveryError:
    return RecoveryError(f"{path} cannot be read: {type(error).__name__}: {str(error)[:1000]}")
