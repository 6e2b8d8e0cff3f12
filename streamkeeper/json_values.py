"""Dataclasses read back from the JSON objects that ``dataclasses.asdict`` made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_as(kind: type[T], value: Mapping[str, Any]) -> T:
    """Return a dataclass from its JSON object, with the dataclasses, enums and tuples inside of it.

    :raises TypeError: the object lacks a field, has another one, or one of another shape.
    :raises ValueError: an enum has no such member.
    """
    hints = _hints(cast("Any", kind))
    return kind(**{name: _read(hints.get(name, Any), item) for name, item in dict(value).items()})


_hints = cache(get_type_hints)


def _read(hint: Any, value: Any) -> Any:
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (kind,) = [item for item in of if item is not NoneType][:1]
        return None if value is None else _read(kind, value)
    if origin is tuple and of[1:] == (...,):
        return tuple(_read(of[0], item) for item in value)
    if origin in (dict, Mapping) and value is not None:
        return {key: _read(of[1], item) for key, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else read_as(hint, value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, Enum) else value
