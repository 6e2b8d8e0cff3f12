"""Hash of what code does: its syntax tree without positions, comments, docstrings or layout.

The hash is the same in every version of Python. ``ast.dump`` is not: new versions add fields to nodes, and
supervisors and drivers may run different versions.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from typing import Any


def hash_of(*nodes: ast.AST) -> str:
    """Return 16 hex digits that change when the code does."""
    return hashlib.sha256("\0".join(_text_of(node) for node in nodes).encode()).hexdigest()[:16]


def _text_of(value: Any) -> str:
    if isinstance(value, ast.Constant):
        return f"{type(value.value).__name__} {value.value!r}"
    if isinstance(value, ast.AST):
        fields_text = ",".join(f"{name}={_text_of(item)}" for name, item in _fields(value))
        return f"{type(value).__name__}({fields_text})"
    if isinstance(value, list):
        return "[" + ",".join(_text_of(item) for item in value) + "]"
    return repr(value)


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields with a value. Empty ones may be missing in another version of Python."""
    for name, item in ast.iter_fields(node):
        if item is None or item == [] or name in ("type_comment", "ctx"):
            continue
        yield name, _without_docstring(item) if name == "body" and _may_have_docstring(node) else item


def _may_have_docstring(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def called(node: ast.AST) -> str:
    """Return the last part of a call's name: ``append_flow`` for ``dp.append_flow(…)``; empty if none."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def without_decorators(
    function: ast.FunctionDef | ast.AsyncFunctionDef, which: Callable[[str], bool]
) -> None:
    """Remove the decorators whose name ``which`` accepts; others change what a function does, and stay."""
    function.decorator_list = [item for item in function.decorator_list if not which(called(item))]
