"""The Delta table that a flow writes: created if absent, fenced against earlier generations."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from streamkeeper.declare.model import Table
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE
from streamkeeper.errors import CheckpointError, DeclarationError
from streamkeeper_jobs.spark.jvm import Classes, classes, scala_object, scala_seq
from streamkeeper_jobs.spark.session import spark_url

_MAKING = threading.Lock()
"""Flows of one driver may create their table at the same moment; Delta would refuse all but one."""
_LOOK_BACK = 50
"""Commits that are searched before Spark is asked: they nearly always include a flow's own last batch."""


def ensure_table(spark: SparkSession, path: str, table: Table, schema: StructType, by_batch: bool) -> None:
    """Create the declared table with the flow's columns, unless it exists or the first batch can create it.

    A first batch creates it with its partitions, but without comment and properties. It does so if it can: a
    commit that only creates the table, and the first snapshot of it, add some five seconds to a start on two
    cores (tests/benchmarks/bench_flow.py).

    :param by_batch: a first batch may create it. So no earlier generation must be fenced, which needs a
        table, and no other flow writes it, whose first batch could create it at the same moment.
    :raises DeclarationError: a partition column is none of the flow's.
    """
    unknown = [column for column in table.partition_cols if column not in schema.fieldNames()]
    if delta_log.exists(path):
        return
    if unknown:
        raise DeclarationError(
            f"{table.location}: the table {table.name} is partitioned by {', '.join(unknown)}, which its flow"
            f" does not give. Its columns are {', '.join(schema.fieldNames())}. Correct partition_cols."
        )
    if by_batch and not table.comment and not table.properties and not table.registered_as:
        return
    builder = DeltaTable.createIfNotExists(spark).location(spark_url(path)).addColumns(schema)
    if table.comment:
        builder = builder.comment(table.comment)
    for name, value in table.properties.items():
        builder = builder.property(name, value)
    if table.partition_cols:
        builder = builder.partitionedBy(*table.partition_cols)
    with _MAKING:
        builder.execute()


def fence(spark: SparkSession, path: str, app_id: str, before_try: Callable[[], None]) -> int | None:
    """Fence a query id in a table; return the last version that it really wrote, or None if it wrote none.

    The fence is a commit of (``app_id``, 2^62) alone: Delta skips every later batch of that id. Fencing again
    changes nothing. The last version is read *after* the fence, so that no batch can come in between.
    ``before_try`` may end the waiting by raising.

    :raises CheckpointError: the last version is unknown, because the log was cleaned up.
    """
    shut_out(spark, path, app_id, before_try)
    # Read after the fence, so that no batch can come in between.
    transaction = delta_log.last_transaction(path, app_id)
    return (
        transaction.version
        if transaction.complete
        else _version_before(spark, path, app_id, transaction.fenced_at)
    )


def shut_out(spark: SparkSession, path: str, app_id: str, before_try: Callable[[], None]) -> None:
    """Fence a query id as :func:`fence` does, without reading what it wrote last.

    The transaction does not ask for the id's version: if it did, every batch of that id committed meanwhile
    would make it fail, and a driver that still writes could keep its own fence out as long as it likes. A
    batch does ask, so the fence makes a batch in progress fail.
    """
    before_try()
    if last_written(spark, path, app_id) != FENCE:
        java = classes(spark)
        commit(java, delta_log_of(spark, path).startTransaction(), [set_transaction(java, app_id, FENCE)])


def last_written(spark: SparkSession, path: str, app_id: str) -> int | None:
    """Return a query's last transaction, its fence included; None if it has none, or there is no table.

    Reads the newest files of the table's log. If they do not name the query, the newest snapshot is asked, at
    a cost that does not grow with the table's history. Delta's sink asks the same with its first batch.
    """
    transaction = delta_log.last_transaction(path, app_id, _LOOK_BACK)
    if transaction.fenced:
        return FENCE
    if transaction.complete:
        return transaction.version
    return _transaction(snapshot_at(spark, path), app_id)


def set_transaction(java: Classes, app_id: str, version: int) -> Any:
    """Return Delta's action that marks a commit as (``app_id``, ``version``)."""
    now = java("scala.Option").apply(java("java.lang.System").currentTimeMillis())
    return java("org.apache.spark.sql.delta.actions.SetTransaction")(app_id, version, now)


def note(spark: SparkSession, path: str, transactions: Mapping[str, int]) -> None:
    """Commit transactions alone, by query id, unless one of them, or a fence, is there. Delta refuses those
    of an id that is fenced meanwhile.
    """
    java = classes(spark)
    transaction = delta_log_of(spark, path).startTransaction()
    # Asked for each: so Delta finds what is committed beside it.
    versions = {name: int(transaction.txnVersion(name)) for name in transactions}
    if any(versions[name] >= version for name, version in transactions.items()):
        return
    commit(java, transaction, (set_transaction(java, *each) for each in transactions.items()))


def commit(java: Classes, transaction: Any, actions: Iterable[Any]) -> None:
    """Commit actions of Delta's log in a transaction, without a Spark job."""
    operation = scala_object(java, "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate")
    transaction.commit(scala_seq(java, actions), operation)


def action_of(java: Classes, action: dict[str, Any]) -> Any:
    """Return an action of Delta's log, from the form that it has there."""
    return java("org.apache.spark.sql.delta.actions.Action").fromJson(json.dumps(action))


def _version_before(spark: SparkSession, path: str, app_id: str, fenced_at: int | None) -> int | None:
    """Return the transaction in the snapshot before the fence, which a table checkpoint may still hold."""
    if fenced_at is None:
        raise CheckpointError(
            f"The Delta log of {path} has no commit left that says what the query {app_id} wrote last, nor"
            " when it was fenced: its older commits were cleaned up. Start the new generation from a"
            " timestamp, earliest or latest."
        )
    if fenced_at == 0:
        return None
    return _transaction(snapshot_at(spark, path, fenced_at - 1), app_id)


def _transaction(snapshot: Any, app_id: str) -> int | None:
    version = snapshot.transactions().get(app_id)
    return int(version.get()) if version.isDefined() else None


def snapshot_at(spark: SparkSession, path: str, version: int | None = None) -> Any:
    """Return Delta's own snapshot object of a version, by default the newest."""
    log = delta_log_of(spark, path)
    if version is None:
        return log.update(*(getattr(log, f"update$default${argument}")() for argument in (1, 2, 3)))
    arguments = (getattr(log, f"getSnapshotAt$default${argument}")() for argument in (2, 3, 4))
    return log.getSnapshotAt(version, *arguments)


def delta_log_of(spark: SparkSession, path: str) -> Any:
    """Return Delta's own log of the table at a path or URL."""
    java = classes(spark)
    return java("org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, spark_url(path))
