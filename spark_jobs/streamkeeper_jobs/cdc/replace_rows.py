"""Replaces rows of a target in one commit: marks old ones by deletion vectors and appends new ones, or writes
the files that have old ones again where the table may have no such vectors.

The result is that of MERGE. But MERGE joins the target three times, once with all its columns and with a
shuffle; here the caller searches for rows once, and reads only the columns that it needs. This uses internals
of Delta, as ``docs/decisions/0019-rows-replaced-by-deletion-vectors.md`` explains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructField, StructType

from streamkeeper.declare.cdc_spec import END_AT
from streamkeeper.delta.remembered import DOMAIN, Remembered, restored_since
from streamkeeper.errors import TableUnfit
from streamkeeper.storage import open_storage
from streamkeeper_jobs.cdc.expressions import literal
from streamkeeper_jobs.cdc.steps import Step
from streamkeeper_jobs.spark.delta_commit import files_read, resolved
from streamkeeper_jobs.spark.delta_snapshot import (
    JsonObject,
    Listed,
    actions_of,
    files_of,
    metadata_of,
    name_in_files,
    null_or_from,
    within_bounds,
)
from streamkeeper_jobs.spark.delta_table import commit, delta_log_of, set_transaction
from streamkeeper_jobs.spark.frames import column, measured, once
from streamkeeper_jobs.spark.jvm import Classes, classes, java_list, python_list, scala_object, scala_seq
from streamkeeper_jobs.spark.session import begun

PLACE, FILE, INDEX = "place", "file", "index"
"""Position of a row in a target: a struct of its file, and of its number in the file."""

_VECTORS = "delta.enableDeletionVectors"
_SENT = 1_000_000
"""Places of rows up to which they are broadcast: some hundred megabytes."""
_A_FILE = 128 * 2**20
"""Bytes of the files that one task reads and writes again."""
_MORE_THAN_ROWS = ("delta.enableChangeDataFeed", "delta.enableRowTracking")


@dataclass(frozen=True)
class Target:
    """A target as the one transaction of a batch sees it: its rows, and what it remembers."""

    session: SparkSession
    path: str
    step: Step | None
    remembered: Remembered
    transaction: Any
    checksum_batch: int | None = None
    """The last batch of the query by the checksum of the transaction's version; None if that does not say."""
    files: Listed | None = None
    """All files with their statistics, by that checksum; None if that does not say."""
    written: Callable[[], int] = lambda: -1
    """Returns the last batch of the step's query that the transaction sees; it may wait for that."""

    @cached_property
    def _metadata(self) -> JsonObject:
        return metadata_of(self.session, self.transaction)

    @cached_property
    def schema(self) -> StructType:
        """The target's columns."""
        return StructType.fromJson(json.loads(self._metadata["schemaString"]))

    @property
    def properties(self) -> dict[str, str]:
        """The target's table properties."""
        configuration: dict[str, str] = self._metadata["configuration"]
        return configuration

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of its partition columns."""
        return tuple(self._metadata["partitionColumns"])

    @property
    def has_step(self) -> bool:
        """Whether the batch is in the target already, or its generation is fenced.

        The transaction is asked: a fence that comes later makes its commit fail.
        """
        assert self.step is not None, "it was opened for a batch"
        return (self.written() if self.checksum_batch is None else self.checksum_batch) >= self.step.batch_id

    def all_below(self, value: Any, column: str, field: str, files: Listed | None) -> bool:
        """Return whether all rows of some files have a lower value of a column's field, as far as their
        statistics say.
        """
        whole = self.schema[column]
        path = (whole, cast(StructType, whole.dataType)[field])
        return files is not None and files.all_below(value, *path)

    def looked_at(
        self, bounds: Column, key: str, lowest: Any, highest: Any, since: Any = None
    ) -> Opened | None:
        """Return the rows within bounds on the target's columns; None if only MERGE can replace them.

        MERGE is needed if the table keeps more of a row than its columns: a change data feed, row tracking.
        (The positions of rows are in Spark's ``_metadata``, unless a column has that name.)

        :param key: a column whose values outside ``lowest`` and ``highest`` (in portable form) are not within
            the bounds.
        :param since: leave aside files of which all versions (SCD type 2) ended before that sequence (in
            portable form). Other rows may have ended before it, too.
        """
        java, properties = classes(self.session), self.properties
        more = any(properties.get(name) == "true" for name in _MORE_THAN_ROWS)
        if more or "_metadata" in self.schema.fieldNames():
            return None
        conditions, holds = [bounds], [within_bounds(self.schema[key], lowest, highest)]
        if since is not None:
            end = self.schema[END_AT]
            conditions.append(column(END_AT).isNull() | (column(END_AT) >= literal(since, end.dataType)))
            holds.append(null_or_from(end, since))
        condition = scala_seq(java, [resolved(self.session, self.transaction, one) for one in conditions])
        if self.files is None:
            self.written()
            listed, files = None, self.transaction.filterFiles(condition, True)
        else:
            listed = self.files.matching(java, *holds)
            files = listed.files
            # As ``filterFiles`` does, so that another writer's rows within the bounds make the commit fail.
            self.transaction.trackReadPredicates(condition, False, True)
            self.transaction.trackFilesRead(files)
        return Opened(self, files_read(self.session, self.transaction, files).where(bounds), files, listed)

    def commit_remembered(self, remembered: Remembered) -> None:
        """Commit what the target remembers from now on, without the step: before a MERGE, which can not.

        It is of changes that did happen, so it does no harm if the batch never follows.

        :raises DeltaConcurrentModificationException: another commit came in between, such as a fence.
        """
        self.written()
        commit(classes(self.session), self.transaction, [self._domain(remembered)])

    def commit_step(self, actions: Any, remembered: Remembered) -> None:
        """Commit the batch: actions on files, what the target remembers from now on, and the step.

        :raises DeltaConcurrentModificationException: another commit came in between; one of its subclasses.
        """
        java = classes(self.session)
        ours = scala_seq(java, self._ours(remembered))
        self.transaction.commit(ours.appendedAll(actions), _merge(java))

    def commit_nothing(self, remembered: Remembered) -> None:
        """Commit a batch that changes no row: the target needs its step all the same."""
        commit(classes(self.session), self.transaction, self._ours(remembered))

    def _ours(self, remembered: Remembered) -> list[Any]:
        assert self.step is not None, "it was opened for a batch"
        assert self.written() < self.step.batch_id, "the checksum of the version says otherwise"
        step = set_transaction(classes(self.session), self.step.query_id, self.step.batch_id)
        return [step, self._domain(remembered)]

    def _domain(self, remembered: Remembered) -> Any:
        versioned = replace(remembered, since=int(self.transaction.snapshot().version()))
        return domain(classes(self.session), versioned)


def domain(java: Classes, remembered: Remembered) -> Any:
    """Return Delta's action that says what a table remembers."""
    return java("org.apache.spark.sql.delta.actions.DomainMetadata")(DOMAIN, remembered.to_json(), False)


@dataclass(frozen=True)
class Opened:
    """The rows of a target within some bounds, with their ``_metadata``."""

    target: Target
    rows: DataFrame
    _files: Any
    _listed: Listed | None

    def all_below(self, value: Any, column: str, field: str) -> bool:
        """As of :class:`Target`, for the rows within the bounds."""
        return self.target.all_below(value, column, field, self._listed)

    def placed(self, *columns: Column) -> DataFrame:
        """Return some columns of its rows, and the position of each: ``place``."""
        return self.rows.select(*columns, _place())

    def replace(self, gone: DataFrame | None, rows: DataFrame, remembered: Callable[[], Remembered]) -> None:
        """Remove rows (column ``place``; None for none) and add others (the target's columns) in the step's
        commit.

        :param remembered: returns what the target remembers from then on; asked once the rows are written.
        :raises DeltaConcurrentModificationException: another commit came in between; one of its subclasses.
        """
        if self._has_vectors:
            mark = partial(self._mark, gone) if gone is not None else None
            actions = self._marked_beside(mark, rows)
        else:
            actions = self._rewritten(gone, rows)
        self.target.commit_step(actions, remembered())

    def replace_keys(
        self,
        key: Sequence[StructField],
        keys: DataFrame,
        search: Callable[[], DataFrame],
        rows: DataFrame,
        remembered: Callable[[], Remembered],
    ) -> None:
        """Remove all rows of some keys and add others, as :meth:`replace` does.

        :param key: the target's columns of which ``keys`` has values, in the same order.
        :param search: returns the ``place`` of each row of the keys; called if no index knows them.
        """
        if self._has_vectors:
            actions = self._marked_beside(lambda: self._mark_known(key, keys) or self._mark(search()), rows)
        else:
            actions = self._rewritten(search(), rows)
        self.target.commit_step(actions, remembered())

    @property
    def _has_vectors(self) -> bool:
        return self.target.properties.get(_VECTORS) == "true"

    def _marked_beside(self, mark: Callable[[], tuple[Any, int]] | None, rows: DataFrame) -> Any:
        """Append rows, and mark others meanwhile; return the actions."""
        session = rows.sparkSession
        marking = begun(session, mark) if mark is not None else None
        try:
            added = self._transaction.writeFiles(self._laid_out(rows)._jdf)
        finally:
            if marking is not None:
                wait([marking])  # nothing of a failed batch goes on beside its next try
        marked, count = marking.result() if marking is not None else (scala_seq(classes(session), []), 0)
        self._say_how_much(session, added, deleted=count)
        return added.appendedAll(marked)

    def _rewritten(self, gone: DataFrame | None, rows: DataFrame) -> Any:
        """Write the files of rows that are gone again without these, and with others; return the actions."""
        session, java = rows.sparkSession, classes(rows.sparkSession)
        touched: list[Any] = []
        count = copied = 0
        with ExitStack() as stack:
            if gone is not None:
                files, number = F.collect_set(column(PLACE, FILE)), F.count(PLACE)
                places, aggregated = stack.enter_context(
                    measured(gone.select(PLACE), files.alias("files"), number.alias("number"))
                )
                touched, count = self._named(java, aggregated["files"]), aggregated["number"]
            if touched:
                columns = [column(name) for name in self.target.schema.fieldNames()]
                old = files_read(session, self._transaction, scala_seq(java, touched))
                old = old.select(*columns, _place())
                stays = old.join(F.broadcast(places) if count <= _SENT else places, PLACE, "left_anti")
                size = sum(int(file.size()) for file in touched)
                rows = rows.unionByName(stays.select(*columns)).coalesce(1 + size // _A_FILE)
                row_counts = [file.numLogicalRecords() for file in touched]
                copied = sum(int(each.get()) for each in row_counts if each.isDefined()) - count
            added, now = self._transaction.writeFiles(self._laid_out(rows)._jdf), int(time.time() * 1000)
        self._say_how_much(session, added, deleted=count, copied=max(0, copied))
        return added.appendedAll(scala_seq(java, [file.removeWithTimestamp(now, True) for file in touched]))

    def _named(self, java: Classes, files: list[str]) -> list[Any]:
        """Return looked-at files by what ``_metadata`` calls them: escaped paths, a space is ``%20``."""
        base, by_name = self._transaction.deltaLog().dataPath(), self._by_name(java)
        places = scala_object(java, "org.apache.spark.sql.delta.util.DeltaFileOperations")
        return [by_name.apply(places.absolutePath(base.toString(), file).toString()) for file in files]

    def _by_name(self, java: Classes) -> Any:
        """Return the looked-at files by their full names."""
        vectors = java("org.apache.spark.sql.delta.commands.DMLWithDeletionVectorsHelper")
        return vectors.generateCandidateFileMap(self._transaction.deltaLog().dataPath(), self._files)

    @property
    def _transaction(self) -> Any:
        return self.target.transaction

    def _laid_out(self, rows: DataFrame) -> DataFrame:
        """Return the rows grouped by partition, as by MERGE: else each task would write a file into each."""
        names = [column(name) for name in self.target.partitions]
        return rows.repartition(*names) if names else rows

    def _mark_known(self, key: Sequence[StructField], keys: DataFrame) -> tuple[Any, int] | None:
        """Mark all rows of keys as :meth:`_mark` does, by the index that the driver keeps; None without it.

        It keeps one for a key of one column of whole numbers that is in the files, of a table whose files the
        checksum lists.
        """
        java, listed = classes(keys.sparkSession), self._listed
        one = len(key) == 1 and isinstance(key[0].dataType, IntegralType)
        if listed is None or not one or key[0].name in self.target.partitions:
            return None
        assert self.target.files is not None, "some of them are listed"
        vectors = (
            java("streamkeeper.cdc.KeyIndex")
            .of(self.target.path)
            .mark(
                keys.sparkSession._jsparkSession,
                self._transaction,
                self.target.files.files,
                listed.rows,
                name_in_files(self.target.schema[key[0].name]),
                keys.select(column(*keys.columns).cast("bigint"))._jdf,
            )
        )
        return None if vectors is None else _made(vectors)

    def _mark(self, gone: DataFrame) -> tuple[Any, int]:
        """Write deletion vectors; return the actions that activate them, and how many rows they mark."""
        java = classes(gone.sparkSession)
        session = gone.sparkSession._jsparkSession
        row_indexes = java(
            "org.apache.spark.sql.delta.commands.DeletionVectorBitmapGenerator"
        ).buildRowIndexSetsForFilesMatchingCondition(
            session,
            self._transaction,
            True,
            gone._jdf,
            self._files,
            java("org.apache.spark.sql.catalyst.expressions.Literal").TrueLiteral(),
            java("scala.Option").apply(column(PLACE, FILE)._jc),
            java("scala.Option").apply(column(PLACE, INDEX)._jc),
        )
        vectors = java("org.apache.spark.sql.delta.commands.DMLWithDeletionVectorsHelper")
        touched = vectors.findFilesWithMatchingRows(self._transaction, self._by_name(java), row_indexes)
        files = python_list(touched)
        entries = [file.fileLogEntry() for file in files]
        if all(entry.numPhysicalRecords().isDefined() for entry in entries):
            new = java_list(java, [file.newDeletionVector() for file in files])
            return _made(
                java("streamkeeper.cdc.DeletionVectors").of(java_list(java, self._whole(entries)), new)
            )
        # Files without statistics: Delta reads them, since a file with a deletion vector must have some.
        statistics = java("org.apache.spark.sql.delta.stats.StatsCollectionUtils")
        length = statistics.getDataSkippingStringPrefixLength(session, self._transaction.metadata())
        done = vectors.processUnmodifiedData(session, touched, self._transaction.snapshot(), length)
        return done._1(), int(done._2().apply("numModifiedRows"))

    def _whole(self, entries: list[Any]) -> list[Any]:
        """Return entries of files with all their statistics, of which ``filterFiles`` keeps one number."""
        if self.target.files is not None:
            return entries
        names = [entry.path() for entry in entries]
        files = self._transaction.snapshot().allFiles().filter(F.col("path").isin(names)._jc).collect()
        whole = {entry.path(): entry for entry in files}
        return [whole[name] for name in names]

    def _say_how_much(self, session: SparkSession, added: Any, *, deleted: int, copied: int = 0) -> None:
        """Set the metrics in the table's history: an updated row counts as one deleted and one inserted."""
        java = classes(session)
        files = python_list(added)
        inserted = sum(int(file.numLogicalRecords().get()) for file in files) - copied
        numbers = {
            "numTargetRowsInserted": inserted,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsCopied": copied,
            "numTargetFilesAdded": len(files),
        }
        metrics = java("java.util.HashMap")()
        for name, number in {**numbers, "operationNumSourceRows": inserted}.items():
            metric = java("org.apache.spark.sql.execution.metric.SQLMetrics").createMetric(
                session._jsparkSession.sparkContext(), name
            )
            metric.set(number)
            metrics.put(name, metric)
        to_map = scala_object(java, "scala.collection.immutable.Map")
        as_map = to_map.__getattr__("from")(java("scala.jdk.javaapi.CollectionConverters").asScala(metrics))
        self._transaction.registerSQLMetrics(session._jsparkSession, as_map)


def _made(vectors: Any) -> tuple[Any, int]:
    """Return the actions of new deletion vectors, and how many rows they mark."""
    return vectors.actions(), int(vectors.rows())


@once
def _place() -> Column:
    return F.struct(
        F.col("_metadata.file_path").alias(FILE), F.col("_metadata.row_index").alias(INDEX)
    ).alias(PLACE)


def opened(session: SparkSession, path: str, step: Step | None = None) -> Target:
    """Open a target, for the commits of a step.

    :raises TableUnfit: it is not prepared, or is not as its flows left it: somebody restored or copied
        it.
    """
    transaction = delta_log_of(session, path).startTransaction()
    remembered = remembered_by(session, path, transaction)
    if step is None:
        return Target(session, path, step, remembered, transaction)
    transactions = actions_of(transaction, "setTransactions") or ()
    checksum_batch = next(
        (int(action.version()) for action in transactions if str(action.appId()) == step.query_id), None
    )
    if checksum_batch is not None:
        # As ``txnVersion`` does, so that a fence that comes later makes the commit fail.
        transaction.readTxn().addOne(step.query_id)
    files = files_of(classes(session), transaction)
    if checksum_batch is None or files is None:
        written = begun(session, lambda: _last_batch(transaction, step, checksum_batch, files)).result
    else:
        written = partial(int, checksum_batch)
    return Target(session, path, step, remembered, transaction, checksum_batch, files, written)


def _last_batch(transaction: Any, step: Step, checksum_batch: int | None, files: Listed | None) -> int:
    """Return the last batch of the step's query that a transaction sees, and let Delta prepare the list of
    files with their statistics.

    Both take Spark jobs, which run beside the look at the batch, and neither is needed of what the version's
    checksum says.
    """
    version = int(transaction.txnVersion(step.query_id)) if checksum_batch is None else checksum_batch
    if files is None:
        transaction.snapshot().withStats().count()
    return version


def remembered_by(session: SparkSession, path: str, transaction: Any) -> Remembered:
    """Return what a target remembers, as a transaction sees it.

    :raises TableUnfit: it is not prepared, or is not as its flows left it.
    """
    snapshot = transaction.snapshot()
    domains = actions_of(transaction, "domainMetadata")
    remembered = next(
        (
            Remembered.from_json(str(action.configuration()))
            for action in (python_list(snapshot.domainMetadata()) if domains is None else domains)
            if str(action.domain()) == DOMAIN and not action.removed()
        ),
        None,
    )
    if remembered is None:
        raise TableUnfit(
            f"The log of {path} does not say which deletes it remembers: it is a copy of an AUTO CDC table,"
            " or the domain was dropped. Without them a late change could bring a deleted row back. Put a"
            " backup back with restore_table, or refresh the table in full."
        )
    own = str(transaction.metadata().id())
    if remembered.table != own:
        raise TableUnfit(
            f"The table at {path} has the id {own}, and its log says what {remembered.table} remembers: it is"
            " a copy. Put a backup back with restore_table, or refresh the table in full."
        )
    restored = restored_since(open_storage(path), remembered.since, int(snapshot.version()))
    if restored is not None:
        raise TableUnfit(
            f"Version {restored} of {path} is a RESTORE that no recovery finished: its rows are older than"
            " the deletes that it remembers, and than where its flows stand. Choose the same version in the"
            " recovery restore_table, which puts back both and lets the flows go on from there."
        )
    return remembered


def _merge(java: Classes) -> Any:
    """Return the operation that names the commit in the table's history."""
    none, nothing = java("scala.Option").empty(), scala_seq(java, [])
    return java("org.apache.spark.sql.delta.DeltaOperations$Merge")(
        none, none, none, none, nothing, nothing, nothing
    )
