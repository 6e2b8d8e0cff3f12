"""Declarations of a pipeline file while it is imported, and the checks of the whole file."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkeeper.declare.auto_cdc import check_feeds, check_tables, with_keys
from streamkeeper.declare.driver import CATALOG, HIVE, Driver, check_shareable
from streamkeeper.declare.fingerprint import hash_of, without_decorators
from streamkeeper.declare.model import (
    AnyFlow,
    AppendFlow,
    Expectation,
    GivenState,
    Location,
    Pipeline,
    Schedule,
    Source,
    Table,
    View,
    quarantine_of,
)
from streamkeeper.declare.source_options import (
    check_connections,
    check_no_echo,
    check_no_repeats,
    check_no_takers,
)
from streamkeeper.errors import DeclarationError

DECORATORS = ("append_flow", "complete_flow", "foreach_batch_sink", "temporary_view", "update_flow")
"""Decorators of functions that are part of a flow."""
EXPECTATIONS = (
    "expect",
    "expect_or_drop",
    "expect_or_fail",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
)
"""Decorators of a flow's function that leave what it does unchanged."""


class Registry:
    """Declarations of one pipeline file so far; ``configured`` has the options of the whole pipeline."""

    def __init__(self, name: str, file: str, data: str) -> None:
        self.name, self.file, self.data = name, file, data
        self.sources: dict[str, Source] = {}
        self.views: dict[str, View] = {}
        self.tables: dict[str, Table] = {}
        self.flows: dict[str, AnyFlow] = {}
        self.initial_states: dict[str, GivenState] = {}
        self.schedules: dict[str, Schedule] = {}
        self.configured = Pipeline(name, file, shared="")
        self.configured_at: Location | None = None
        self.driver: Driver | None = None
        self.expected_of_tables: dict[str, tuple[Expectation, ...]] = {}
        self.expected_of_functions: list[tuple[Callable[..., Any], Expectation]] = []

    def finish(self, shared: str) -> Pipeline:
        """Check the whole file, and return its pipeline.

        :raises DeclarationError: a name is not declared, views read one another in a circle, a flow has no
            target table, no flow is declared, flows of one table do not agree, a flow reads the table that it
            writes, flows cannot share a driver, or expectations stand where no flow is.
        """
        readers: list[View | AnyFlow] = [*self.views.values(), *self.flows.values()]
        for reader in readers:
            for name in reader.sources:
                if name not in self.sources and name not in self.views:
                    raise DeclarationError(
                        f"{reader.location}: {reader.name} reads {name!r}, which this file does not declare."
                        f" Declared are {listed([*self.sources, *self.views])}. Correct the name, or declare"
                        " it with create_source or temporary_view."
                    )
        for view in self.views.values():
            self._check_circle(view, ())
        for flow in self.flows.values():
            if flow.target not in self.tables:
                raise DeclarationError(
                    f"{flow.location}: the flow {flow.name} writes to {flow.target!r}, which this file does"
                    f" not declare. Declared are {listed(self.tables)}. Add"
                    f" dp.create_streaming_table({flow.target!r})."
                )
        if not self.flows:
            raise DeclarationError(
                f"{self.file}: no flow is declared. Add one with append_flow, or move the file out of the"
                " pipelines folder."
            )
        check_tables(tuple(self.flows.values()), self.tables)
        self.flows = {name: with_keys(flow, self.tables[flow.target]) for name, flow in self.flows.items()}
        self._add_expectations()
        if self.driver is not None:
            needed = self.driver.conf
            self.flows = {
                name: replace(flow, spark_conf={**needed, **flow.spark_conf})
                for name, flow in self.flows.items()
            }
        self._add_catalog()
        if self.configured.shared_driver:
            check_shareable(tuple(self.flows.values()))
        pipeline = replace(
            self.configured,
            shared=shared,
            sources=tuple(self.sources.values()),
            views=tuple(self.views.values()),
            tables=tuple(self.tables.values()),
            flows=tuple(self.flows.values()),
            schedules=tuple(self.schedules.values()),
        )
        check_feeds(pipeline)
        check_no_echo(pipeline)
        check_no_repeats(pipeline)
        check_no_takers(pipeline)
        check_connections(pipeline)
        return pipeline

    def _add_catalog(self) -> None:
        """Give flows whose tables or sources have names the session catalog that others see; with a shared
        driver all of them, as one application has one.
        """
        pipeline = replace(
            self.configured, sources=tuple(self.sources.values()), views=tuple(self.views.values())
        )
        named = {
            name
            for name, flow in self.flows.items()
            if any(
                self.tables[table].registered_as
                for table in (flow.target, quarantine_of(flow))
                if table is not None
            )
            or any(source.registered_as for source in pipeline.sources_of(flow))
        }
        if named and self.configured.shared_driver:
            named = set(self.flows)
        for name in named:
            flow = self.flows[name]
            self.flows[name] = replace(flow, spark_conf={CATALOG: HIVE, **flow.spark_conf})

    def _add_expectations(self) -> None:
        """Give each flow the expectations of its table and of its function, in the order of the file."""
        functions = {id(flow.function) for flow in self.flows.values() if isinstance(flow, AppendFlow)}
        for function, item in self.expected_of_functions:
            if id(function) not in functions:
                raise DeclarationError(
                    f"{item.location}: the expectation {item.name!r} stands above a function that is no"
                    " flow. Put it above the function of a flow (dp.append_flow), or give it to a table:"
                    " dp.create_streaming_table(…, expect_all={…})."
                )
        for name, flow in self.flows.items():
            own = [
                item
                for function, item in self.expected_of_functions
                if isinstance(flow, AppendFlow) and function is flow.function
            ]
            own.sort(key=lambda item: item.location.line)
            expectations = (*self.expected_of_tables.get(flow.target, ()), *own)
            if expectations:
                self.flows[name] = replace(flow, expectations=expectations)
                self._check_expectations(self.flows[name])

    def _check_expectations(self, flow: AnyFlow) -> None:
        first: dict[str, Expectation] = {}
        table = quarantine_of(flow)
        for item in flow.expectations:
            other = first.setdefault(item.name, item)
            if other is not item:
                raise DeclarationError(
                    f"{item.location}: the flow {flow.name} has two expectations {item.name!r}; the other is"
                    f" at {other.location}. Rename one of the two."
                )
            if item.quarantine not in (None, table):
                raise DeclarationError(
                    f"{item.location}: the flow {flow.name} has the quarantine tables {table} and"
                    f" {item.quarantine}. Rows that a flow drops go to one table: name the same."
                )
        if table is None:
            return
        location = next(item.location for item in flow.expectations if item.quarantine is not None)
        if table not in self.tables:
            raise DeclarationError(
                f"{location}: the quarantine table {table!r} is not declared in this file. Declared are"
                f" {listed(self.tables)}. Add dp.create_streaming_table({table!r})."
            )
        if self.tables[table].sink is not None:
            raise DeclarationError(
                f"{location}: the quarantine {table} is a sink ({self.tables[table].location}). Allowed is a"
                " table of dp.create_streaming_table."
            )
        writer = next((other for other in self.flows.values() if other.target == table), None)
        if writer is not None:
            raise DeclarationError(
                f"{location}: the quarantine table {table} is the target of the flow {writer.name}"
                f" ({writer.location}). It has columns of its own: name a table that no flow writes."
            )

    def _check_circle(self, view: View, path: tuple[str, ...]) -> None:
        if view.name in path:
            circle = " → ".join([*path[path.index(view.name) :], view.name])
            raise DeclarationError(
                f"{view.location}: views read one another in a circle: {circle}. Let one of them read a"
                " source."
            )
        for name in view.sources:
            if name in self.views:
                self._check_circle(self.views[name], (*path, view.name))


_current: ContextVar[Registry | None] = ContextVar("streamkeeper_registry", default=None)


@contextmanager
def collecting(registry: Registry) -> Iterator[Registry]:
    """Collect the declarations made in the ``with`` block; outside of one they are checked and dropped."""
    token = _current.set(registry)
    try:
        yield registry
    finally:
        _current.reset(token)


def current(location: Location) -> Registry:
    """Return the registry of the file being imported; outside of :func:`collecting` an empty one."""
    return _current.get() or Registry("unnamed", location.file, "/data")


def caller() -> Location:
    """Return the line of the pipeline file that called into this package."""
    frame = sys._getframe(2)
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__.partition(".")[0]
    ):
        frame = frame.f_back
    return Location(Path(frame.f_code.co_filename).name, frame.f_lineno)


def code_hash(function: Callable[..., Any], *, named: bool = True) -> str:
    """Return a hash of what a function does, from its syntax tree without positions, comments or docstring.

    A reformatted function keeps its hash.

    :param named: whether the function's name is part of the hash.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            without_decorators(node, (*DECORATORS, *EXPECTATIONS).__contains__)
            node.name = node.name if named else ""
    return hash_of(tree)


def listed(names: Any) -> str:
    """Return names as an error lists them."""
    return ", ".join(str(name) for name in names) or "none"
