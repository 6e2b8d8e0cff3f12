"""Writes each batch as files of a folder, through Spark's own sink and its log ``_spark_metadata``.

Spark numbers the log's entries by the batch, and skips a number that is there. A new generation counts its
batches from 0 again: Spark would skip all of them. So an entry's number follows the last one, and the note of
a batch in the sink's Delta log names its entry, too. A batch whose entry is there, and whose note is not, was
written by a driver that died between them: Spark's sink skips it.

A generation begins with an entry without files. It takes the number that a late driver of the one before
would use, whose batch then fails. So whether that batch is there is certain before its generation is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.driver import CHECKPOINT_MANAGER, S3_CHECKPOINT_MANAGER
from streamkeeper.declare.model import Table
from streamkeeper.errors import DeclarationError, RecoveryError
from streamkeeper.flows import generations
from streamkeeper.flows.generations import Generation
from streamkeeper.manifest.environment import filled
from streamkeeper.settings import is_s3
from streamkeeper_jobs.spark.delta_table import last_written, note
from streamkeeper_jobs.spark.jvm import classes, scala_map, scala_seq
from streamkeeper_jobs.spark.session import spark_url

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job

_SOURCES = "org.apache.spark.sql.execution.datasources"
_FORMATS = {
    "parquet": f"{_SOURCES}.parquet.ParquetFileFormat",
    "json": f"{_SOURCES}.json.JsonFileFormat",
    "csv": f"{_SOURCES}.csv.CSVFileFormat",
}
_SINKS = "org.apache.spark.sql.execution.streaming.sinks"
_METADATA = "_spark_metadata"


def check_rows(table: Table, columns: StructType) -> None:
    """Check that rows can be written as files.

    :raises DeclarationError: a column is nested, and CSV has none of that kind.
    """
    nested = [item.name for item in columns if isinstance(item.dataType, (StructType, ArrayType, MapType))]
    if table.sink == "csv" and nested:
        raise DeclarationError(
            f"{table.location}: the sink {table.name} gets the column {nested[0]}, which is nested, and CSV"
            " takes plain values. Return its parts, or F.to_json of it, or choose json or parquet."
        )


class FileSink:
    """The files of one generation."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._job, self._query_id = job, generation.query_id
        table = job.table
        options = filled(f"{table.location}: the sink {table.name}", table.properties, job.settings)
        self._folder = options["path"]
        # The manifest has the path as it is declared, before {env:NAME} in it is filled in.
        if (refused := job.settings.why_outside(self._folder)) is not None:
            raise DeclarationError(f"{table.location}: the path of the sink {table.name}: {refused}")
        self._options = {name: value for name, value in options.items() if name != "path"}

    def begin(self) -> int:
        """Take an entry without files, once a generation; return its number."""
        spark, path = self._job.spark, self._job.table_path
        begun = last_written(spark, path, _entries_of(self._query_id))
        if begun is not None:
            return begun
        log, gateway = self._log(spark), spark.sparkContext._gateway
        assert gateway is not None
        nothing = gateway.new_array(classes(spark)(f"{_SINKS}.SinkFileStatus"), 0)
        while not log.add(entry := _latest(log) + 1, nothing):
            self._job.watch.obey()
        note(spark, path, {_entries_of(self._query_id): entry})
        return entry

    def settle(self, number: int, query_id: str) -> None:
        """Note the batch of an earlier generation that a driver wrote and did not note, before it is fenced.

        :param number: of that generation.
        """
        job, ours = self._job, self.begin()
        noted = last_written(job.spark, job.table_path, _entries_of(query_id))
        begun = generations.read_start(job.home, number)
        if noted is None or begun is None or noted + 1 >= ours:
            return
        log = self._log(job.spark)
        if _files_up_to(log, noted + 1) > _files_up_to(log, noted):
            batch = max(Checkpoint(job.home.storage, begun.checkpoint).offset_batches())
            note(job.spark, job.table_path, {query_id: batch, _entries_of(query_id): noted + 1})

    def write(self, rows: DataFrame, number: int) -> Mapping[str, int]:
        """Write a batch, unless its entry is there; return what is to be noted with it.

        :raises RecoveryError: another query writes into the folder.
        """
        spark, java = rows.sparkSession, classes(rows.sparkSession)
        noted = last_written(spark, self._job.table_path, _entries_of(self._query_id))
        assert noted is not None, "the generation began with an entry"
        latest = _latest(self._log(spark))
        if latest < noted:
            raise RecoveryError(
                f"{self._folder}/{_METADATA} ends with entry {latest}, and this flow's last is {noted}: the"
                " folder was removed, or is another one. Put it back, or reset the flow: its next"
                " generation begins there."
            )
        if latest > noted + 1:
            raise RecoveryError(
                f"{self._folder}/{_METADATA} has entry {latest}, and this flow's last is {noted}: another"
                " query writes there, and Spark's log has room for one. Give each its own folder, and reset"
                " the flow."
            )
        sink = java(f"{_SINKS}.FileStreamSink")(
            spark._jsparkSession,
            spark_url(self._folder),
            java(_FORMATS[str(self._job.table.sink)])(),
            scala_seq(java, []),
            scala_map(java, self._options),
        )
        add(sink, noted + 1, rows)
        return {_entries_of(self._query_id): noted + 1}

    def _log(self, spark: SparkSession) -> Any:
        if is_s3(self._folder):
            # The state folder may be elsewhere. Spark's own classes let two drivers write one entry there.
            spark.conf.set(CHECKPOINT_MANAGER, S3_CHECKPOINT_MANAGER)
        java = classes(spark)
        return java(f"{_SINKS}.FileStreamSinkLog")(
            1, spark._jsparkSession, f"{spark_url(self._folder)}/{_METADATA}", java("scala.Option").empty()
        )


def add(sink: Any, entry: int, rows: DataFrame) -> None:
    """Write rows through Spark's sink, as an entry of its log, unless the entry is there."""
    sink.addBatch(entry, rows._jdf)


def _entries_of(query_id: str) -> str:
    """Return the id of the transaction that says which entry of Spark's log has a query's last batch."""
    return f"{query_id}/entry"


def _latest(log: Any) -> int:
    """Return the number of the last entry; -1 if there is none."""
    batch_id = log.getLatestBatchId()
    return int(batch_id.get()) if batch_id.isDefined() else -1


def _files_up_to(log: Any, entry: int) -> int:
    """Return how many files the entries up to one have; every tenth has those before it, too."""
    count = 0
    for number in range(entry, -1, -1):
        files = log.get(number)
        count += len(files.get()) if files.isDefined() else 0
        if log.batchIdToPath(number).getName().endswith(".compact"):
            break
    return count
