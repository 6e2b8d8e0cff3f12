"""The single values of a row, for ``ignore_null_updates``.

A struct is no value; its fields are, and so is the fact that it is not null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from streamkeeper_jobs.cdc.expressions import orderable, ordered
from streamkeeper_jobs.spark.frames import column, quoted

Path = tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A value of a row by its path. ``is_presence`` means the presence of a struct: true or null."""

    number: int
    path: Path
    type: DataType
    is_presence: bool

    @property
    def name(self) -> str:
        """The path as text: the value's name in the bookkeeping."""
        return quoted(*self.path)

    def in_row(self, *row: str) -> Column:
        """Return the value from a row; null if there is none."""
        content = column(*row, *self.path)
        return F.when(content.isNotNull(), F.lit(True)) if self.is_presence else content


def values_of(fields: Sequence[StructField]) -> list[Value]:
    """Return every value of a row with some fields."""
    paths = _paths(fields, ())
    return [
        Value(number, path, dtype or BooleanType(), dtype is None)
        for number, (path, dtype) in enumerate(paths)
    ]


def together(fields: Sequence[StructField], values: Mapping[Path, Column], above: Path = ()) -> list[Column]:
    """Return the fields of a row, combined from its values, each under its name."""
    return [_one(field, (*above, field.name), values).alias(field.name) for field in fields]


def largest(value: Column, dtype: DataType) -> Column:
    """Return the aggregate of the largest value, ignoring nulls."""
    return F.max(value) if orderable(dtype) else F.max_by(value, ordered(value, dtype))


def merged(fields: Sequence[StructField], reader: Callable[[Value], Column]) -> Column:
    """Return the aggregate of one row made of the largest of each value.

    ``reader`` returns a value, or null if it does not count.
    """
    values = values_of(fields)
    return F.struct(*together(fields, {value.path: largest(reader(value), value.type) for value in values}))


def _one(field: StructField, path: Path, values: Mapping[Path, Column]) -> Column:
    if not isinstance(field.dataType, StructType):
        return values[path]
    return F.when(values[path].isNotNull(), F.struct(*together(field.dataType.fields, values, path)))


def _paths(fields: Sequence[StructField], above: Path) -> Iterator[tuple[Path, DataType | None]]:
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.dataType, StructType):
            yield path, None
            yield from _paths(field.dataType.fields, path)
        else:
            yield path, field.dataType
