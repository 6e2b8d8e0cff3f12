"""The columns of an AUTO CDC target, derived from those of the source, and their compatibility."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streamkeeper.declare.cdc_spec import BOOKKEEPING, END_AT, FEED_COLUMNS, RESERVED, START_AT, CdcSpec
from streamkeeper.errors import DeclarationError
from streamkeeper_jobs.spark.frames import once

_ORDERED = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)
_IDENTIFYING = (*_ORDERED, BooleanType)

SEQUENCE = "sequence"
"""In the bookkeeping: the sequence of a row's newest change."""
COLUMNS = "columns"
"""In the bookkeeping, with ``ignore_null_updates``: the sequence of each value, by the value's path."""


KEYS_PROPERTY = "streamkeeper.keys"
"""Table property with the columns by which the flows of a target find its rows."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of an existing target: keys, all declared columns with the keys, type of sequences.

    There is one object for equal layouts, so what is kept by it is found at once.

    ``by_value`` says that it keeps a sequence for each value (``ignore_null_updates``), ``history`` that it
    is SCD type 2. ``partitions`` are the names of its partition columns.
    """

    keys: tuple[StructField, ...]
    stored: StructType
    sequence: DataType
    by_value: bool
    history: bool
    partitions: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[StructField, ...]:
        """The declared columns besides the keys."""
        names = {field.name for field in self.keys}
        return tuple(field for field in self.stored.fields if field.name not in names)

    def loses_empty_text(self, column: StructField) -> bool:
        """Return whether Delta writes an empty text of a column as null: in a partition column.

        Source: delta-io/delta#2100.
        """
        return isinstance(column.dataType, StringType) and column.name in self.partitions


def check_spec(schema: StructType, spec: CdcSpec) -> None:
    """Check that a declaration fits its source's columns.

    :raises DeclarationError: a column is missing, has a type that cannot identify or order rows, or a
        reserved name; or a condition is no boolean over the source's columns.
    """
    reserved = [name for name in schema.fieldNames() if name.lower() in {taken.lower() for taken in RESERVED}]
    if reserved:
        raise DeclarationError(
            f"The source has the column {reserved[0]}, a name that AUTO CDC keeps for itself. Rename it in"
            " the view."
        )
    for option, names in _lists(spec):
        for name in names:
            field_of(schema, name, option)
    for name in spec.keys:
        _check_type(field_of(schema, name, "keys"), "keys", _IDENTIFYING)
    for name in spec.sequence_by:
        _check_type(field_of(schema, name, "sequence_by"), "sequence_by", _ORDERED)
    _check_stored(schema, spec)
    _check_condition(schema, "apply_as_deletes", spec.apply_as_deletes)
    _check_condition(schema, "apply_as_truncates", spec.apply_as_truncates)


def target_schema(schema: StructType, spec: CdcSpec, order: DataType | None = None) -> StructType:
    """Return the columns of the target: the stored ones, start and end with SCD type 2, and the bookkeeping.

    :param order: the type of the sequences, if the flow's own is a literal and other flows determine it.
    """
    sequence = sequence_type(schema, spec) if order is None else order
    bookkeeping = [StructField(SEQUENCE, sequence)]
    if spec.ignore_null_updates and spec.scd_type == 1:
        bookkeeping.append(StructField(COLUMNS, MapType(StringType(), sequence)))
    history = [StructField(START_AT, sequence), StructField(END_AT, sequence)] if spec.scd_type == 2 else []
    return StructType(
        [*stored_fields(schema, spec), *history, StructField(BOOKKEEPING, StructType(bookkeeping))]
    )


def stored_fields(schema: StructType, spec: CdcSpec) -> list[StructField]:
    """Return the source's columns that are stored, in the source's order; all are nullable in the target."""
    if spec.column_list is not None:
        listed_names = _names(spec.column_list)
        fields = [field for field in schema.fields if field.name.lower() in listed_names]
    else:
        left_out = _names((*(spec.except_column_list or ()), *(FEED_COLUMNS if spec.change_feed else ())))
        fields = [field for field in schema.fields if field.name.lower() not in left_out]
    return [StructField(field.name, field.dataType) for field in fields]


def sequence_type(schema: StructType, spec: CdcSpec) -> DataType:
    """Return the type of a flow's sequences: that of its column.

    A struct of several; BIGINT for a literal.
    """
    fields = [field_of(schema, name, "sequence_by") for name in spec.sequence_by]
    if not fields:
        return LongType()
    return (
        fields[0].dataType
        if len(fields) == 1
        else StructType([StructField(field.name, field.dataType) for field in fields])
    )


def layout_by(table: StructType, properties: Mapping[str, str]) -> Layout:
    """Return a target's layout from its schema and its properties."""
    return layout_of(table, properties[KEYS_PROPERTY].split(","))


def layout_of(table: StructType, keys: Sequence[str], partitions: Sequence[str] = ()) -> Layout:
    """Return a target's layout from its schema, without comments, defaults and constraints of its columns."""
    return _layout(table, tuple(keys), tuple(partitions))


@once
def _layout(table: StructType, keys: tuple[str, ...], partitions: tuple[str, ...]) -> Layout:
    bookkeeping = table[BOOKKEEPING].dataType
    assert isinstance(bookkeeping, StructType), "prepare() made it, or refused the table"
    stored = StructType(
        [StructField(field.name, field.dataType) for field in table.fields if field.name not in RESERVED]
    )
    return Layout(
        keys=tuple(field_of(stored, name, "keys") for name in keys),
        stored=stored,
        sequence=bookkeeping[SEQUENCE].dataType,
        by_value=COLUMNS in bookkeeping.fieldNames(),
        history=START_AT in table.fieldNames(),
        partitions=partitions,
    )


def field_of(schema: StructType, name: str, option: str) -> StructField:
    """Return a column by its name, ignoring case.

    :raises DeclarationError: there is none.
    """
    field = next((field for field in schema.fields if field.name.lower() == name.lower()), None)
    if field is None:
        raise DeclarationError(
            f"{option} names the column {name}, which is not there. The columns are"
            f" {', '.join(schema.fieldNames())}."
        )
    return field


def holds(wide: DataType, narrow: DataType) -> bool:
    """Return whether each value of type `narrow` is a value of type `wide`, in the same order."""
    if isinstance(wide, StructType) and isinstance(narrow, StructType):
        pairs = zip(wide.fields, narrow.fields, strict=False)
        return len(wide.fields) == len(narrow.fields) and all(
            holds(one.dataType, other.dataType) for one, other in pairs
        )
    digits = _digits(narrow)
    if isinstance(wide, DecimalType) and digits is not None:
        scale = narrow.scale if isinstance(narrow, DecimalType) else 0
        return wide.scale >= scale and wide.precision - wide.scale >= digits
    integers = (ByteType, ShortType, IntegerType, LongType)
    if isinstance(wide, integers) and isinstance(narrow, integers):
        return integers.index(type(wide)) >= integers.index(type(narrow))
    return type(wide) is type(narrow)


def _digits(dtype: DataType) -> int | None:
    """Return the digits before the point that a type may need; None for types without exact numbers."""
    if isinstance(dtype, DecimalType):
        return dtype.precision - dtype.scale
    digits: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
    return digits.get(type(dtype))


def _lists(spec: CdcSpec) -> Iterable[tuple[str, tuple[str, ...]]]:
    for option in (
        "column_list",
        "except_column_list",
        "track_history_column_list",
        "track_history_except_column_list",
    ):
        yield option, getattr(spec, option) or ()


def _check_type(field: StructField, option: str, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(field.dataType, allowed):
        raise DeclarationError(
            f"{option} names the column {field.name} of type {field.dataType.simpleString()}. Allowed are"
            f" numbers, text, dates and timestamps{' and booleans' if BooleanType in allowed else ''}. Derive"
            " such a column in the view."
        )


def _check_stored(schema: StructType, spec: CdcSpec) -> None:
    stored = stored_fields(schema, spec)
    names = _names(field.name for field in stored)
    for option, needed in (
        ("keys", spec.keys),
        ("track_history_column_list", spec.track_history_column_list or ()),
        ("track_history_except_column_list", spec.track_history_except_column_list or ()),
    ):
        missing = [name for name in needed if name.lower() not in names]
        if missing:
            raise DeclarationError(
                f"{option} names {missing[0]}, which column_list or except_column_list leaves out. It must be"
                " stored."
            )
    empty = [field.name for field in stored if isinstance(field.dataType, NullType)]
    if empty:
        raise DeclarationError(
            f"The column {empty[0]} has no type (it is always null). Cast it in the view, or leave it out."
        )


def _check_condition(schema: StructType, option: str, condition: str | None) -> None:
    if condition is None:
        return
    try:
        dtype = (
            SparkSession.active()
            .createDataFrame([], schema)
            .select(expr(condition))
            .schema.fields[0]
            .dataType
        )
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0]
        raise DeclarationError(
            f"{option} is {condition!r}, which is no condition over the source's columns: {reason}"
        ) from error
    if not isinstance(dtype, BooleanType):
        raise DeclarationError(
            f"{option} is {condition!r}, which gives {dtype.simpleString()}. Give a condition: true or false."
        )


def _names(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
