"""Language of pipeline files: ``from streamkeeper import pipelines as dp``.

Names and parameters are those of Lakeflow and ``pyspark.pipelines``. Named sources are Streamkeeper's own. A
view gets one DataFrame per source, so it can be tested by itself. Positions are kept and reset by the
source's name.

Nothing here reads, writes or starts anything. Decorated functions are returned unchanged. A declaration that
cannot be raises :class:`DeclarationError`, with file, line, what was found and what is allowed.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from pkgutil import resolve_name
from typing import Any, TypeVar

from streamkeeper.declare.auto_cdc import names_of, read_spec
from streamkeeper.declare.checkpoint_window import with_window
from streamkeeper.declare.checks import (
    airflow_name,
    asset_every_of,
    check_named_table,
    check_new,
    check_park_after,
    check_policies,
    check_registered,
    check_registered_once,
    check_table_name,
    check_text,
    check_variables,
    checked_driver,
    checked_rows,
    column_comments_of,
    conf_of,
    duration,
    expectations_of,
    filled_path,
    how_often,
    initial_state_of,
    inputs_of,
    new_flow,
    options_of,
    schema_columns,
    share,
    spark_conf_of,
    spark_connection,
)
from streamkeeper.declare.driver import NEEDS, Driver, driver_of
from streamkeeper.declare.model import (
    APPEND,
    COMPLETE,
    DEFAULT_BEHIND_FOR,
    DEFAULT_LATE,
    DROP,
    FAIL,
    FOREACH_BATCH,
    FORMATS,
    KEEP,
    PARK,
    PARK_AFTER,
    REHEARSABLE,
    RESTART,
    UPDATE,
    WARN,
    AppendFlow,
    AutoCdcFlow,
    GivenState,
    Location,
    Notifier,
    Schedule,
    Source,
    Table,
    View,
    check_name,
)
from streamkeeper.declare.not_there import check_function, known_parameters, refuse, with_parameters_of
from streamkeeper.declare.registry import caller, code_hash, current, listed
from streamkeeper.declare.source_options import CHECKS, SINKS, check_start
from streamkeeper.delta.summary import FORGETFUL
from streamkeeper.errors import DeclarationError, NotOffered
from streamkeeper.redaction import redact
from streamkeeper.settings import pipeline_env
from streamkeeper.support.user_environment import why_refused

__all__ = [
    "append_flow",
    "complete_flow",
    "configure_pipeline",
    "create_auto_cdc_flow",
    "create_initial_state",
    "create_sink",
    "create_source",
    "create_streaming_table",
    "driver",
    "expect",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
    "expect_or_drop",
    "expect_or_fail",
    "foreach_batch_sink",
    "notifier",
    "only_where_set",
    "schedule",
    "temporary_view",
    "update_flow",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_CLASSPATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
MOST_BEHIND_FOR = 6 * 3600.0
"""Most seconds of ``behind_for``: of so much history the monitor judges (streamkeeper.health.troubles)."""
READ_SCHEDULE = "streamkeeper.recover.plans.schedules:declared"
"""Reader of a schedule, by name: the recoveries are defined above this package."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def __getattr__(name: str) -> Any:
    return refuse(name, __all__)


def only_where_set(variable: str) -> None:
    """Offer this pipeline only where an environment variable is set.

    For what one installation has and another lacks, such as a broker. Elsewhere the pipeline has no flows,
    and ``streamkeeper check`` shows the reason. Call it first: the rest of the file is not run if the
    variable is not set.

    :raises DeclarationError: ``variable`` cannot be the name of an environment variable.
    :raises NotOffered: the variable is not set here, or pipelines may not see it.
    """
    location = caller()
    if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
        raise DeclarationError(
            f"{location}: {variable!r} names no environment variable. Give letters, digits and underscores."
        )
    unseen = why_refused((variable,), pipeline_env())
    if unseen is not None:
        raise NotOffered(f"{location}: the pipeline is offered only where {variable} is set, and {unseen}.")
    if not os.environ.get(variable):
        raise NotOffered(
            f"{location}: the pipeline is offered only where {variable} is set, and it is not set here."
        )


@known_parameters
def create_source(
    name: str,
    *,
    format: str,
    path: str | None = None,
    table: str | None = None,
    registered_as: str | None = None,
    schema: str | None = None,
    options: Mapping[str, object] | None = None,
    start: str | Mapping[str, Mapping[str, int]] = "earliest",
    track_schema: bool = False,
) -> None:
    """Declare a source of rows.

    :param name: letters, digits, underscores. Positions are kept under this name, so a renamed source is
        another source.
    :param format: ``json``, ``csv``, ``parquet``, ``orc``, ``text`` (files in a folder), ``kafka``, ``delta``
        ``rate`` or ``socket``.
    :param path: the folder of a files source or a Delta table; ``{data}`` stands for ``STREAMKEEPER_DATA``.
        Must be absolute, or a URL.
    :param table: instead of a path, for ``delta``: a table of the warehouse, such as one that another flow
        writes.
    :param registered_as: instead of both, for ``delta``: the name of a table in the session catalog, such as
        ``shop.orders``. Each start of a driver looks up its location; a name that moved to another table is
        a recreated table.
    :param schema: a DDL string (``"id INT, name STRING"``). Without it, the schema of a files source is
        inferred once from the files there and stored with the generation. Kafka and Delta have their own
        schema.
    :param options: options of Spark's reader, such as ``{"maxFilesPerTrigger": 10}`` or ``{"subscribe":
        "orders"}``. ``{env:NAME}`` in a value stands for an environment variable of the reading process,
        which keeps addresses and secrets out of the file. ``STREAMKEEPER_PIPELINE_ENV`` names the variables
        allowed. ``{conn:NAME.FIELD}`` stands for a value of a connection of Airflow's, such as
        ``{conn:orders_kafka.password}``.
    :param start: where the first generation of a Kafka or Delta source starts: ``"earliest"`` (all retained
        data), ``"latest"``, ``"timestamp:2026-11-21T10:00:00Z"``, for Kafka offsets (``{"orders": {"0":
        5}}``; -2 is earliest, -1 latest), for Delta ``"version:12"``. The start of a later generation is
        chosen by its recovery.
    :param track_schema: for ``delta``: follow changes of the table's schema with a log in the generation's
        checkpoint.
    """
    location = caller()
    registry = current(location)
    check_name("source", name, location)
    check_new(registry, name, location)
    _check_format(format, name, schema, track_schema, location)
    _check_place(format, name, {"path": path, "table": table, "registered_as": registered_as}, location)
    plain = options_of(f"the source {name}", options, location)
    check_variables(f"source {name}", plain, location)
    if format in CHECKS:
        CHECKS[format](name, plain, location)
    registry.sources[name] = Source(
        name=name,
        format=format,
        path=None if path is None else filled_path(path, f"source {name}", registry, location),
        schema=schema,
        options=plain,
        location=location,
        table=table,
        start=check_start(name, format, start, location),
        track_schema=track_schema,
        registered_as=registered_as,
    )


def _check_format(format: str, name: str, schema: object, track_schema: object, location: Location) -> None:
    """Check that a source has a known format, and a schema and its log only where the format takes them."""
    if format not in FORMATS:
        raise DeclarationError(
            f"{location}: source {name} has format {format!r}. Allowed are {listed(FORMATS)}."
        )
    source_kind = FORMATS[format]
    if schema is not None and not source_kind.files:
        raise DeclarationError(
            f"{location}: source {name} has format {format!r}, which brings its own schema. Leave schema out."
        )
    if not isinstance(track_schema, bool) or (track_schema and not source_kind.table):
        raise DeclarationError(
            f"{location}: source {name} has track_schema {track_schema!r}. Only Delta sources take it: True"
            " or False."
        )
    check_text(f"schema of source {name}", schema, location)


def _check_place(format: str, name: str, places: Mapping[str, object], location: Location) -> None:
    """Check that a source has its place exactly once, as its format requires.

    :param places: values of the parameters that may name it: ``path``, ``table`` and ``registered_as``.
    """
    source_kind, path, table = FORMATS[format], places["path"], places["table"]
    if source_kind.files and not path:
        raise DeclarationError(
            f"{location}: source {name} reads {format} files but has no path. Give the folder that the files"
            " appear in."
        )
    named = [parameter for parameter, value in places.items() if value]
    if source_kind.table and len(named) != 1:
        raise DeclarationError(
            f"{location}: the Delta source {name} has {' and '.join(named) or 'no place'}. Give one: the"
            " table's path, the name of a table of the warehouse (table), or its name in the session catalog"
            " (registered_as)."
        )
    if not source_kind.files and not source_kind.table and path is not None:
        raise DeclarationError(
            f"{location}: source {name} has format {format!r}, which takes no path. Leave it out."
        )
    for parameter in ("table", "registered_as"):
        if places[parameter] is not None and not source_kind.table:
            raise DeclarationError(
                f"{location}: source {name} has format {format!r}, which takes no {parameter}. Only Delta"
                " sources do."
            )
    if table is not None:
        check_named_table(table, location)
    check_registered(f"the source {name}", places["registered_as"], location)


@known_parameters
def create_initial_state(
    name: str,
    *,
    schema: str | None = None,
    rows: Sequence[Mapping[str, object]] | None = None,
    table: str | None = None,
) -> None:
    """Declare what a flow's own state begins with; an append or update flow takes it as ``initial_state``.

    Its function gets it as its last DataFrame, to hand to ``transformWithState(…,
    initialState=given.groupBy(…))``. It is given once a generation, in the first batch, and not with a state
    that is copied.

    :param name: letters, digits, underscores.
    :param schema: a DDL string (``"fruit STRING, pieces BIGINT"``). For a table, the columns that it must
        have; all of its own by default.
    :param rows: dicts by column, one value for each, at most 1,000. Times are ISO texts or ``datetime``.
    :param table: instead of rows, a table of the warehouse, read at its version of the moment when a
        generation begins.
    """
    location = caller()
    registry = current(location)
    check_name("initial state", name, location)
    check_new(registry, name, location)
    subject = f"the initial state {name}"
    if (rows is None) == (table is None):
        raise DeclarationError(
            f"{location}: {subject} has"
            f" {'neither rows nor a table' if rows is None else 'both rows and a table'}. Give one of the"
            " two."
        )
    check_text(f"schema of {subject}", schema, location)
    if table is not None:
        check_named_table(table, location)
        if schema is not None:
            schema_columns(subject, schema, location)
        registry.initial_states[name] = GivenState(name, schema, location, table=table)
        return
    if schema is None:
        raise DeclarationError(
            f"{location}: {subject} has rows and no schema. Give their columns in DDL, such as"
            " schema='fruit STRING, pieces BIGINT'."
        )
    json_rows = checked_rows(name, rows, schema, location)
    registry.initial_states[name] = GivenState(name, schema, location, rows=json_rows)


@known_parameters
def temporary_view(*, sources: Sequence[str], name: str | None = None) -> Callable[[Function], Function]:
    """Declare a view: a function that takes one DataFrame per source, in this order, and returns one.

    :param sources: names of sources or of other views.
    :param name: the function's name by default.
    """
    location = caller()

    def declare(function: Function) -> Function:
        registry = current(location)
        view = check_name("view", name or function.__name__, location)
        check_new(registry, view, location)
        check_function(f"view {view}", function, location)
        registry.views[view] = View(
            view,
            inputs_of(f"view {view}", function, sources, location),
            code_hash(function),
            location,
            function,
        )
        return function

    return declare


@known_parameters
def create_streaming_table(
    name: str,
    *,
    registered_as: str | None = None,
    comment: str | None = None,
    schema: Mapping[str, str] | None = None,
    table_properties: Mapping[str, object] | None = None,
    partition_cols: Sequence[str] = (),
    keys: Sequence[str] | None = None,
    existing_rows: str | None = None,
    asset_every: str | None = "1 minute",
    expect_all: Mapping[str, str] | None = None,
    expect_all_or_drop: Mapping[str, str] | None = None,
    expect_all_or_fail: Mapping[str, str] | None = None,
    quarantine: str | None = None,
    alert_above: float | None = None,
    alert_window: int = 1,
) -> None:
    """Declare the Delta table that flows write to; ``schema.table`` puts it in a folder of the schema's name.

    :param registered_as: the table's name in the session catalog, such as ``shop.customers``, for readers and
        grants. The driver registers it before the first batch, and again when the columns changed. Nothing is
        written through the name.
    :param comment: of the table.
    :param schema: comments by column, shown in the session catalog; the columns come from the flows.
    :param table_properties: Delta table properties, set when the table is created.
    :param partition_cols: columns that the table is partitioned by when it is created.
    :param keys: for an update flow: the columns that identify a row, those that its query groups by.
    :param existing_rows: ``"keep"``: an append flow's first start adds all that its sources have to rows that
        others wrote into the table. Without it such a flow is parked before it writes.
    :param asset_every: how often the monitor posts an event of the table's Airflow asset, if rows have come:
        a time of a minute or more (``"5 minutes"``), ``"100 commits"``, ``"50000 rows"``, or ``"watermark
        hour"`` (``day``): one for each hour that the flows' watermark has passed. None: never.
    :param expect_all: expectations of the rows of each flow that writes the table, as for
        :func:`expect_all`; of an AUTO CDC flow, before its changes are applied. So are ``expect_all_or_drop``
        and ``expect_all_or_fail``.
    :param quarantine: as for :func:`expect_or_drop`, for rows that ``expect_all_or_drop`` drops.
    :param alert_above: as for :func:`expect`, for each of ``expect_all`` and ``expect_all_or_drop``; so is
        ``alert_window``.
    """
    location = caller()
    registry = current(location)
    check_table_name(registry, name, location)
    check_text(f"comment of table {name}", comment, location)
    if isinstance(partition_cols, str) or not all(isinstance(column, str) for column in partition_cols):
        raise DeclarationError(
            f"{location}: the partition_cols of table {name} are {partition_cols!r}. Give a list of names,"
            " such as ['day']."
        )
    properties = options_of(
        f"the table {name}",
        table_properties,
        location,
        reserved=(),
        called="property",
        instead="Delta keeps it in the table's log, too. Leave it out.",
    )
    forgetful = [key for key in properties if key.lower() == FORGETFUL.lower()]
    if forgetful:
        raise DeclarationError(
            f"{location}: the table {name} sets {forgetful[0]}, by which Delta forgets which batches it has."
            " A flow that was stopped for longer would write its last batch twice. Leave it out."
        )
    if existing_rows not in (None, KEEP):
        raise DeclarationError(
            f"{location}: the table {name} has existing_rows={existing_rows!r}. Allowed is {KEEP!r}; leave it"
            " out if the table has no rows of others, or if their job is to be adopted."
        )
    if quarantine is not None and expect_all_or_drop is None:
        raise DeclarationError(
            f"{location}: the table {name} has the quarantine {quarantine!r} and no expect_all_or_drop."
            " Nothing would be put there: leave it out."
        )
    expectation_groups = (
        (expect_all, WARN, None, (alert_above, alert_window)),
        (expect_all_or_drop, DROP, quarantine, (alert_above, alert_window)),
        (expect_all_or_fail, FAIL, None, (None, 1)),
    )
    registry.expected_of_tables[name] = tuple(
        item
        for conditions, action, aside, above in expectation_groups
        if conditions is not None
        for item in expectations_of(conditions, action, location, aside, above)
    )
    key_names = () if keys is None else names_of(f"{location}: the table {name}", "keys", keys)
    check_registered(f"the table {name}", registered_as, location)
    comments = column_comments_of(name, schema, location)
    if comments and registered_as is None:
        raise DeclarationError(
            f"{location}: the table {name} has comments of columns (schema) and no registered_as. The session"
            " catalog shows them: give the table's name there, or leave schema out."
        )
    table = Table(
        name,
        comment,
        properties,
        tuple(partition_cols),
        location,
        key_names,
        existing_rows=existing_rows,
        registered_as=registered_as,
        column_comments=comments,
        asset_every=asset_every_of(name, asset_every, location),
    )
    check_registered_once(registry, table)
    registry.tables[name] = table


@known_parameters
def create_sink(name: str, format: str, options: Mapping[str, object] | None = None) -> None:
    """Declare a sink: topics of Kafka, or files in a folder, to which append flows write whose ``target`` it
    is.

    :param format: ``kafka``, ``parquet``, ``json`` or ``csv``.
    :param options: options of Spark's writer. Of Kafka ``kafka.bootstrap.servers``, others of its producer,
        and ``topic`` unless each row has one. Of files the ``path`` of their folder; ``{data}`` in it stands
        for the data folder. ``{env:NAME}`` in a value stands for an environment variable of the driver,
        ``{conn:NAME.FIELD}`` for a value of a connection of Airflow's.
    """
    location = caller()
    registry = current(location)
    check_table_name(registry, name, location)
    if format not in SINKS:
        raise DeclarationError(
            f"{location}: the sink {name} has the format {format!r}. Allowed are {listed(SINKS)}; for others"
            " declare a function that gets each batch: dp.foreach_batch_sink."
        )
    plain = options_of(f"the sink {name}", options, location, reserved=())
    check_variables(f"sink {name}", plain, location)
    SINKS[format](name, plain, location)
    if "path" in plain:
        plain["path"] = filled_path(plain["path"], f"sink {name}", registry, location)
    registry.tables[name] = Table(name, None, plain, (), location, sink=format)


@known_parameters
def foreach_batch_sink(*, name: str | None = None) -> Callable[[Function], Function]:
    """Declare a sink: a function ``(batch, batch_id, transaction)`` that is called with each batch of the
    append flows whose ``target`` it is.

    It is called again with a batch whose driver died before the function's end was noted. ``transaction``
    (:class:`streamkeeper_jobs.sinks.each_batch.Transaction`) then has the same values, by which the function
    finds what it wrote: ``batch.write.options(**transaction.options)`` makes writes into Delta tables exact.

    :param name: the function's name by default.
    """
    location = caller()

    def declare(function: Function) -> Function:
        registry = current(location)
        sink = name or function.__name__
        check_table_name(registry, sink, location)
        if len(inspect.signature(function).parameters) != 3:
            raise DeclarationError(
                f"{location}: the function of the sink {sink} must take three parameters: batch, batch_id and"
                " transaction."
            )
        registry.tables[sink] = Table(
            sink, None, {}, (), location, sink=FOREACH_BATCH, code=code_hash(function), function=function
        )
        return function

    return declare


def _expects(
    conditions: object, action: str, quarantine: object = None, alert: tuple[object, object] = (None, 1)
) -> Callable[[Function], Function]:
    location = caller()
    expectations = expectations_of(conditions, action, location, quarantine, alert)

    def declare(function: Function) -> Function:
        current(location).expected_of_functions += [(function, item) for item in expectations]
        return function

    return declare


@known_parameters
def expect(
    name: str, condition: str, *, alert_above: float | None = None, alert_window: int = 1
) -> Callable[[Function], Function]:
    """Expect a condition of each row of an append flow; rows that fail it are counted and written.

    Stands above the flow's function, as all expectations do, before or after ``append_flow``.

    :param name: unique among the flow's expectations; it is in alerts and counts.
    :param condition: in SQL, over the columns that the function returns. A row for which it is null fails.
    :param alert_above: the share of failed rows, such as 0.05, above which an alert is sent.
    :param alert_window: the number of last batches that the share is taken over.
    """
    return _expects({name: condition}, WARN, None, (alert_above, alert_window))


@known_parameters
def expect_or_drop(
    name: str,
    condition: str,
    *,
    quarantine: str | None = None,
    alert_above: float | None = None,
    alert_window: int = 1,
) -> Callable[[Function], Function]:
    """Expect a condition, as :func:`expect` does; rows that fail it are not written.

    :param quarantine: a table declared with :func:`create_streaming_table`, which no flow writes. It gets
        each dropped row once, as JSON, with the names of the expectations that it failed.
    """
    return _expects({name: condition}, DROP, quarantine, (alert_above, alert_window))


@known_parameters
def expect_or_fail(name: str, condition: str) -> Callable[[Function], Function]:
    """Expect a condition as :func:`expect`; a batch with a row that fails it parks the flow, unwritten."""
    return _expects({name: condition}, FAIL)


@known_parameters
def expect_all(
    expectations: Mapping[str, str], *, alert_above: float | None = None, alert_window: int = 1
) -> Callable[[Function], Function]:
    """Expect several conditions, by name, each as :func:`expect` does."""
    return _expects(expectations, WARN, None, (alert_above, alert_window))


@known_parameters
def expect_all_or_drop(
    expectations: Mapping[str, str],
    *,
    quarantine: str | None = None,
    alert_above: float | None = None,
    alert_window: int = 1,
) -> Callable[[Function], Function]:
    """Expect several conditions, by name, each as :func:`expect_or_drop` does."""
    return _expects(expectations, DROP, quarantine, (alert_above, alert_window))


@known_parameters
def expect_all_or_fail(expectations: Mapping[str, str]) -> Callable[[Function], Function]:
    """Expect several conditions, by name, each as :func:`expect_or_fail` does."""
    return _expects(expectations, FAIL)


@known_parameters
def append_flow(
    *,
    target: str,
    sources: Sequence[str],
    name: str | None = None,
    trigger: str | None = None,
    spark_conf: Mapping[str, object] | None = None,
    on_failure: str = PARK,
    park_after: int = PARK_AFTER,
    on_change: str = RESTART,
    once: bool = False,
    rewind_window: str | None = None,
    state_store: str | None = None,
    watermark_policy: str | None = None,
    driver: Driver | None = None,
    initial_state: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a flow that appends every row of its function's result to ``target``, exactly once.

    :param target: a table declared with :func:`create_streaming_table` in the same file.
    :param sources: names of sources or views; the function takes one DataFrame for each.
    :param name: the function's name by default. State is kept under it, so a renamed flow is another flow.
    :param trigger: the interval between checks for new data, ``"10 seconds"`` by default. Each check costs a
        poll, so keep it at tens of seconds or more.
    :param spark_conf: Spark settings for this flow's application, and for the jobs of its recoveries; no
        secrets.
    :param on_failure: ``park``: a failure that a restart cannot fix stops the flow until a person acts, or
        its declaration changes. ``retry``: the same alert is sent, and the flow is retried forever.
    :param park_after: tries, from 1 to 100, of a batch that fails each time for the same value, file or
        function of the pipeline, after which that counts as a failure that a restart cannot fix. Other
        failures are retried forever.
    :param on_change: ``restart``: a changed declaration ends the driver after its batch; the next one uses
        it. ``try``: the change is tried on a copy of the newest state while the driver continues; it
        replaces the driver if it fits, else it is refused and alerted. ``ask``: as ``try``, and a change that
        fits waits for ``streamkeeper accept``. Needs a driver that Airflow supervises, and that the flow does
        not share.
    :param once: read the data that the sources have, then stop, until a reset gives the flow a new
        checkpoint. Excludes ``trigger``.
    :param rewind_window: how far back the flow can be rewound, such as ``"7 days"``. Its checkpoint retains
        as many batches as the trigger allows in that time, 100 at least and 10,000 at most.
    :param state_store: ``rocksdb``: on local disk, with changelog checkpointing, for more than some million
        keys an executor. ``default``: in memory, as Spark does without it. A checkpoint keeps its store, so a
        change takes effect with the next generation whose state is not copied.
    :param watermark_policy: which of several watermarks rules: ``min``, the slowest, as Spark does without
        it, or ``max``, the fastest, which drops what slower streams deliver later. A checkpoint keeps it,
        too.
    :param driver: what the flow's driver needs (:func:`driver`). What it names replaces the same of the
        pipeline's (:func:`configure_pipeline`), lists as a whole.
    :param initial_state: one of :func:`create_initial_state`, which the function gets as its last DataFrame.
    """
    return _flow(APPEND, dict(locals()))


@known_parameters
@with_parameters_of(append_flow)
def update_flow(**parameters: Any) -> Callable[[Function], Function]:
    """Declare a flow whose query runs in Spark's output mode ``update``: an aggregate's updated rows replace
    those of the same key in ``target``, exactly once.

    A row of a later generation replaces that of an earlier one, whatever their order of arrival. Parameters
    are those of :func:`append_flow`, but for

    :param target: a table declared with :func:`create_streaming_table` and ``keys``, which no other flow
        writes.
    """
    return _flow(UPDATE, parameters)


@known_parameters
@with_parameters_of(append_flow)
def complete_flow(**parameters: Any) -> Callable[[Function], Function]:
    """Declare a flow whose query runs in Spark's output mode ``complete``: each batch replaces the whole
    ``target``, exactly once. For small aggregates. Parameters are those of :func:`append_flow`, but for

    :param target: a table declared with :func:`create_streaming_table`, which no other flow writes.
    """
    return _flow(COMPLETE, parameters)


def _flow(mode: str, parameters: Mapping[str, Any]) -> Callable[[Function], Function]:
    location = caller()

    def declare(function: Function) -> Function:
        registry = current(location)
        flow = new_flow(registry, parameters["name"] or function.__name__, location)
        runs = _runs(flow, parameters, location)
        check_function(f"flow {flow}", function, location)
        state = initial_state_of(registry, flow, parameters["initial_state"], location)
        inputs = inputs_of(f"flow {flow}", function, parameters["sources"], location, state)
        code = code_hash(function)
        registry.flows[flow] = AppendFlow(
            flow,
            str(parameters["target"]),
            inputs,
            code,
            **runs,
            function=function,
            mode=mode,
            initial_state=state,
        )
        return function

    return declare


def _runs(flow: str, parameters: Mapping[str, Any], location: Location) -> dict[str, Any]:
    """Return how a flow runs, by the names of its fields, from the parameters that all flows have."""
    once = parameters["once"]
    often = how_often(flow, parameters["trigger"], once, location)
    check_policies(flow, parameters["on_failure"], parameters["on_change"], once, location)
    check_park_after(flow, parameters["park_after"], location)
    window = duration(f"rewind_window of flow {flow}", parameters["rewind_window"], location)
    named = {name: parameters[name] for name in ("state_store", "watermark_policy", "driver")}
    settings = conf_of(flow, parameters["spark_conf"], location, **named)
    return {
        "trigger": often,
        "spark_conf": with_window(settings, flow, window, often, once=once, location=location),
        "location": location,
        "on_failure": parameters["on_failure"],
        "park_after": parameters["park_after"],
        "once": once,
        "on_change": parameters["on_change"],
    }


@known_parameters
def create_auto_cdc_flow(
    *,
    name: str,
    target: str,
    source: str,
    keys: Sequence[str],
    sequence_by: str | Sequence[str] | int | None = None,
    change_feed: bool = False,
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
    park_after: int = PARK_AFTER,
    on_change: str = RESTART,
    rewind_window: str | None = None,
    state_store: str | None = None,
    watermark_policy: str | None = None,
    driver: Driver | None = None,
) -> None:
    """Declare a flow that applies changes to ``target`` by key: the newest by sequence wins, in whatever
    order they arrive.

    Several such flows may write one table if they agree in keys, SCD type and number of sequence columns.
    docs/reference/auto-cdc-semantics.md describes deletes, truncates, and late, tied and repeated changes.

    :param name: state is kept under it, so a renamed flow is another flow.
    :param target: a table declared with :func:`create_streaming_table` in the same file.
    :param source: the name of a source or view, with one row for each change.
    :param keys: the columns that identify a row of the table.
    :param sequence_by: the column that orders changes, or several that are compared in order. A whole number
        is the sequence of every row, such as 0 for a first snapshot.
    :param change_feed: in place of ``sequence_by`` and ``apply_as_deletes``: ``source`` is the change feed of
        a Delta table (``readChangeFeed``), in the order of its commits, with deletes as deletes.
    :param apply_as_deletes: a condition in SQL: such a row deletes its key.
    :param apply_as_truncates: a condition in SQL: such a row removes all earlier rows from the table. SCD
        type 1 only.
    :param column_list: the columns to store, or
    :param except_column_list: the columns not to store.
    :param ignore_null_updates: a null in an update leaves the column as it is.
    :param stored_as_scd_type: 1 keeps the current rows; 2 their history, with ``__START_AT`` and
        ``__END_AT``.
    :param track_history_column_list: SCD type 2: the columns whose change begins a new row of history, or
    :param track_history_except_column_list: the columns whose change does not.
    :param once: as for :func:`append_flow`, as are ``trigger``, ``spark_conf``, ``on_failure``,
        ``park_after``, ``on_change``, ``rewind_window``, ``state_store``, ``watermark_policy`` and
        ``driver``.
    """
    parameters = dict(locals())
    location = caller()
    flow = new_flow(current(location), name, location)
    if not isinstance(source, str):
        raise DeclarationError(
            f"{location}: the flow {flow} has the source {source!r}. Give the name of one source or view,"
            " such as 'changes'."
        )
    spec = read_spec(flow, parameters, location)
    current(location).flows[flow] = AutoCdcFlow(
        flow, str(target), source, spec, **_runs(flow, parameters, location)
    )


def notifier(classpath: str, **arguments: Any) -> Notifier:
    """Return an Airflow notifier for :func:`configure_pipeline`. Airflow imports and creates it for each
    alert.

    Its text arguments are templates with ``{{ alert.subject }}``, ``{{ alert.text }}``, ``{{ alert.kind }}``
    and ``{{ alert.flow }}``. Secrets are refused: put them into an Airflow connection, and name that.

    :param classpath: such as ``airflow.providers.smtp.notifications.smtp.SmtpNotifier``.
    :param arguments: arguments of the notifier's class, as JSON values.
    """
    location = caller()
    if not isinstance(classpath, str) or not _CLASSPATH.fullmatch(classpath):
        raise DeclarationError(
            f"{location}: the notifier {classpath!r} is no path of a class. Give one such as "
            "'airflow.providers.smtp.notifications.smtp.SmtpNotifier'."
        )
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"{location}: the arguments of the notifier {classpath} are not JSON values: {error}."
        ) from error
    secret = next((name for name, value in plain.items() if redact({name: value}) != {name: value}), None)
    if secret is not None:
        raise DeclarationError(
            f"{location}: the notifier {classpath} has a secret in its argument {secret!r}. What is declared"
            " is kept in the manifest, for all to read. Put it into an Airflow connection, and give the"
            " connection's name (such as http_conn_id='chat')."
        )
    return Notifier(classpath, plain)


@known_parameters
def driver(
    *,
    driver_memory: str | None = None,
    driver_cores: int | None = None,
    num_executors: int | None = None,
    executor_memory: str | None = None,
    executor_cores: int | None = None,
    jars: Sequence[str | PurePath] | None = None,
    packages: Sequence[str] | None = None,
    py_files: Sequence[str | PurePath] | None = None,
    archives: Sequence[str | PurePath] | None = None,
    spark_conf: Mapping[str, object] | None = None,
) -> Driver:
    """Return what a driver needs, for ``driver=`` of :func:`configure_pipeline` or of a flow. The jobs of its
    recoveries get it, too.

    Names and values are those of spark-submit's options. Paths are absolute or URLs; ``{data}`` in one stands
    for the data folder. A file that must be on this machine must be there.

    :param driver_memory: heap of the driver's JVM, such as ``"2g"``; Spark's default is 1g. On a ``local``
        master it is all that there is.
    :param driver_cores: of a driver that a cluster runs itself.
    :param num_executors: on a cluster; so are ``executor_memory`` (of one) and ``executor_cores`` (of one).
    :param jars: for the class path of driver and executors.
    :param packages: jars by ``group:artifact:version`` of Maven, with all that they need. The first start on
        a host downloads them; later ones take them from Ivy's cache.
    :param py_files: ``.py``, ``.zip`` or ``.egg`` for Python's path of driver and executors. Modules next to
        the pipeline file need not be named.
    :param archives: unpacked in the working folder of each executor; ``path#name`` names the folder.
    :param spark_conf: further settings, as of a flow.
    """
    needs = dict(locals())
    location = caller()
    conf = spark_conf_of("driver", needs.pop("spark_conf"), location)
    return driver_of({name: needs[name] for name in NEEDS}, conf, current(location).data, location)


@known_parameters
def configure_pipeline(
    *,
    shared_driver: bool = False,
    notifiers: Sequence[Notifier] = (),
    no_progress_after: str | None = "30 minutes",
    behind_above: str | None = None,
    behind_for: str = "10 minutes",
    late_above: float | None = DEFAULT_LATE,
    rehearse: Sequence[str] = (),
    driver: Driver | None = None,
    owner: str | None = None,
    tags: Sequence[str] = (),
    pool: str | None = None,
    connection: str | None = None,
) -> None:
    """Configure all flows of the pipeline, once a file.

    :param shared_driver: run the flows as queries of one Spark application, each in a FAIR pool of its own.
        This saves memory; the failure of one flow ends the application and restarts all.
    :param notifiers: called when a flow was parked, is in a crash loop, recovered or makes no progress, and
        when a recovery ended.
    :param no_progress_after: a number and a unit, such as ``"30 minutes"``; None for no such alert.
    :param behind_above: alert when the oldest input that waits for a flow is older than this, such as ``"5
        minutes"``, for ``behind_for``; None for no such alert.
    :param late_above: alert when more than this share of an hour's rows was dropped as late, by the
        watermark; None for no such alert.
    :param rehearse: recoveries that are refused unless they were rehearsed, such as ``["full_refresh"]``.
    :param driver: what the driver of each flow needs, or the shared one (:func:`driver`).
    :param owner: of all their tasks, such as ``"team a"``; None for ``STREAMKEEPER_DAG_OWNER``.
    :param tags: of their DAGs, besides those of ``STREAMKEEPER_DAG_TAGS``.
    :param pool: Airflow's pool of the drivers' tasks; None for ``STREAMKEEPER_POOL``.
    :param connection: Airflow's connection to Spark's master, for the drivers and for recoveries of this
        pipeline alone; None for ``STREAMKEEPER_CONNECTION``. A change counts from a driver's next start.
    """
    location = caller()
    registry = current(location)
    if registry.configured_at is not None:
        raise DeclarationError(
            f"{location}: the pipeline is configured at {registry.configured_at} already. Leave one of the"
            " two."
        )
    if not isinstance(shared_driver, bool):
        raise DeclarationError(f"{location}: shared_driver is {shared_driver!r}. Allowed are True and False.")
    _check_lists(notifiers, rehearse, location)
    registry.configured_at = location
    registry.driver = None if driver is None else checked_driver(driver, location)
    registry.configured = replace(
        registry.configured,
        shared_driver=shared_driver,
        notifiers=tuple(notifiers),
        no_progress_after=duration("no_progress_after", no_progress_after, location),
        behind_above=duration("behind_above", behind_above, location),
        behind_for=_behind_for(behind_for, location),
        late_above=share("late_above", late_above, location),
        rehearse=tuple(rehearse),
        owner=airflow_name("owner", owner, location),
        tags=_tags(tags, location),
        pool=airflow_name("pool", pool, location),
        connection=spark_connection(connection, location),
    )


def _check_lists(notifiers: Sequence[Notifier], rehearse: Sequence[str], location: Location) -> None:
    if not isinstance(notifiers, Sequence) or not all(isinstance(item, Notifier) for item in notifiers):
        raise DeclarationError(f"{location}: the notifiers are {notifiers!r}. Give a list of dp.notifier(…).")
    if isinstance(rehearse, str) or (unknown := [name for name in rehearse if name not in REHEARSABLE]):
        misfit = rehearse if isinstance(rehearse, str) else unknown[0]
        raise DeclarationError(
            f"{location}: rehearse has {misfit!r}. Give a list of recoveries that can be rehearsed:"
            f" {', '.join(REHEARSABLE)}."
        )


def _tags(tags: object, location: Location) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise DeclarationError(f"{location}: tags is {tags!r}. Give a list of names, such as ['team_a'].")
    return tuple(airflow_name("a tag", tag or "", location) for tag in tags)


def _behind_for(text: object, location: Location) -> float:
    seconds = duration("behind_for", text, location) or DEFAULT_BEHIND_FOR
    if seconds > MOST_BEHIND_FOR:
        raise DeclarationError(
            f"{location}: behind_for is {text!r}. Allowed are 6 hours at most: the monitor looks back no"
            " further."
        )
    return seconds


def schedule(recovery: str, *, cron: str, name: str | None = None, **values: Any) -> None:
    """Schedule a recovery: ``dp.schedule("backup_table", table="customers", cron="0 3 * * *")``.

    Nobody is asked. A plan with an impact that ``accept`` does not name ends with an alert, and touches
    nothing.

    :param recovery: the name of a recovery, as in its DAG.
    :param cron: minute, hour, day of month, month, day of week, in UTC; or ``@daily`` and the like.
    :param name: unique among the schedules of the pipeline; the recovery and its table or flow by default.
    :param values: values of the recovery's form. Tables and flows are those of this file, by their own names.
    """
    location = caller()
    registry = current(location)
    made: Schedule = resolve_name(READ_SCHEDULE)(recovery, cron, name, values, location)
    taken = registry.schedules.get(made.name)
    if taken is not None:
        raise DeclarationError(
            f"{location}: the schedule {made.name} is declared at {taken.location} already. Give one of them"
            " a name=."
        )
    registry.schedules[made.name] = made
