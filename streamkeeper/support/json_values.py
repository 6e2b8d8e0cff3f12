"""JSON that another process wrote: parsed within bounds, and read back as the dataclasses that
``dataclasses.asdict`` made it of. Each value is checked where it is read, so that no one else need doubt it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from streamkeeper.support.times import MOMENT, in_seconds

T = TypeVar("T")
_Reader = Callable[[Any], Any]
MOST_NESTED = 100
"""Lists and objects inside of one another; Streamkeeper, Spark and Delta write a dozen."""
MOST_READ = 64 * 2**20
"""Bytes of a JSON file that is read whole; the largest that Streamkeeper writes have a few megabytes."""
_LIMITS = range(-(2**63), 2**63)
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def parse(content: bytes | str) -> Any:
    """Parse JSON of UTF-8.

    :raises ValueError: it is no JSON, or has what no file of Streamkeeper, Spark or Delta has: numbers beyond
        64 bits, infinite ones or NaN, half a pair of surrogates, or more than :data:`MOST_NESTED` lists and
        objects inside of one another.
    """
    text = content if isinstance(content, str) else content.decode()
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if text.count("[") + text.count("{") > MOST_NESTED:
        _check_nesting(value)
    if _ESCAPED.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or int(text) not in _LIMITS:
        raise ValueError(f"the number {text[:20]}… has more than 64 bits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(MOST_NESTED):
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [inner for items in inside for inner in items if isinstance(inner, (dict, list))]
        if not level:
            return
    raise ValueError(f"it has more than {MOST_NESTED} lists and objects inside of one another")


def read_as(kind: type[T], value: Mapping[str, Any]) -> T:
    """Return a dataclass from its JSON object, with the dataclasses, enums and tuples inside of it.

    :raises TypeError: the object lacks a field, has another one, or one of another shape or type.
    :raises ValueError: an enum has no such member, a number is not finite, or a time is none.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shown(value)} is not an object")
    readers = _readers(cast("Any", kind))
    return kind(**{name: _field(readers.get(name), name, item) for name, item in value.items()})


def _field(read: _Reader | None, name: str, value: Any) -> Any:
    if read is None:
        return value
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}") from error


@cache
def _readers(kind: Any) -> dict[str, _Reader]:
    """Return how the fields of a dataclass are read; those that are taken as they are have no entry."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return {name: read for name, read in readers.items() if read is not None}


def _reader(hint: Any) -> _Reader | None:
    """Return how a value of a type is read; None if it is taken as it is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _reader_of_union([item for item in arguments if item is not NoneType], NoneType in arguments)
    if origin is Annotated:
        return _moment if MOMENT in arguments else _reader(arguments[0])
    if origin is Literal:
        return _one_of(arguments)
    if origin is not None:
        return _reader_of_many(origin, arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: value if isinstance(value, hint) else read_as(hint, value)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else _SCALARS.get(hint)


def _reader_of_many(origin: Any, arguments: tuple[Any, ...]) -> _Reader | None:
    if origin is tuple and arguments[1:] != (...,):
        return _reader_of_places([_reader(item) for item in arguments])
    if origin in (tuple, list, Sequence):
        return _reader_of_items(_reader(arguments[0]), tuple if origin is tuple else list)
    return _reader_of_mapping(_reader(arguments[1])) if origin in (dict, Mapping) else None


def _reader_of_union(kinds: list[Any], none: bool) -> _Reader | None:
    readers = [_reader(kind) for kind in kinds]
    if None in readers:
        return None

    def read(value: Any) -> Any:
        if value is None and none:
            return None
        for one in readers[:-1]:
            try:
                return cast("_Reader", one)(value)
            except (TypeError, ValueError):
                continue
        return cast("_Reader", readers[-1])(value)

    return read


def _reader_of_items(one: _Reader | None, kind: type) -> _Reader:
    def read(value: Any) -> Any:
        _check(value, (list, tuple), "a list")
        return kind(value if one is None else map(one, value))

    return read


def _reader_of_places(readers: list[_Reader | None]) -> _Reader:
    def read(value: Any) -> Any:
        _check(value, (list, tuple), "a list")
        if len(value) != len(readers):
            raise TypeError(f"{_shown(value)} has not {len(readers)} items")
        return tuple(item if one is None else one(item) for one, item in zip(readers, value, strict=True))

    return read


def _reader_of_mapping(one: _Reader | None) -> _Reader:
    def read(value: Any) -> Any:
        _check(value, Mapping, "an object")
        return {key: item if one is None else one(item) for key, item in value.items()}

    return read


def _one_of(allowed: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"{_shown(value)} is not one of {', '.join(map(repr, allowed))}")
        return value

    return read


def _check(value: Any, kinds: Any, expected: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise TypeError(f"{_shown(value)} is not {expected}")


def _text(value: Any) -> Any:
    _check(value, str, "a text")
    return value


def _truth(value: Any) -> Any:
    _check(value, bool, "true or false")
    return value


def _integer(value: Any) -> Any:
    _check(value, int, "a whole number")
    return value


def _number(value: Any) -> Any:
    _check(value, (int, float), "a number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is no finite number")
    return value


def _moment(value: Any) -> Any:
    _check(value, str, "a time")
    if in_seconds(value) is None or datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(f"{_shown(value)} is no time in ISO 8601 with a time zone")
    return value


_SCALARS: Mapping[Any, _Reader] = {str: _text, bool: _truth, int: _integer, float: _number}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
