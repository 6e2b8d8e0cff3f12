"""A dry run of a declaration on a copy of a checkpoint: does Spark continue with this state?

Without input an incompatible change goes unnoticed: its error comes only when a batch is planned.
So the copy gets one more planned batch, which ends
where the last one did, and the declared query runs it without output. This loads every store at its newest
version, compares every schema, and reads no row. The copy is removed afterwards; the original is only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StringType, StructType

from streamkeeper.checkpoint import Checkpoint, OffsetEntry, write_offsets
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.driver import is_of_session
from streamkeeper.declare.model import COMPLETE, UPDATE, AppendFlow, Table
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import MAPPED, UNMAPPED
from streamkeeper.drivers.failures import Failure, classify
from streamkeeper.errors import DeclarationError, RecoveryError, TableUnfit
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage
from streamkeeper_jobs.cdc import check_target
from streamkeeper_jobs.cdc.columns import stored_fields
from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint, copy_file, schema_logs
from streamkeeper_jobs.sinks.complete import check_may_be_replaced
from streamkeeper_jobs.sinks.each_batch import check_is_log, check_rows
from streamkeeper_jobs.sinks.expectations import check as check_expectations
from streamkeeper_jobs.sinks.update import as_changes, check_updates
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.spark.jvm import Classes, classes
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.spark.stateful_operators import check_mode
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.in_flight import pin_partitions
from streamkeeper_jobs.stream.query import run_muted
from streamkeeper_jobs.stream.readers import infer_schema
from streamkeeper_jobs.stream.watch import Order

QUERY_ID = "00000000-0000-0000-0000-000000000000"
"""The id of a query without output."""
_NOT_IN_PARQUET = re.compile(r"[ ,;{}()\n\t=]")


class DoesNotFit(Exception):
    """Spark refused a declaration, or a failure kept it from being tried."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    def message(self) -> str:
        """Return the first line that Spark said, with its condition."""
        lines = self.failure.message.strip().splitlines() or ["(nothing)"]
        return f"{self.failure.code}: {lines[0].removeprefix(f'[{self.failure.condition}] ')}"


@dataclass(frozen=True)
class Rehearsal:
    """What is tried: a flow, with its sources opened, after a batch of a checkpoint, if that has any.

    ``folder`` is the copy's name in ``storage``, still empty. ``check_stop`` raises where nobody wants the
    answer any more. ``adopted`` says that the checkpoint and the table are another job's.
    """

    storage: Storage
    flow: Flow
    checkpoint: Checkpoint
    batch: int | None
    folder: str
    check_stop: Callable[[], None]
    adopted: bool = False

    def order(self) -> Order | None:
        """Stop if the recovery was abandoned."""
        self.check_stop()
        return None

    def tell(self, **changes: object) -> None:
        """Do nothing: nobody watches a dry run."""


def rehearse(
    spark: SparkSession, settings: Settings, rehearsal: Rehearsal, schemas: Mapping[str, str] | None = None
) -> DataFrame:
    """Do the dry run, remove the copy, and return the query's DataFrame.

    :param schemas: known ones of sources that declare none; the others are inferred.
    :raises DoesNotFit: the declaration does not fit the checkpoint; nothing was changed.
    :raises RecoveryError: it does not fit its table.
    :raises CheckpointError: the checkpoint lacks what the batch needs.
    """
    flow, storage = rehearsal.flow, rehearsal.storage
    session = session_of(spark, flow)
    try:
        folder = storage.path(rehearsal.folder)
        # The log says which schema of a Delta source's is in force.
        for source in (item for item in flow.sources if item.track_schema):
            for name in schema_logs(rehearsal.checkpoint, source.name):
                copy_file(rehearsal.checkpoint, name, storage, rehearsal.folder)
        frame = plan_query(session, settings, flow, schemas or {}, folder, adopted=rehearsal.adopted)
        if rehearsal.batch is not None:
            _run(session, frame, rehearsal, rehearsal.batch)
    except PySparkException as error:
        raise DoesNotFit(classify(causes_of(error))) from error
    finally:
        storage.remove(rehearsal.folder)
    return frame


def plan_query(
    session: SparkSession,
    settings: Settings,
    flow: Flow,
    schemas: Mapping[str, str],
    checkpoint: str | None = None,
    *,
    adopted: bool = False,
) -> DataFrame:
    """Return a flow's DataFrame, after a check of its expectations, its output mode and its table.

    :param flow: with its sources opened.
    :param schemas: known ones of sources that declare none; the others are inferred.
    :param adopted: the table is one that another job wrote.
    :raises PySparkException: Spark cannot plan it.
    :raises DeclarationError: a function of the pipeline file raises, or an expectation does not fit.
    :raises RecoveryError: it does not fit its table.
    """
    frame = flow_frame(session, flow, schemas_of(session, flow, schemas), checkpoint=checkpoint)
    check_expectations(frame, flow.declaration)
    check_mode(frame, flow.declaration.mode)
    _check_table(session, settings, flow, frame, adopted)
    return frame


def session_of(spark: SparkSession, flow: Flow) -> SparkSession:
    """Return a session with those of the flow's declared settings that can be set in a session."""
    session = spark.newSession()
    for name, value in flow.declaration.spark_conf.items():
        if is_of_session(name):
            session.conf.set(name, value)
    return session


def schemas_of(spark: SparkSession, flow: Flow, known_schemas: Mapping[str, str]) -> Mapping[str, str]:
    """Return the schemas of files sources that declare none: known ones, else inferred from their files."""
    sources = flow.pipeline.sources_of(flow.declaration)
    schemas = {
        source.name: known_schemas.get(source.name) or infer_schema(spark, source)
        for source in sources
        if source.reads_files and source.schema is None
    }
    return {name: schema for name, schema in schemas.items() if schema is not None}


def _check_table(
    spark: SparkSession, settings: Settings, flow: Flow, frame: DataFrame, adopted: bool
) -> None:
    """Check that the flow can write its table: else its first batch would fail.

    :raises RecoveryError: it cannot.
    """
    declared = flow.declaration
    target, table = declared.target, flow.pipeline.table(declared.target)
    assert table is not None, "a pipeline whose flow has no table is refused"
    path = settings.table_path(target)
    try:
        if table.sink is not None:
            check_is_log(spark, path, table)
            check_rows(table, frame.schema)
            return
        if isinstance(declared, AppendFlow) and declared.mode == UPDATE:
            check_updates(frame, declared)
            frame = as_changes(frame, 0, F.lit(0).cast("bigint"))
        if declared.mode == COMPLETE and not adopted:
            check_may_be_replaced(spark, path, table)
        stored = frame.schema.fields if declared.spec is None else stored_fields(frame.schema, declared.spec)
        if not delta_log.exists(path):
            _check_names(StructType(stored), table)
        if declared.spec is None:
            _check_columns(spark, settings, flow, frame)
            return
        check_target(spark, frame.schema, declared.spec, path, table)
    except (DeclarationError, TableUnfit) as error:
        raise RecoveryError(
            f"The flow {flow.full_name} cannot write its table: {error} Nothing was changed."
        ) from error


def _check_names(columns: StructType, table: Table) -> None:
    """Check that Delta takes the names of a new table's columns: without column mapping they are Parquet's.

    Source: Delta 4.4.0, ``SchemaUtils.checkFieldNames``.

    :raises DeclarationError: it refuses one, in a struct too.
    """
    refused = [name for name in _names_in(columns) if _NOT_IN_PARQUET.search(name)]
    if refused and table.properties.get(MAPPED, UNMAPPED) == UNMAPPED:
        raise DeclarationError(
            f"The column {refused[0]!r} has a blank or one of ,;{{}}()= in its name, which Delta stores only"
            f" with column mapping. Rename it in the view, or declare table_properties={{'{MAPPED}': 'name'}}"
            f" for the table ({table.location})."
        )


def _names_in(kind: DataType) -> Iterator[str]:
    """Yield the names of all columns, with those inside of structs, arrays and maps."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield field.name
                yield from _names_in(field.dataType)
        case ArrayType():
            yield from _names_in(kind.elementType)
        case MapType():
            yield from _names_in(kind.keyType)
            yield from _names_in(kind.valueType)


def _check_columns(spark: SparkSession, settings: Settings, flow: Flow, frame: DataFrame) -> None:
    """Check that the table has all columns that an append flow writes."""
    path = settings.table_path(flow.declaration.target)
    if not delta_log.exists(path):
        return
    table = spark.read.format("delta").load(spark_url(path)).schema
    table_types = {field.name.lower(): field.dataType for field in table.fields}
    strange = [name for name in frame.columns if name.lower() not in table_types]
    if strange:
        raise RecoveryError(
            f"The flow {flow.full_name} has the columns {', '.join(strange)}, which the table at {path}"
            f" lacks; it has {', '.join(sorted(table_types))}. Nothing was changed. Correct the declaration,"
            " or add them to the table, and plan again."
        )
    for field in frame.schema.fields:
        table_type = table_types[field.name.lower()]
        if not _is_stored(classes(spark), field.dataType, table_type):
            raise RecoveryError(
                f"The flow {flow.full_name} gives {field.name} as {field.dataType.simpleString()}, and the"
                f" table at {path} has it as {table_type.simpleString()}: it cannot be stored. Nothing was"
                " changed. Cast it in the declaration, and plan again."
            )


def _is_stored(java: Classes, column_type: DataType, table_type: DataType) -> bool:
    """Return whether Delta's sink takes a column of a type into a table that has another.

    Delta 4.4.0 casts as a store assignment does, and texts to all but truth values: a text that is no number
    ends its batch, and no plan tells of values. A struct may lack fields.
    """
    match column_type, table_type:
        case StructType(), StructType():
            field_types = {field.name.lower(): field.dataType for field in table_type.fields}
            return all(
                field.name.lower() in field_types
                and _is_stored(java, field.dataType, field_types[field.name.lower()])
                for field in column_type.fields
            )
        case ArrayType(), ArrayType():
            return _is_stored(java, column_type.elementType, table_type.elementType)
        case MapType(), MapType():
            return _is_stored(java, column_type.keyType, table_type.keyType) and _is_stored(
                java, column_type.valueType, table_type.valueType
            )
    cast = java("org.apache.spark.sql.catalyst.expressions.Cast")
    old, new = (
        java("org.apache.spark.sql.types.DataType").fromJson(one.json()) for one in (table_type, column_type)
    )
    if isinstance(column_type, StringType) and not isinstance(table_type, BooleanType):
        return bool(cast.canAnsiCast(new, old))
    return bool(cast.canANSIStoreAssign(new, old))


def _run(spark: SparkSession, frame: DataFrame, rehearsal: Rehearsal, batch: int) -> None:
    """Copy the checkpoint, replay its batch muted if only the table has it, then run an empty one."""
    storage, folder, name = rehearsal.storage, rehearsal.folder, f"{rehearsal.flow.full_name} (rehearsed)"
    copied = copy_checkpoint(rehearsal.checkpoint, batch, folder, QUERY_ID, rehearsal.check_stop, storage)
    copy = Checkpoint(storage, folder)
    pin_state_partitions(spark, copy)
    partitions, mode = str(spark.conf.get(PARTITIONS)), rehearsal.flow.declaration.mode
    if not copied.committed:
        pin_partitions(storage, folder, partitions)
        run_muted(frame, name, copy.path(), rehearsal, mode)
    entry = copy.offsets(batch)
    watermark = copy.commit(batch).next_watermark_ms
    following: OffsetEntry = replace(entry, batch=batch + 1, watermark_ms=watermark)
    storage.overwrite(f"{folder}/offsets/{following.batch}", write_offsets(following))
    pin_partitions(storage, folder, partitions)
    run_muted(frame, name, copy.path(), rehearsal, mode)
