"""Prepares a target before a flow's first batch: creates it, adds columns, or refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from streamkeeper.declare.cdc_spec import BOOKKEEPING, CdcSpec
from streamkeeper.declare.model import Table
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.remembered import BOUND, FEATURE, Remembered
from streamkeeper.errors import DeclarationError, TableUnfit
from streamkeeper_jobs.cdc.columns import (
    KEYS_PROPERTY,
    Layout,
    check_spec,
    field_of,
    holds,
    layout_of,
    sequence_type,
    stored_fields,
    target_schema,
)
from streamkeeper_jobs.cdc.expressions import whole_numbers
from streamkeeper_jobs.cdc.replace_rows import domain, remembered_by
from streamkeeper_jobs.cdc.steps import WriteLocked
from streamkeeper_jobs.spark.delta_commit import table_at, table_properties
from streamkeeper_jobs.spark.delta_snapshot import metadata_of
from streamkeeper_jobs.spark.delta_table import action_of, commit, delta_log_of, set_transaction
from streamkeeper_jobs.spark.frames import quoted
from streamkeeper_jobs.spark.jvm import classes, python_list, scala_seq
from streamkeeper_jobs.spark.session import spark_url

NULLS_PROPERTY = "streamkeeper.ignoreNullUpdates"
"""Table property on whether its flows ignore nulls."""
TRACKED_PROPERTY = "streamkeeper.trackedHistory"
"""Table property with the columns that distinguish versions, with SCD type 2."""
DELETION_VECTORS = "delta.enableDeletionVectors"
"""On unless declared otherwise: a batch then marks the rows that it replaces, and rewrites no file."""


@dataclass(frozen=True)
class Addition:
    """A column or field that a table lacks: path, type, and, for a column, the one that it follows."""

    path: tuple[str, ...]
    type: DataType
    after: str | None


def prepare(  # noqa: PLR0917 - it mirrors apply_changes
    spark: SparkSession,
    schema: StructType,
    spec: CdcSpec,
    path: str,
    table: Table,
    lock: WriteLocked,
    order: DataType | None = None,
) -> tuple[str, ...]:
    """Create a target if absent, else add the columns that it lacks, and return these; repeatable.

    :param order: the type of the sequences in a new table, if the flow's own is a literal and other flows
        determine it.
    :raises DeclarationError: the declaration does not fit its source, or the existing target; nothing was
        changed.
    """
    check_spec(schema, spec)
    with lock():
        exists = delta_log.exists(path)
        columns, additions = _check_target(spark, schema, spec, path, table, exists, order)
        if exists:
            _add(spark, path, additions)
        else:
            _make(spark, path, columns, table, spec)
        _bind(spark, path)
    return tuple(".".join(item.path) for item in additions)


def check_target(spark: SparkSession, schema: StructType, spec: CdcSpec, path: str, table: Table) -> None:
    """Check that a flow can write its target, as it is or would be created; change nothing.

    :raises DeclarationError: the declaration does not fit its source, or the existing table.
    """
    check_spec(schema, spec)
    _check_target(spark, schema, spec, path, table, delta_log.exists(path), None)


def _check_target(  # noqa: PLR0917 - it mirrors prepare
    spark: SparkSession,
    schema: StructType,
    spec: CdcSpec,
    path: str,
    table: Table,
    exists: bool,
    order: DataType | None,
) -> tuple[StructType, Sequence[Addition]]:
    """Return the target's columns, or those that it would have, and what it lacks of the flow's."""
    additions = _fit(spark, schema, spec, path, table) if exists else ()
    if not exists:
        _check_partitions(schema, spec, table)
    columns = table_at(spark, path).toDF().schema if exists else target_schema(schema, spec, order)
    _check_literal(spec, layout_of(columns, spec.keys), table)
    if exists:
        _check_bound(spark, path)
    return columns, additions


def _check_bound(spark: SparkSession, path: str) -> None:
    """Check that it is known what an existing target remembers.

    :raises TableUnfit: it is not.
    """
    transaction = delta_log_of(spark, path).startTransaction()
    if BOUND in _properties(spark, transaction):
        remembered_by(spark, path, transaction)
    elif int(transaction.snapshot().numOfFiles()):
        raise TableUnfit(
            f"What {path} remembers of deleted keys is gone: its log does not say it. Without it a late"
            " change could bring a deleted row back. Put a backup back with restore_table, or refresh the"
            " table in full."
        )


def is_bound(spark: SparkSession, path: str) -> bool:
    """Return whether the log of a table says what it remembers."""
    return BOUND in _properties(spark, delta_log_of(spark, path).startTransaction())


def _bind(spark: SparkSession, path: str) -> None:
    """Let the log of a new target say what it remembers: nothing. The next start does it after a kill."""
    java = classes(spark)
    transaction = delta_log_of(spark, path).startTransaction()
    if BOUND in _properties(spark, transaction):
        return
    nothing = Remembered(str(transaction.metadata().id()), int(transaction.snapshot().version()))
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [FEATURE]}
    needed = scala_seq(java, [action_of(java, {"protocol": protocol})])
    transaction.updateProtocol(transaction.protocol().merge(needed))
    metadata = metadata_of(spark, transaction)
    metadata = {**metadata, "configuration": {**metadata["configuration"], BOUND: "true"}}
    transaction.updateMetadata(action_of(java, {"metaData": metadata}), False)
    commit(java, transaction, [domain(java, nothing)])


def _properties(spark: SparkSession, transaction: Any) -> dict[str, str]:
    """Return the table properties that a transaction sees."""
    configuration: dict[str, str] = metadata_of(spark, transaction)["configuration"]
    return configuration


def empty(spark: SparkSession, path: str, app_id: str) -> None:
    """Remove all rows of a target, and all that it remembers, in one commit of (``app_id``, 0)."""
    java = classes(spark)
    transaction = delta_log_of(spark, path).startTransaction()
    if int(transaction.txnVersion(app_id)) >= 0:
        return
    gone = [file.remove() for file in python_list(transaction.filterFiles())]
    nothing = Remembered(str(transaction.metadata().id()), int(transaction.snapshot().version()))
    commit(java, transaction, [set_transaction(java, app_id, 0), domain(java, nothing), *gone])


def _make(spark: SparkSession, path: str, schema: StructType, table: Table, spec: CdcSpec) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(spark_url(path)).addColumns(schema)
    if table.comment:
        builder = builder.comment(table.comment)
    own = {KEYS_PROPERTY: _spelled(schema, spec), NULLS_PROPERTY: _ignores(spec), **_tracked(spec)}
    for name, value in {DELETION_VECTORS: "true", **table.properties, **own}.items():
        builder = builder.property(name, value)
    if table.partition_cols:
        builder = builder.partitionedBy(*table.partition_cols)
    builder.execute()


def _check_partitions(schema: StructType, spec: CdcSpec, table: Table) -> None:
    stored = [field.name for field in stored_fields(schema, spec)]
    unknown = [name for name in table.partition_cols if name.lower() not in {one.lower() for one in stored}]
    if unknown:
        raise DeclarationError(
            f"{table.location}: the table {table.name} is partitioned by {', '.join(unknown)}, which its flow"
            f" does not store. It stores {', '.join(stored)}. Correct partition_cols."
        )


def _fit(
    spark: SparkSession, schema: StructType, spec: CdcSpec, path: str, table: Table
) -> Sequence[Addition]:
    """Return the columns that a target lacks for a flow.

    :raises DeclarationError: it is no AUTO CDC target, or one of another kind.
    """
    opened = table_at(spark, path)
    columns, says = opened.toDF().schema, f"{table.location}: the table {table.name}"
    properties = table_properties(opened)
    keys = properties.get(KEYS_PROPERTY)
    if BOOKKEEPING not in columns.fieldNames() or keys is None:
        raise DeclarationError(
            f"{says} is there, but no AUTO CDC flow made it: it has no column {BOOKKEEPING}, which"
            " distinguishes late changes from new ones. Declare another table and fill it from this one."
        )
    declared = _spelled(schema, spec)
    if keys.lower() != declared.lower():
        raise DeclarationError(
            f"{says} has the keys {keys}, and the flow declares {declared}. The keys of a table cannot"
            " change."
        )
    layout = layout_of(columns, spec.keys)
    for clause, has, gives in (
        ("is of SCD type", 2 if layout.history else 1, spec.scd_type),
        ("was made with ignore_null_updates", properties.get(NULLS_PROPERTY), _ignores(spec)),
    ):
        if has != gives:
            raise DeclarationError(
                f"{says} {clause} {has}, and the flow declares {gives}. All flows of a table must agree, for"
                " good."
            )
    _check_sequence(schema, spec, layout, says)
    _check_tracked(spec, properties, says)
    return list(_lacking(layout.stored, StructType(stored_fields(schema, spec)), (), says))


def _check_tracked(spec: CdcSpec, properties: Mapping[str, str], says: str) -> None:
    """Check that a target tracks the columns that its flow declares.

    :raises DeclarationError: it tracks other columns: its versions would be merged or split differently than
        they were shown.
    """
    for name, value in _tracked(spec).items():
        noted = properties.get(name, "nothing")
        if noted != value:
            raise DeclarationError(
                f"{says} tracks {noted} in its history, and the flow declares {value}."
                " Existing versions would be lost. Declare track_history_column_list and"
                " track_history_except_column_list as before, in all flows of the table, or declare"
                " another table."
            )


def _check_sequence(schema: StructType, spec: CdcSpec, layout: Layout, says: str) -> None:
    flow_type = sequence_type(schema, spec)
    if spec.sequence_literal is None and not holds(layout.sequence, flow_type):
        raise DeclarationError(
            f"{says} is ordered by {layout.sequence.simpleString()}, and sequence_by gives"
            f" {flow_type.simpleString()}. Flows of one table are ordered by the same types: cast the column"
            " in the view."
        )


def _check_literal(spec: CdcSpec, layout: Layout, table: Table) -> None:
    if spec.sequence_literal is None:
        return
    least, most = whole_numbers(layout.sequence)
    if not least <= spec.sequence_literal <= most:
        raise DeclarationError(
            f"{table.location}: the table {table.name} is ordered by {layout.sequence.simpleString()}, and"
            f" sequence_by is the literal {spec.sequence_literal}. Allowed are {least} to {most}. Give one of"
            " those, or cast the other flows' columns in a view."
        )


def _lacking(
    table_type: DataType, flow_type: DataType, path: tuple[str, ...], says: str = "The table"
) -> Iterator[Addition]:
    """Yield what one type lacks of another, field by field.

    :raises DeclarationError: the two differ in more than that.
    """
    match table_type, flow_type:
        case StructType(), StructType():
            yield from _lacking_fields(table_type, flow_type, path, says)
        case ArrayType(), ArrayType():
            yield from _lacking(table_type.elementType, flow_type.elementType, (*path, "element"), says)
        case MapType(), MapType():
            yield from _lacking(table_type.keyType, flow_type.keyType, (*path, "key"), says)
            yield from _lacking(table_type.valueType, flow_type.valueType, (*path, "value"), says)
        case _ if not holds(table_type, flow_type):
            raise DeclarationError(
                f"{says} has {'.'.join(path)} of type {table_type.simpleString()}, and the flow gives"
                f" {flow_type.simpleString()}. Only new columns are taken over: cast it in the view, or give"
                " it another name."
            )


def _lacking_fields(
    table_type: StructType, flow_type: StructType, path: tuple[str, ...], says: str
) -> Iterator[Addition]:
    last = table_type.fieldNames()[-1]
    table_fields = {field.name.lower(): field for field in table_type.fields}
    for field in flow_type.fields:
        has = table_fields.get(field.name.lower())
        if has is not None:
            yield from _lacking(has.dataType, field.dataType, (*path, has.name), says)
        else:
            yield Addition((*path, field.name), field.dataType, None if path else last)
            last = field.name


def _add(spark: SparkSession, path: str, additions: Sequence[Addition]) -> None:
    if not additions:
        return
    columns = []
    for addition in additions:
        place = f" AFTER {quoted(addition.after)}" if addition.after else ""
        columns.append(f"{quoted(*addition.path)} {_sql(spark, addition.type)}{place}")
    spark.sql(f"ALTER TABLE delta.{quoted(spark_url(path))} ADD COLUMNS ({', '.join(columns)})")


def _sql(spark: SparkSession, dtype: DataType) -> str:
    return str(classes(spark)("org.apache.spark.sql.types.DataType").fromJson(dtype.json()).sql())


def _spelled(schema: StructType, spec: CdcSpec) -> str:
    return ",".join(field_of(schema, name, "keys").name for name in spec.keys)


def _tracked(spec: CdcSpec) -> dict[str, str]:
    """Return the property with the tracked columns as declared: a column added later does not change it."""
    if spec.scd_type == 1:
        return {}
    words = "all columns"
    for scope, names in (
        ("only", spec.track_history_column_list),
        ("all but", spec.track_history_except_column_list),
    ):
        if names is not None:
            words = f"{scope} {', '.join(sorted(name.lower() for name in names))}"
    return {TRACKED_PROPERTY: words}


def _ignores(spec: CdcSpec) -> str:
    return str(spec.ignore_null_updates).lower()
