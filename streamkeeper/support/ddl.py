"""Columns of a schema in Spark's DDL (``fruit STRING, pieces BIGINT``), and values that fit them, without
Spark.

Types of one value are known here. What lies inside arrays, maps and structs, only Spark can check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s*:?\s+(.+?)\s*", re.DOTALL)
_NOT_NULL = re.compile(r"\s+NOT\s+NULL\b", re.IGNORECASE)
_COMMENT = re.compile(r"\s+COMMENT\s+('[^']*'|\"[^\"]*\")", re.IGNORECASE)
_TYPE = re.compile(r"([A-Z_]+)\b\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?.*", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """Column of a schema: its type as it stands in the DDL, in capitals and without ``NOT NULL``."""

    name: str
    type: str
    nullable: bool = True

    def misfit(self, value: Any) -> str | None:
        """Return what a value should be to fit the column, in words; None if it fits, or only Spark knows.

        :param value: as :func:`as_json` returns it.
        """
        if value is None:
            return None if self.nullable else "a value: it is NOT NULL"
        match = _TYPE.fullmatch(self.type)
        assert match is not None, "columns_of checked it"
        description, fits = _VALUES[match[1]]
        sizes = [int(size) for size in match.groups()[1:] if size is not None]
        return None if fits(value, *sizes) else description


def columns_of(ddl: str) -> tuple[Column, ...]:
    """Return the columns of a schema.

    :raises ValueError: a column has no name or no type, a type is unknown, or a name is there twice.
    """
    columns = tuple(_column(part) for part in _parts(_COMMENT.sub("", ddl)))
    names = [column.name.lower() for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the column {twice} is there twice")
    return columns


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: times and decimals as texts.

    :raises TypeError: it is none of a schema's values.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    raise TypeError(f"{value!r} is of the type {type(value).__name__}")


def _parts(ddl: str) -> Iterator[str]:
    """Yield what stands between the commas that are in no brackets."""
    depth = begin = 0
    for at, letter in enumerate(ddl):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield ddl[begin:at]
            begin = at + 1
    yield ddl[begin:]


def _column(text: str) -> Column:
    match = _COLUMN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is no column with a name and a type")
    plain = _NOT_NULL.sub("", match[3]).strip().upper()
    type_match = _TYPE.fullmatch(plain)
    if type_match is None or type_match[1] not in _VALUES:
        raise ValueError(f"{plain} is no type of Spark")
    return Column(match[1] or match[2], plain, nullable=_NOT_NULL.search(match[3]) is None)


def _is_whole(bits: int) -> Callable[..., bool]:
    most = 1 << (bits - 1)
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and -most <= value < most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_decimal(value: Any, digits: int = 10, scale: int = 0) -> bool:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return False
    _, all_digits, exponent = number.normalize().as_tuple()
    if isinstance(value, bool) or not isinstance(exponent, int):
        return False
    return -exponent <= scale and len(all_digits) + exponent <= digits - scale


def _is_parsed(parse: Callable[[str], Any]) -> Callable[..., bool]:
    def fits(value: Any, *_: int) -> bool:
        try:
            parse(value)
        except (TypeError, ValueError):
            return False
        return True

    return fits


def _is_text(value: Any, *_: int) -> bool:
    return isinstance(value, str)


def _only_spark_knows(*_: Any) -> bool:
    return True


_Values = tuple[str, Callable[..., bool]]


def _all(names: str, description: str, fits: Callable[..., bool]) -> dict[str, _Values]:
    return dict.fromkeys(names.split(), (description, fits))


_VALUES: Mapping[str, _Values] = {
    **_all("TINYINT BYTE", "a whole number of 8 bits", _is_whole(8)),
    **_all("SMALLINT SHORT", "a whole number of 16 bits", _is_whole(16)),
    **_all("INT INTEGER", "a whole number of 32 bits", _is_whole(32)),
    **_all("BIGINT LONG", "a whole number of 64 bits", _is_whole(64)),
    **_all("DOUBLE FLOAT REAL", "a number", _is_number),
    **_all("DECIMAL DEC NUMERIC", "a number with no more digits than the type has", _is_decimal),
    **_all("STRING VARCHAR CHAR CHARACTER", "a text", _is_text),
    **_all("BOOLEAN", "True or False", lambda value: isinstance(value, bool)),
    **_all("DATE", "a date, such as '2026-01-31'", _is_parsed(date.fromisoformat)),
    **_all(
        "TIMESTAMP TIMESTAMP_NTZ TIMESTAMP_LTZ",
        "a time, such as '2026-01-31T10:00:00Z'",
        _is_parsed(datetime.fromisoformat),
    ),
    **_all("BINARY ARRAY MAP STRUCT VARIANT INTERVAL", "a value", _only_spark_knows),
}
"""Types of Spark: what their values are, in words, and whether a value is one, given the type's sizes."""
