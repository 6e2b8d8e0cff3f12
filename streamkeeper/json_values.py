"""Dataclasses read back from the JSON objects that ``dataclasses.asdict`` made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]


def read_as(kind: type[T], value: Mapping[str, Any]) -> T:
    """Return a dataclass from its JSON object, with the dataclasses, enums and tuples inside of it.

    :raises TypeError: the object lacks a field, has another one, or one of another shape.
    :raises ValueError: an enum has no such member.
    """
    readers = _readers(cast("Any", kind))
    given = dict(value).items()
    return kind(**{name: readers[name](item) if name in readers else item for name, item in given})


@cache
def _readers(kind: Any) -> dict[str, _Reader]:
    """Return how the fields of a dataclass are read; those that are taken as they are have no entry."""
    found = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    return {name: read for name, read in found.items() if read is not None}


def _reader(hint: Any) -> _Reader | None:
    """Return how a value of a type is read; None if it is taken as it is."""
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        read = _reader(next(item for item in of if item is not NoneType))
        return None if read is None else lambda value: None if value is None else read(value)
    if origin is tuple and of[1:] == (...,):
        one = _reader(of[0])
        return tuple if one is None else lambda value: tuple(map(one, value))
    if origin in (dict, Mapping):
        return _reader_of_mapping(_reader(of[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: value if isinstance(value, hint) else read_as(hint, value)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None


def _reader_of_mapping(one: _Reader | None) -> _Reader:
    def read(value: Any) -> Any:
        if value is None:
            return None
        return {key: item if one is None else one(item) for key, item in value.items()}

    return read
