"""Errors for parts of Lakeflow's and Spark's language that are not offered; each names the alternative."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from streamkeeper.declare.model import Location
from streamkeeper.declare.registry import caller, listed
from streamkeeper.errors import DeclarationError

P = ParamSpec("P")
R = TypeVar("R")

_SINKS = (
    "where rows go is declared by itself. Allowed as the target of a flow are a table"
    " (dp.create_streaming_table), Kafka or files (dp.create_sink), and a function that gets each batch"
    " (dp.foreach_batch_sink)"
)
_MODES = (
    "the kind of the flow is its output mode. Allowed are dp.append_flow, dp.update_flow (rows replace those"
    " of the same key) and dp.complete_flow (each batch replaces the table)"
)
_QUERY = (
    "Streamkeeper starts the query itself, with the output mode of the flow's kind. What is done with each"
    " batch is declared by dp.foreach_batch_sink. Return the DataFrame"
)
_TABLES = (
    "tables are not made by functions. Declare the table with dp.create_streaming_table, and what is written"
    " to it with dp.append_flow"
)
_READ = (
    "a function gets its rows as arguments. Declare a source with dp.create_source, and name it in"
    " sources=[…]"
)
_CDC = "declare it with dp.create_auto_cdc_flow"
_SNAPSHOTS = (
    "snapshots are not compared yet. Allowed are changes, row by row: dp.create_auto_cdc_flow, also for a"
    " first snapshot (once=True, sequence_by=0)"
)

NAMES: dict[str, str] = {
    "materialized_view": _TABLES,
    "table": _TABLES,
    "create_table": _TABLES,
    "view": "a view is declared with dp.temporary_view, and names its sources",
    "read": _READ,
    "read_stream": _READ,
    "apply_changes": _CDC,
    "create_auto_cdc_from_snapshot_flow": _SNAPSHOTS,
    "apply_changes_from_snapshot": _SNAPSHOTS,
}
"""Names that a pipeline file may try, each with its alternative."""

_PARAMETERS = {
    **dict.fromkeys(("output_mode", "outputMode", "mode"), _MODES),
    **dict.fromkeys(("sink", "format", "foreach_batch"), _SINKS),
}
_ATTRIBUTES = ("writeStream", "outputMode", "foreachBatch")


def refuse(name: str, offered: Iterable[str]) -> Any:
    """Raise the error for a name that the language lacks.

    :raises DeclarationError: Lakeflow or Spark has it; the message names the alternative.
    :raises AttributeError: the name is unknown there, too.
    """
    if name in NAMES:
        raise DeclarationError(f"{caller()}: dp.{name} is not there: {NAMES[name]}.")
    raise AttributeError(f"dp.{name} is not there. Allowed are {listed(offered)}.")


def known_parameters(declare: Callable[P, R]) -> Callable[P, R]:
    """Decorate a declaration: unknown parameters raise a :class:`DeclarationError` with those allowed."""
    # Python's own error does not list the parameters allowed.
    allowed = inspect.signature(declare).parameters

    @functools.wraps(declare)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for parameter in kwargs:
            if parameter not in allowed:
                advice = _PARAMETERS.get(parameter, "correct the name, or leave it out")
                raise DeclarationError(
                    f"{caller()}: {declare.__name__} takes no {parameter}: {advice}. It takes"
                    f" {listed(allowed)}."
                )
        return declare(*args, **kwargs)

    return checked


def with_parameters_of(other: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorate a declaration that takes the same parameters as another: it gets them all, by name."""
    signature = inspect.signature(other)

    def decorate(declare: Callable[..., R]) -> Callable[P, R]:
        @functools.wraps(declare)
        def complete(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return declare(**bound.arguments)

        vars(complete)["__signature__"] = signature
        return complete

    return decorate


def check_function(subject: str, function: Callable[..., Any], location: Location) -> None:
    """Check that a function does not write its rows itself.

    :raises DeclarationError: it does; the message has the line.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES]
    if uses:
        first = min(uses, key=lambda node: (node.lineno, node.end_col_offset or 0))
        line = function.__code__.co_firstlineno + first.lineno - 1
        raise DeclarationError(
            f"{Location(location.file, line)}: the function of {subject} uses {first.attr}: {_QUERY}."
        )
