"""Expressions over columns of any type: comparable values, and values that survive a round trip to Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    IntegralType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32}
_SECONDS, _SECONDS_OF_INTERVAL = (2**63 - 1) // 1_000_000, 10**12 - 1
"""Greatest distance from 1970 of a timestamp in seconds, and of one computed with an interval."""
_YEAR_1, _YEAR_9999 = -719_162, 2_932_896
"""First and last day that Python's dates support, since 1970."""


def orderable(dtype: DataType) -> bool:
    """Return whether Spark can compare values of a type."""
    match dtype:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return orderable(dtype.elementType)
        case StructType():
            return all(orderable(field.dataType) for field in dtype.fields)
        case _:
            return True


def ordered(value: Column, dtype: DataType) -> Column:
    """Return a comparable replacement of a value: the same for equal values, null for null.

    For types that Spark cannot compare (maps, variants, and what contains them) it is their JSON; a map's
    entries are sorted first.
    """
    if orderable(dtype):
        return value
    match dtype:
        case MapType() if orderable(dtype.keyType):
            entries = F.transform(
                F.map_entries(value),
                lambda entry: F.struct(
                    entry["key"].alias("key"), ordered(entry["value"], dtype.valueType).alias("value")
                ),
            )
            return F.sort_array(entries)
        case StructType():
            fields = [
                ordered(value.getField(field.name), field.dataType).alias(field.name)
                for field in dtype.fields
            ]
            return F.when(value.isNotNull(), F.struct(*fields))
        case ArrayType():
            return F.transform(value, lambda item: ordered(item, dtype.elementType))
        case _:
            return F.when(value.isNotNull(), F.to_json(F.struct(value.alias("value"))))


def portable(value: Column, dtype: DataType) -> Column:
    """Return a value in a form that keeps every digit, without a time zone, on its way through Python.

    :func:`literal` converts it back.
    """
    match dtype:
        case StructType():
            return F.struct(
                *[
                    portable(value.getField(field.name), field.dataType).alias(field.name)
                    for field in dtype.fields
                ]
            )
        case TimestampType():
            return F.unix_micros(value)
        case TimestampNTZType():
            return value.cast("string")
        case _:
            return value


def literal(value: Any, dtype: DataType) -> Column:
    """Return a literal from the output of :func:`portable`."""
    match dtype:
        case StructType():
            fields = [literal(value[field.name], field.dataType).alias(field.name) for field in dtype.fields]
            return F.struct(*fields)
        case TimestampType():
            return F.timestamp_micros(F.lit(value))
        case _:
            return F.lit(value).cast(dtype)


def by_reference(value: Column, any_column: Column) -> Column:
    """Return a literal that is no part of the code that Spark generates, so that another one needs no
    compilation.

    :param any_column: one of the frame; Spark would compute a literal of literals alone beforehand.
    """
    return F.get(F.array(value), F.pmod(F.hash(any_column), F.lit(1)))


def to_text(value: Any, dtype: DataType) -> Any:
    """Return the output of :func:`portable` in a form that JSON keeps whole, for :func:`of_text`.

    Of decimals it is the number without its point.
    """
    if value is None:
        return None
    match dtype:
        case StructType():
            return {field.name: to_text(value[field.name], field.dataType) for field in dtype.fields}
        case DecimalType():
            sign, digits, exponent = value.as_tuple()
            number = int("".join(map(str, digits))) * 10 ** (dtype.scale + exponent)
            return -number if sign else number
        case DateType():
            return value.isoformat()
        case _:
            return value


def of_text(value: Any, dtype: DataType) -> Any:
    """Return the output of :func:`portable` from that of :func:`to_text`."""
    if value is None:
        return None
    match dtype:
        case StructType():
            return {field.name: of_text(value[field.name], field.dataType) for field in dtype.fields}
        case DecimalType():
            digits = tuple(map(int, str(abs(value))))
            return Decimal((int(value < 0), digits, -dtype.scale))
        case DateType():
            return date.fromisoformat(value)
        case _:
            return value


def bounded(dtype: DataType) -> bool:
    """Return whether values of a type are ordered as the outputs of :func:`to_text` are."""
    match dtype:
        case StringType():
            return dtype == StringType()  # another collation compares otherwise
        case IntegralType() | DecimalType() | DateType() | TimestampType():
            return True
        case _:
            return False


def whole_number(number: int, dtype: DataType) -> Column:
    """Return a declared whole number as a sequence of a type.

    It stands for seconds or days since 1970, for digits, or for the first of several columns.
    """
    match dtype:
        case StructType():
            first, *other_fields = dtype.fields
            values = [whole_number(number, first.dataType).alias(first.name)]
            return F.struct(
                *values, *[F.lit(None).cast(field.dataType).alias(field.name) for field in other_fields]
            )
        case TimestampType():
            return F.timestamp_seconds(F.lit(number))
        case TimestampNTZType():
            return F.expr(f"TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {number})")
        case DateType():
            return F.date_from_unix_date(F.lit(number).cast("int"))
        case _:
            return F.lit(number).cast(dtype)


def whole_numbers(dtype: DataType) -> tuple[int, int]:
    """Return the least and the greatest number that :func:`whole_number` can convert to a type."""
    match dtype:
        case StructType():
            return whole_numbers(dtype.fields[0].dataType)
        case DecimalType():
            return 1 - 10 ** (dtype.precision - dtype.scale), 10 ** (dtype.precision - dtype.scale) - 1
        case TimestampType():
            return -_SECONDS, _SECONDS
        case TimestampNTZType():
            return -_SECONDS_OF_INTERVAL, _SECONDS_OF_INTERVAL
        case DateType():
            return _YEAR_1, _YEAR_9999
        case _:
            bits = _BITS.get(type(dtype), 64)
            return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def conformed(value: Column, source_type: DataType, target_type: DataType) -> Column:
    """Return a value as a type with the same and further fields, matched by name; further ones are null.

    Null stays null.
    """
    match source_type, target_type:
        case StructType(), StructType():
            has = {field.name.lower(): field for field in source_type.fields}
            pairs = [(field, has.get(field.name.lower())) for field in target_type.fields]
            fields = [
                conformed(value.getField(own.name), own.dataType, field.dataType) if own else F.lit(None)
                for field, own in pairs
            ]
            return F.when(value.isNotNull(), struct_of(target_type.fields, fields))
        case ArrayType(), ArrayType() if source_type.elementType != target_type.elementType:
            return F.transform(
                value, lambda item: conformed(item, source_type.elementType, target_type.elementType)
            )
        case MapType(), MapType() if source_type.valueType != target_type.valueType:
            return F.transform_values(
                value, lambda _, item: conformed(item, source_type.valueType, target_type.valueType)
            )
        case _:
            return value.cast(target_type)


def struct_of(fields: Sequence[StructField], values: Sequence[Column]) -> Column:
    """Return a struct of some values under the names and types of some fields."""
    return F.struct(
        *[value.cast(field.dataType).alias(field.name) for field, value in zip(fields, values, strict=True)]
    )


def all_of(conditions: Sequence[Column]) -> Column:
    """Return the conjunction of conditions; true without any."""
    joined = F.lit(True)
    for number, condition in enumerate(conditions):
        joined = condition if number == 0 else joined & condition
    return joined
