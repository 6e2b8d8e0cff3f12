"""Whether a flow can write its table: what its first batch would fail of is found before."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StringType, StructType

from streamkeeper.declare.model import COMPLETE, UPDATE, AppendFlow, Table
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.summary import MAPPED, UNMAPPED
from streamkeeper.errors import DeclarationError, RecoveryError, TableUnfit
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.cdc import check_target
from streamkeeper_jobs.cdc.columns import stored_fields
from streamkeeper_jobs.sinks.complete import check_may_be_replaced
from streamkeeper_jobs.sinks.each_batch import check_is_log, check_rows
from streamkeeper_jobs.sinks.update import as_changes, check_updates
from streamkeeper_jobs.spark.jvm import Classes, classes
from streamkeeper_jobs.spark.session import spark_url

_NOT_IN_PARQUET = re.compile(r"[ ,;{}()\n\t=]")


def check_table(spark: SparkSession, settings: Settings, flow: Flow, frame: DataFrame, adopted: bool) -> None:
    """Check that the flow can write its table.

    :param adopted: it is one that another job wrote.
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
