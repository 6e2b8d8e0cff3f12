"""The functions of a pipeline file, by their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from streamkeeper.declare import language
from tools.docs.made import from_docstring, table

_FIELD = re.compile(r"^:param (\w+): ", re.MULTILINE)


def functions() -> str:
    """Return a section for each name that a pipeline file may use."""
    return "\n".join(_section(name, getattr(language, name)) for name in language.__all__)


def _section(name: str, function: Callable[..., Any]) -> str:
    text, *parts = _FIELD.split(inspect.getdoc(function) or "")
    descriptions = dict(zip(parts[::2], parts[1::2], strict=True))
    parameters = inspect.signature(function).parameters.values()
    rows = [
        (f"`{one.name}`", _default(one), from_docstring(descriptions.get(one.name, ""))) for one in parameters
    ]
    described = [row for row in rows if row[2]]
    lines = [f"## dp.{name}", "", "```text", *_signature(name, tuple(parameters)), "```", ""]
    lines += [from_docstring(text).strip(), ""]
    if described:
        lines += [table(("parameter", "default", "what it is"), described)]
    return "\n".join(lines)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return ""
    return "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"


def _signature(name: str, parameters: tuple[inspect.Parameter, ...]) -> list[str]:
    """Return a call with all parameters, without types."""
    texts = [str(one.replace(annotation=one.empty)) for one in parameters]
    first = next((at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), len(texts))
    texts[first:first] = ["*"] if first < len(texts) else []
    whole = f"dp.{name}({', '.join(texts)})"
    return [whole] if len(whole) <= 100 else [f"dp.{name}(", *(f"    {one}," for one in texts), ")"]
