"""Checksum of a table's rows in any order: their number, and sum and exclusive or of a 64-bit hash of each.

Two rows hash alike only if they are equal, as far as 64 bits tell: nulls count, an absent value differs from
its neighbours, ``NaN`` equals ``NaN``, 0.0 equals -0.0, and a map is the set of its entries. Columns count in
their order, by value and not by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, VariantType

from streamkeeper.tables.backups import Checksum
from streamkeeper_jobs.spark.frames import column

_BINARY = "UTF8_BINARY"


def checksum(frame: DataFrame) -> Checksum:
    """Return the checksum of a frame, which is read once."""
    totals = frame.select(hash_of(frame.schema).alias("hash")).agg(
        F.count("*").alias("rows"),
        F.sum(F.col("hash").cast("decimal(20,0)")).alias("sum"),
        F.bit_xor("hash").alias("xor"),
    )
    row = totals.first()
    assert row is not None, "an aggregate without groups has one row"
    return Checksum(int(row["rows"]), str(row["sum"] if row["sum"] is not None else 0), int(row["xor"] or 0))


def hash_of(schema: StructType) -> Column:
    """Return the 64-bit hash of a row with these columns."""
    parts = [part for field in schema.fields for part in _parts(column(field.name), field.dataType)]
    return F.xxhash64(*(parts or [F.lit(0)]))


def _parts(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield what is hashed of a value. Spark's hash skips nulls, so a null flag is added."""
    yield value.isNull()
    yield _plain(value, kind)


def _plain(value: Column, kind: DataType) -> Column:
    """Return a value in a form that can be hashed and sorted, and that differs if the value does."""
    match kind:
        case StructType():
            inner = [
                part for field in kind.fields for part in _parts(value.getField(field.name), field.dataType)
            ]
            return F.struct(*_named(inner or [F.lit(0)]))
        case ArrayType():
            element = kind.elementType
            return F.struct(*_named([F.size(value), F.transform(value, lambda item: _whole(item, element))]))
        case MapType():
            entries = F.transform(F.map_entries(value), lambda entry: _entry(entry, kind))
            return F.struct(*_named([F.size(value), F.array_sort(entries)]))
        case VariantType():
            return F.to_json(value)
        case StringType() if str(getattr(kind, "collation", _BINARY)) != _BINARY:
            return F.collate(value, _BINARY)
        case _:
            return value


def _whole(value: Column, kind: DataType) -> Column:
    return F.struct(*_named(list(_parts(value, kind))))


def _entry(entry: Column, kind: MapType) -> Column:
    parts = [_plain(entry.getField("key"), kind.keyType), *_parts(entry.getField("value"), kind.valueType)]
    return F.struct(*_named(parts))


def _named(parts: list[Column]) -> list[Column]:
    return [part.alias(f"c{number}") for number, part in enumerate(parts)]
