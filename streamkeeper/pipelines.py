"""The language of pipeline files: ``from streamkeeper import pipelines as dp``.

Names and parameters are those of Lakeflow and ``pyspark.pipelines``. Named sources are Streamkeeper's own: a view gets one
DataFrame per source, so that it can be tested by itself, and so that positions can be kept and reset by the source's name.

Nothing here reads, writes or starts anything. Decorated functions come back unchanged.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from streamkeeper.auto_cdc import check_tables, read_spec
from streamkeeper.declarations import (
    DEFAULT_NO_PROGRESS,
    DELTA,
    FILE_FORMATS,
    KAFKA,
    OUR_FOLDERS,
    PARK,
    RETRY,
    SOURCE_FORMATS,
    AnyFlow,
    AppendFlow,
    AutoCdcFlow,
    Notifier,
    Pipeline,
    Schedule,
    Source,
    Table,
    View,
    Where,
    check_name,
)
from streamkeeper.errors import DeclarationError, NotOffered
from streamkeeper.rewind_window import with_window
from streamkeeper.scheduling import declared
from streamkeeper.settings import TOMBSTONES
from streamkeeper.sharing import check_shareable
from streamkeeper.source_checks import check_delta, check_kafka, check_start
from streamkeeper.syntax import hash_of, without_decorators

__all__ = [
    "append_flow",
    "configure_pipeline",
    "create_auto_cdc_flow",
    "create_source",
    "create_streaming_table",
    "notifier",
    "only_where_set",
    "schedule",
    "temporary_view",
]

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_TRIGGER = "10 seconds"
_TRIGGER = re.compile(r"[1-9][0-9]* (millisecond|second|minute|hour)s?")
_DURATION = re.compile(r"([1-9][0-9]*) (second|minute|hour|day)s?")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_CLASSPATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DECORATORS = ("append_flow", "temporary_view")
_OURS = ("path", "checkpointlocation", "schema", "startingoffsets", "startingversion", "startingtimestamp")


@dataclass(frozen=True)
class Options:
    """What :func:`configure_pipeline` says of a pipeline as a whole."""

    shared_driver: bool = False
    notifiers: tuple[Notifier, ...] = ()
    no_progress_after: float | None = DEFAULT_NO_PROGRESS
    where: Where | None = None


class Registry:
    """What one pipeline file has declared so far."""

    def __init__(self, name: str, file: str, data: str) -> None:
        self.name, self.file, self.data = name, file, data
        self.sources: dict[str, Source] = {}
        self.views: dict[str, View] = {}
        self.tables: dict[str, Table] = {}
        self.flows: dict[str, AnyFlow] = {}
        self.schedules: dict[str, Schedule] = {}
        self.options: Options | None = None

    def finish(self, shared: str) -> Pipeline:
        """Check what only the whole file can tell, and give the pipeline.

        :raises DeclarationError: a name is not declared, views read one another in a circle, a flow has no target table, no flow is
            declared, flows that write one table do not agree, or flows that are to share a driver cannot.
        """
        readers: list[View | AnyFlow] = [*self.views.values(), *self.flows.values()]
        for reader in readers:
            for name in reader.sources:
                if name not in self.sources and name not in self.views:
                    raise DeclarationError(
                        f"{reader.where}: {reader.name} reads {name!r}, which this file does not declare. Declared are "
                        f"{_listed([*self.sources, *self.views])}. Correct the name, or declare it with create_source or temporary_view."
                    )
        for view in self.views.values():
            self._check_circle(view, ())
        for flow in self.flows.values():
            if flow.target not in self.tables:
                raise DeclarationError(
                    f"{flow.where}: the flow {flow.name} writes to {flow.target!r}, which this file does not declare. Declared are "
                    f"{_listed(self.tables)}. Add dp.create_streaming_table({flow.target!r})."
                )
        if not self.flows:
            raise DeclarationError(
                f"{self.file}: no flow is declared. Add one with append_flow, or move the file out of the pipelines folder."
            )
        check_tables(tuple(self.flows.values()))
        options = self.options or Options()
        if options.shared_driver:
            check_shareable(tuple(self.flows.values()))
        return Pipeline(
            name=self.name,
            file=self.file,
            shared=shared,
            sources=tuple(self.sources.values()),
            views=tuple(self.views.values()),
            tables=tuple(self.tables.values()),
            flows=tuple(self.flows.values()),
            shared_driver=options.shared_driver,
            notifiers=options.notifiers,
            no_progress_after=options.no_progress_after,
            schedules=tuple(self.schedules.values()),
        )

    def _check_circle(self, view: View, path: tuple[str, ...]) -> None:
        if view.name in path:
            circle = " → ".join([*path[path.index(view.name) :], view.name])
            raise DeclarationError(f"{view.where}: views read one another in a circle: {circle}. Let one of them read a source.")
        for name in view.sources:
            if name in self.views:
                self._check_circle(self.views[name], (*path, view.name))


_current: ContextVar[Registry | None] = ContextVar("streamkeeper_registry", default=None)


@contextmanager
def collecting(registry: Registry) -> Iterator[Registry]:
    """Let the declarations made inside go to ``registry``; outside of this they are checked and forgotten."""
    token = _current.set(registry)
    try:
        yield registry
    finally:
        _current.reset(token)


def only_where_set(variable: str) -> None:
    """Offer this pipeline only where an environment variable is set; elsewhere it has no flows, and ``streamkeeper check`` says why.

    It is for what one installation has and another lacks, such as a broker. Call it first: what follows is not run where it is not set.

    :raises NotOffered: the variable is not set here.
    """
    where = _caller()
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        raise DeclarationError(f"{where}: {variable!r} names no environment variable. Give letters, digits and underscores.")
    if not os.environ.get(variable):
        raise NotOffered(f"{where}: the pipeline is offered only where {variable} is set, and it is not set here.")


def create_source(
    name: str,
    *,
    format: str,
    path: str | None = None,
    table: str | None = None,
    schema: str | None = None,
    options: Mapping[str, object] | None = None,
    start: str | Mapping[str, Mapping[str, int]] = "earliest",
    track_schema: bool = False,
) -> None:
    """Declare a source of rows.

    :param name: letters, digits, underscores; a position is kept under this name, so a renamed source is another source.
    :param format: ``json``, ``csv``, ``parquet``, ``orc``, ``text`` (files in a folder), ``kafka``, ``delta`` or ``rate``.
    :param path: the folder of a files source or a Delta table; ``{data}`` stands for ``STREAMKEEPER_DATA``. Must be absolute, or a URL.
    :param table: instead of a path, for ``delta``: a table of the warehouse, such as one that another flow writes.
    :param schema: a DDL string (``"id INT, name STRING"``). A files source may leave it out: it is then inferred once from what
        is there and stored with the generation. Kafka and Delta bring their own.
    :param options: options of Spark's reader, such as ``{"maxFilesPerTrigger": 10}`` or ``{"subscribe": "orders"}``. ``{env:NAME}`` in a
        value stands for an environment variable of the process that reads, so that neither addresses nor secrets stand in the file.
    :param start: where the first generation that reads a Kafka or Delta source starts: ``"earliest"`` (all that is there), ``"latest"``,
        ``"timestamp:2026-11-21T10:00:00Z"``, for Kafka offsets (``{"orders": {"0": 5}}``; -2 is earliest, -1 latest), for Delta
        ``"version:12"``. Later generations start where their recovery says.
    :param track_schema: for ``delta``: follow changes of the table's schema by a log in the generation's checkpoint.
    :raises DeclarationError: with file, line, what was found and what is allowed.
    """
    where = _caller()
    registry = _registry(where)
    check_name("source", name, where)
    _check_new(registry, name, where)
    if format not in SOURCE_FORMATS:
        raise DeclarationError(f"{where}: source {name} has format {format!r}. Allowed are {_listed(SOURCE_FORMATS)}.")
    _check_place(format, name, path, table, where)
    if schema is not None and format not in FILE_FORMATS:
        raise DeclarationError(f"{where}: source {name} has format {format!r}, which brings its own schema. Leave schema out.")
    if not isinstance(track_schema, bool) or (track_schema and format != DELTA):
        raise DeclarationError(f"{where}: source {name} has track_schema {track_schema!r}. Only Delta sources take it: True or False.")
    _check_text(f"schema of source {name}", schema, where)
    plain = _options(f"source {name}", options, where)
    if format == KAFKA:
        check_kafka(name, plain, where)
    if format == DELTA:
        check_delta(name, plain, where)
    registry.sources[name] = Source(
        name=name,
        format=format,
        path=None if path is None else _filled(path, name, registry, where),
        schema=schema,
        options=plain,
        where=where,
        table=table,
        start=check_start(name, format, start, where),
        track_schema=track_schema,
    )


def _check_place(format: str, name: str, path: object, table: object, where: Where) -> None:
    """Make sure that a source says where its rows are, once, in the way that its format takes."""
    if format in FILE_FORMATS and not path:
        raise DeclarationError(f"{where}: source {name} reads {format} files but has no path. Give the folder that the files appear in.")
    if format == DELTA and bool(path) == bool(table):
        raise DeclarationError(
            f"{where}: the Delta source {name} has {'both a path and a table' if path else 'neither a path nor a table'}. Give the table's "
            "path, or the name of a table of the warehouse."
        )
    if format not in FILE_FORMATS and format != DELTA and path is not None:
        raise DeclarationError(f"{where}: source {name} has format {format!r}, which takes no path. Leave it out.")
    if table is None:
        return
    if format != DELTA:
        raise DeclarationError(f"{where}: source {name} has format {format!r}, which takes no table. Only Delta sources do.")
    parts = table.split(".") if isinstance(table, str) else [table]
    for part in parts:
        check_name("table", part, where)
    if len(parts) > 2:
        raise DeclarationError(f"{where}: the table name {table!r} has more than one dot. Allowed are `table` and `schema.table`.")


def temporary_view(*, sources: Sequence[str], name: str | None = None) -> Callable[[Function], Function]:
    """Declare a view: a function that gets one DataFrame per source, in this order, and gives one.

    :param sources: names of sources or of other views.
    :param name: the function's name by default.
    """
    where = _caller()

    def declare(function: Function) -> Function:
        registry = _registry(where)
        view = check_name("view", name or function.__name__, where)
        _check_new(registry, view, where)
        registry.views[view] = View(view, _inputs(f"view {view}", function, sources, where), code_hash(function), where, function)
        return function

    return declare


def create_streaming_table(
    name: str,
    *,
    comment: str | None = None,
    table_properties: Mapping[str, object] | None = None,
    partition_cols: Sequence[str] = (),
) -> None:
    """Declare the Delta table that flows write to; ``schema.table`` puts it in a folder of the schema's name.

    :param table_properties: Delta table properties, set when the table is made.
    :param partition_cols: columns that the table is partitioned by when it is made.
    """
    where = _caller()
    registry = _registry(where)
    _check_table_name(registry, name, where)
    _check_text(f"comment of table {name}", comment, where)
    if isinstance(partition_cols, str) or not all(isinstance(column, str) for column in partition_cols):
        raise DeclarationError(
            f"{where}: the partition_cols of table {name} are {partition_cols!r}. Give a list of names, such as ['day']."
        )
    properties = _options(f"table {name}", table_properties, where, reserved=())
    forgetful = [key for key in properties if key.lower() == "delta.settransactionretentionduration"]
    if forgetful:
        raise DeclarationError(
            f"{where}: the table {name} sets {forgetful[0]}, by which Delta forgets which batches it has. A flow that rested "
            "longer would write its last batch twice. Leave it out."
        )
    registry.tables[name] = Table(name, comment, properties, tuple(partition_cols), where)


def append_flow(
    *,
    target: str,
    sources: Sequence[str],
    name: str | None = None,
    trigger: str | None = None,
    spark_conf: Mapping[str, object] | None = None,
    on_failure: str = PARK,
    once: bool = False,
    rewind_window: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a flow that appends what its function gives to ``target``, every row once.

    :param target: a table made by :func:`create_streaming_table` in the same file.
    :param sources: names of sources or views; the function gets one DataFrame for each.
    :param name: the function's name by default. State is kept under it, so a renamed flow is another flow.
    :param trigger: how often new data is looked for, ``"10 seconds"`` by default. Intervals under tens of seconds cost polls.
    :param spark_conf: Spark settings for this flow's application.
    :param on_failure: ``park``: a failure that a restart cannot mend stops the flow until a person does, or its declaration changes.
        ``retry``: the flow is alarmed about all the same, and then tried again for ever.
    :param once: read what the sources have, then be done, until a reset gives the flow a new checkpoint. It takes no ``trigger``.
    :param rewind_window: how far back the flow is to be rewound, such as ``"7 days"``: its checkpoint keeps as many batches as it can
        commit in that time at its trigger, 100 at least and 10,000 at most.
    """
    where = _caller()

    def declare(function: Function) -> Function:
        registry = _registry(where)
        flow = _new_flow(registry, name or function.__name__, where)
        often = _how_often(flow, trigger, once, where)
        _check_on_failure(flow, on_failure, where)
        inputs = _inputs(f"flow {flow}", function, sources, where)
        window = _duration(f"rewind_window of flow {flow}", rewind_window, where)
        conf = with_window(_options(f"flow {flow}", spark_conf, where, reserved=()), flow, window, often, once=once, where=where)
        registry.flows[flow] = AppendFlow(
            flow, str(target), inputs, code_hash(function), often, conf, where, on_failure, once, function=function
        )
        return function

    return declare


def create_auto_cdc_flow(
    *,
    name: str,
    target: str,
    source: str,
    keys: Sequence[str],
    sequence_by: str | Sequence[str] | int,
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    ignore_null_updates: bool = False,
    stored_as_scd_type: int | str = 1,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    once: bool = False,
    trigger: str | None = None,
    spark_conf: Mapping[str, object] | None = None,
    on_failure: str = PARK,
    rewind_window: str | None = None,
) -> None:
    """Declare a flow that applies changes to ``target`` by key: whatever their order of arrival, the newest by sequence wins.

    Several such flows may write one table, where they agree in keys, SCD type and number of sequence columns. docs/auto_cdc.md says what
    becomes of deletes, truncates, late, tied and repeated changes.

    :param name: state is kept under it, so a renamed flow is another flow.
    :param target: a table made by :func:`create_streaming_table` in the same file.
    :param source: the name of a source or view, one row a change.
    :param keys: the columns that a row of the table is found by.
    :param sequence_by: the column that orders changes, or several that are compared in order; or a whole number, the sequence of every
        row, such as 0 for a first snapshot.
    :param apply_as_deletes: a condition in SQL: such a row deletes its key.
    :param apply_as_truncates: a condition in SQL: such a row empties the table of all that came before it. SCD type 1 only.
    :param column_list: what is stored, or
    :param except_column_list: what is not.
    :param ignore_null_updates: a null in an update leaves the column as it is.
    :param stored_as_scd_type: 1 keeps the present rows; 2 their history, with ``__START_AT`` and ``__END_AT``.
    :param track_history_column_list: SCD type 2: the columns whose change begins a new row of history, or
    :param track_history_except_column_list: those whose change does not.
    :param once: as for :func:`append_flow`, and so ``trigger``, ``spark_conf``, ``on_failure`` and ``rewind_window``.
    :raises DeclarationError: with file, line, what was found and what is allowed.
    """
    given = dict(locals())
    where = _caller()
    registry = _registry(where)
    flow = _new_flow(registry, name, where)
    if not isinstance(source, str):
        raise DeclarationError(
            f"{where}: the flow {flow} has the source {source!r}. Give the name of one source or view, such as 'changes'."
        )
    spec = read_spec(flow, given, where)
    often = _how_often(flow, trigger, once, where)
    _check_on_failure(flow, on_failure, where)
    window = _duration(f"rewind_window of flow {flow}", rewind_window, where)
    conf = with_window(_options(f"flow {flow}", spark_conf, where, reserved=()), flow, window, often, once=once, where=where)
    registry.flows[flow] = AutoCdcFlow(flow, str(target), source, spec, often, conf, where, on_failure, once)


def notifier(classpath: str, **arguments: Any) -> Notifier:
    """Give an Airflow notifier for :func:`configure_pipeline`; Airflow imports and makes it when there is something to tell.

    Its text arguments are templates: ``{{ alert.subject }}``, ``{{ alert.text }}``, ``{{ alert.kind }}`` and ``{{ alert.flow }}`` are known
    in them. Passwords belong into an Airflow connection that the notifier names, never here.

    :param classpath: such as ``airflow.providers.smtp.notifications.smtp.SmtpNotifier``.
    :param arguments: what the notifier is made with; values that JSON knows.
    """
    where = _caller()
    if not isinstance(classpath, str) or not _CLASSPATH.fullmatch(classpath):
        raise DeclarationError(
            f"{where}: the notifier {classpath!r} is no path of a class. Give one such as "
            "'airflow.providers.smtp.notifications.smtp.SmtpNotifier'."
        )
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{where}: the arguments of the notifier {classpath} are no JSON values: {error}.") from error
    return Notifier(classpath, plain)


def configure_pipeline(
    *, shared_driver: bool = False, notifiers: Sequence[Notifier] = (), no_progress_after: str | None = "30 minutes"
) -> None:
    """Say, once a file, what holds for all flows of the pipeline.

    :param shared_driver: let the flows run as queries of one Spark application, each in a FAIR pool of its own. It saves memory; the
        failure of one ends the application and restarts all.
    :param notifiers: who is told that a flow was parked, is in a crash loop, came back, makes no progress, or that a recovery ended.
    :param no_progress_after: a number and a unit, such as ``"30 minutes"``; None: nobody is told.
    :raises DeclarationError: with file, line, what was found and what is allowed.
    """
    where = _caller()
    registry = _registry(where)
    if registry.options is not None:
        raise DeclarationError(f"{where}: the pipeline is configured at {registry.options.where} already. Leave one of the two.")
    if not isinstance(shared_driver, bool):
        raise DeclarationError(f"{where}: shared_driver is {shared_driver!r}. Allowed are True and False.")
    if not isinstance(notifiers, Sequence) or not all(isinstance(item, Notifier) for item in notifiers):
        raise DeclarationError(f"{where}: the notifiers are {notifiers!r}. Give a list of dp.notifier(…).")
    registry.options = Options(shared_driver, tuple(notifiers), _duration("no_progress_after", no_progress_after, where), where)


def schedule(recovery: str, *, cron: str, name: str | None = None, **values: Any) -> None:
    """Run a recovery by the clock: ``dp.schedule("backup_table", table="customers", cron="0 3 * * *")``.

    Nobody is asked: a plan with a price that ``accept`` does not name ends with an alert, and touches nothing.

    :param recovery: the name of a recovery, as its DAG has it.
    :param cron: minute, hour, day of month, month, day of week, in UTC; or ``@daily`` and the like.
    :param name: what tells this schedule from others of the pipeline: the recovery and its table or flow by default.
    :param values: of the recovery's form; tables and flows are this file's, by their own names.
    :raises DeclarationError: with file, line, what was found and what is allowed.
    """
    where = _caller()
    registry = _registry(where)
    made = declared(recovery, cron, name, values, where)
    taken = registry.schedules.get(made.name)
    if taken is not None:
        raise DeclarationError(f"{where}: the schedule {made.name} is declared at {taken.where} already. Give one of them a name=.")
    registry.schedules[made.name] = made


def code_hash(function: Callable[..., Any]) -> str:
    """Hash what a function does, as its syntax tree without places, comments or docstring: a reformatted function stays the same."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            without_decorators(node, DECORATORS.__contains__)
    return hash_of(tree)


def _registry(where: Where) -> Registry:
    return _current.get() or Registry("unnamed", where.file, "/data")


def _caller() -> Where:
    frame = sys._getframe(2)
    return Where(Path(frame.f_code.co_filename).name, frame.f_lineno)


def _check_not_taken_by_us(flow: str, where: Where) -> None:
    if flow.lower() in OUR_FOLDERS:
        raise DeclarationError(
            f"{where}: the flow name {flow!r} cannot be used: beside the folders of a pipeline's flows, Streamkeeper keeps its own "
            f"{_listed(OUR_FOLDERS)}. Give the flow another name."
        )


def _new_flow(registry: Registry, name: object, where: Where) -> str:
    """Give a flow's name if it can be one and no other flow has it."""
    flow = check_name("flow", name, where)
    _check_not_taken_by_us(flow, where)
    if flow in registry.flows:
        raise DeclarationError(f"{where}: the flow {flow} is declared at {registry.flows[flow].where} already. Rename one of the two.")
    return flow


def _how_often(flow: str, trigger: object, once: object, where: Where) -> str:
    """Give how often a flow looks for data; of a once flow that is never asked."""
    if not isinstance(once, bool):
        raise DeclarationError(f"{where}: flow {flow} has once={once!r}. Allowed are True and False.")
    if once and trigger is not None:
        raise DeclarationError(
            f"{where}: flow {flow} runs once and has the trigger {trigger!r}. It ends when it has read what is there: leave trigger out."
        )
    often = DEFAULT_TRIGGER if trigger is None else trigger
    if not isinstance(often, str) or not _TRIGGER.fullmatch(often):
        raise DeclarationError(f"{where}: flow {flow} has the trigger {often!r}. Allowed is a number and a unit, such as '10 seconds'.")
    return often


def _check_on_failure(flow: str, on_failure: object, where: Where) -> None:
    if on_failure not in (PARK, RETRY):
        raise DeclarationError(f"{where}: flow {flow} has on_failure {on_failure!r}. Allowed are {PARK!r} and {RETRY!r}.")


def _check_new(registry: Registry, name: str, where: Where) -> None:
    for taken in (registry.sources.get(name), registry.views.get(name)):
        if taken is not None:
            raise DeclarationError(f"{where}: the name {name} is declared at {taken.where} already. Rename one of the two.")


def _check_table_name(registry: Registry, name: object, where: Where) -> None:
    parts = name.split(".") if isinstance(name, str) else [name]
    for part in parts:
        check_name("table", part, where)
    if len(parts) > 2:
        raise DeclarationError(f"{where}: the table name {name!r} has more than one dot. Allowed are `table` and `schema.table`.")
    if str(name).lower().endswith(TOMBSTONES):
        raise DeclarationError(
            f"{where}: the table name {name!r} ends in {TOMBSTONES}. Beside an AUTO CDC table Streamkeeper keeps one of its own "
            "under such a name. Give the table another."
        )
    for other, taken in registry.tables.items():
        if other == name:
            raise DeclarationError(f"{where}: the table {name} is declared at {taken.where} already. Remove one of the two.")
        if other.startswith(f"{name}.") or str(name).startswith(f"{other}."):
            raise DeclarationError(
                f"{where}: the table {name} and the table {other} ({taken.where}) would lie in one another's folder, where a VACUUM of one "
                "removes the files of the other. Rename one of the two, or put both into a schema."
            )


def _duration(what: str, value: object, where: Where) -> float | None:
    if value is None:
        return None
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise DeclarationError(f"{where}: {what} is {value!r}. Allowed is a number and a unit, such as '30 minutes', or None.")
    return int(found[1]) * _SECONDS[found[2]]


def _check_text(what: str, value: object, where: Where) -> None:
    if value is not None and not isinstance(value, str):
        raise DeclarationError(f"{where}: the {what} is {value!r}, of type {type(value).__name__}. Give a text, or leave it out.")


def _filled(path: object, source: str, registry: Registry, where: Where) -> str:
    try:
        filled = str(path).format(data=registry.data)
    except (KeyError, IndexError, ValueError) as error:
        raise DeclarationError(
            f"{where}: the path {path!r} of source {source} cannot be filled in ({error!r}). Only {{data}} is known."
        ) from error
    if "://" not in filled and not filled.startswith("/"):
        raise DeclarationError(
            f"{where}: the path {path!r} of source {source} is relative. Start it with {{data}}/, with /, or with a URL's scheme."
        )
    return filled.rstrip("/") or "/"


def _options(what: str, options: object, where: Where, reserved: Sequence[str] = _OURS) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise DeclarationError(f"{where}: the options of {what} are {options!r}. Give a dict of names and values.")
    plain: dict[str, str] = {}
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float, bool)):
            raise DeclarationError(
                f"{where}: the option {key!r}: {value!r} of {what} cannot be used. Give a name with a text, a number or a truth value."
            )
        if key.lower() in reserved:
            raise DeclarationError(
                f"{where}: the option {key!r} of {what} is Streamkeeper's own to set: path and schema are parameters of "
                "create_source, and positions belong to the flow's generation. Leave it out."
            )
        plain[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return plain


def _inputs(what: str, function: Callable[..., Any], sources: object, where: Where) -> tuple[str, ...]:
    if isinstance(sources, str) or not isinstance(sources, Sequence) or not sources or not all(isinstance(item, str) for item in sources):
        raise DeclarationError(f"{where}: the sources of {what} are {sources!r}. Give a list of one or more names, such as ['events'].")
    try:
        inspect.signature(function).bind(*sources)
    except TypeError as error:
        raise DeclarationError(
            f"{where}: {what} has {len(sources)} sources ({_listed(sources)}) but its function takes {inspect.signature(function)}: "
            f"{error}. Give it one parameter for each source, in the same order."
        ) from error
    return tuple(sources)


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names) or "none"
