"""Declarations of a pipeline file as plain values, written to JSON and read back.

Only :attr:`View.function` and :attr:`AppendFlow.function` are code; they never leave the process that
imported the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from streamkeeper.declare.cdc_spec import CdcSpec, UpdateSpec
from streamkeeper.errors import DeclarationError
from streamkeeper.support.json_values import read_as

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
"""Names of pipelines, flows, sources and views: they become folders, DAG ids and Spark source names."""

FILE_FORMATS = ("json", "csv", "parquet", "orc", "text")
"""Formats of a files source, as Spark's file readers name them."""

KAFKA, DELTA, RATE, SOCKET = "kafka", "delta", "rate", "socket"


@dataclass(frozen=True)
class Format:
    """What may be declared of a format of source, and asked of its rows.

    ``offsets`` is the shape of its offsets (:func:`streamkeeper.declare.offsets.kind_of`). With ``files`` it
    takes a folder and a schema, with ``table`` the path or name of a Delta table. ``starts`` are the declared
    starts that it allows, in words; empty if it is always read whole. ``records``: a declared start or the
    bounds of a backfill may be offsets. ``history``: rows that were read can be read again, by their time
    too. ``limit`` is the option that bounds what a batch reads; empty if there is none. ``columns`` are those
    that it always has, as a DDL string; empty if the files or the table have their own. With
    ``connection`` its rows come by a connection that each driver makes anew: none of them can be read again,
    and offsets start over at -1.
    """

    offsets: str
    files: bool = False
    table: bool = False
    starts: str = ""
    records: bool = False
    history: bool = True
    limit: str = "maxFilesPerTrigger"
    columns: str = ""
    connection: bool = False


FORMATS = {
    **dict.fromkeys(FILE_FORMATS, Format("files", files=True)),
    KAFKA: Format(
        "kafka",
        starts="'earliest', 'latest', 'timestamp:2026-11-21T10:00:00Z' or offsets such as"
        " {'orders': {'0': 5}}",
        records=True,
        limit="maxOffsetsPerTrigger",
        columns="key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
        " timestampType INT",
    ),
    DELTA: Format(
        "delta",
        table=True,
        starts="'earliest', 'latest', 'timestamp:2026-11-21T10:00:00Z' or 'version:12'",
    ),
    RATE: Format("rate", history=False, limit="", columns="timestamp TIMESTAMP, value BIGINT"),
    SOCKET: Format("rate", history=False, limit="", columns="value STRING", connection=True),
}
"""What may be declared of each format; how it behaves is a class in :mod:`streamkeeper.sources.formats`."""

REHEARSABLE = (
    "reset_checkpoint",
    "rewind",
    "full_refresh",
    "full_refresh_with_backup",
    "rebuild_without_downtime",
    "restore_table",
    "backfill",
)
"""Recoveries that can be rehearsed. ``adopt`` always tries its declaration on a copy."""

OUR_FOLDERS = ("ledger", "manifests", "tables")
"""Names that no flow and no pipeline may have: folders of Streamkeeper's own in the state folder."""

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Location:
    """Line of a pipeline file with a declaration."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Source:
    """Named stream of rows: files in a folder, topics of Kafka, a Delta table, Spark's rate or socket source.

    ``schema`` is a DDL string, or None if it is inferred once and stored with the generation; Kafka and Delta
    have their own. ``options`` go to Spark's reader; ``{env:NAME}`` in them stands for an environment
    variable of the reading process. A Delta source has a ``path``, or the name of a ``table`` of the
    warehouse, or the name that one is ``registered_as`` in the session catalog. ``start`` is the start of the
    first generation that reads it. ``track_schema`` keeps a log of a Delta source's schemas in the
    generation's checkpoint.
    """

    name: str
    format: str
    path: str | None
    schema: str | None
    options: Mapping[str, str]
    location: Location
    table: str | None = None
    start: str | Mapping[str, Any] = "earliest"
    track_schema: bool = False
    registered_as: str | None = None

    def option(self, name: str, default: str = "") -> str:
        """Return an option's value. Like Spark, the name is compared without regard to case."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), default)

    @property
    def takes_files(self) -> bool:
        """Whether a query removes or moves the files that it has read (``cleanSource``)."""
        return self.option("cleanSource").strip().lower() not in ("", "off")

    @property
    def reads_change_feed(self) -> bool:
        """Whether it gives the change feed of a Delta table, in place of its rows."""
        named = (self.option(name).strip().lower() for name in ("readChangeFeed", "readChangeData"))
        return self.kind.table and "true" in named

    @property
    def reads_files(self) -> bool:
        """Whether positions in this source are sets of files."""
        return self.kind.files

    @property
    def kind(self) -> Format:
        """What may be declared of the source's format, and asked of its rows."""
        return FORMATS[self.format]


@dataclass(frozen=True)
class View:
    """Function from one DataFrame per source to one DataFrame; sources are names of sources or views."""

    name: str
    sources: tuple[str, ...]
    code: str
    location: Location
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)


KEEP = "keep"
"""The allowed value of a table's ``existing_rows``."""

COMMITS, ROWS, SECONDS, WATERMARK = "commits", "rows", "seconds", "watermark"
"""Units of :class:`AssetEvery`."""


@dataclass(frozen=True)
class AssetEvery:
    """How often an asset event is posted for a table: after so many commits, rows or seconds with a commit,
    or for each span of ``amount`` seconds that the watermark has passed.
    """

    amount: int
    unit: str


A_MINUTE = AssetEvery(60, SECONDS)


@dataclass(frozen=True)
class Table:
    """Streaming table that flows write to, or a sink: then it has no rows, and its log says which batches the
    sink has. ``keys`` identify the rows that an update flow replaces. ``sink`` is the kind of a sink,
    ``code`` the hash of its ``function``, and ``properties`` the options of one that has no function.
    ``existing_rows`` is :data:`KEEP` if flows may begin beside rows that none of them wrote.
    ``registered_as`` is its name in the session catalog, ``schema.table``; ``column_comments`` are shown
    there, by column. ``asset_every`` is how often an asset event is posted; None means never.
    """

    name: str
    comment: str | None
    properties: Mapping[str, str]
    partition_cols: tuple[str, ...]
    location: Location
    keys: tuple[str, ...] = ()
    sink: str | None = None
    code: str = ""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    existing_rows: str | None = None
    registered_as: str | None = None
    column_comments: Mapping[str, str] = field(default_factory=dict)
    asset_every: AssetEvery | None = A_MINUTE


@dataclass(frozen=True)
class GivenState:
    """Initial state of a flow: rows that its query is given once, in its first batch.

    They are ``rows``, as JSON values by column, or those of a Delta ``table`` of the warehouse. ``schema`` is
    a DDL string; None if the table's own counts. ``path`` and ``version`` of the table are filled in by who
    reads it.
    """

    name: str
    schema: str | None
    location: Location
    rows: tuple[Mapping[str, Any], ...] = ()
    table: str | None = None
    path: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        if self.table is not None:
            return f"{self.name}, the table {self.table}"
        return f"{self.name}, {len(self.rows):,} {'row' if len(self.rows) == 1 else 'rows'}"


PARK, RETRY = "park", "retry"
"""Allowed values of a flow's ``on_failure``."""
PARK_AFTER, MOST_TRIES = 3, 100
"""Tries of a batch whose input is at fault, after which a flow is parked: by default, and at most."""

RESTART, TRY, ASK = "restart", "try", "ask"
"""Allowed values of a flow's ``on_change``."""

WARN, DROP, FAIL = "warn", "drop", "fail"
"""What becomes of a row that fails an expectation: it is written, it is dropped, or its batch is refused."""


@dataclass(frozen=True)
class Expectation:
    """Condition in SQL that the rows of a flow are expected to meet; a row for which it is null fails it.

    ``quarantine`` is the table for rows that this expectation drops. ``alert_above`` is the share of failed
    rows, from 0 to 1, above which an alert is sent; it is taken over the last ``alert_window`` batches.
    """

    name: str
    condition: str
    action: str
    location: Location
    quarantine: str | None = None
    alert_above: float | None = None
    alert_window: int = 1


FOREACH_BATCH, KAFKA_SINK = "foreach_batch", "kafka"
FILE_SINKS = ("parquet", "json", "csv")
"""Kinds of sinks: the function that gets each batch, the topics of Kafka, and files in a folder."""

APPEND, UPDATE, COMPLETE = "append", "update", "complete"
"""Output modes: update replaces rows of the same key, complete with each batch the whole table."""

AUTO_CDC = "auto_cdc"
"""With ``APPEND``, the values of a flow's ``kind`` in JSON: of one with a function, all have ``APPEND``, and
those without a kind in older JSON.
"""


@dataclass(frozen=True)
class AppendFlow:
    """Flow that writes the result of its function to its target: appends it, unless its ``mode`` is another.

    ``on_failure`` decides whether a failure that a restart cannot fix parks the flow or is retried, and
    ``park_after`` how many equal failures of a batch by its input are such a failure;
    ``on_change``, whether a changed declaration is tried before it replaces the one that runs. A flow that
    runs ``once`` stops when it has read the data of its sources, and its ``trigger`` has no effect. An update
    flow has the ``keys`` of its target. The function of one with an ``initial_state`` gets it as its last
    DataFrame.
    """

    name: str
    target: str
    sources: tuple[str, ...]
    code: str
    trigger: str
    spark_conf: Mapping[str, str]
    location: Location
    on_failure: str = PARK
    once: bool = False
    on_change: str = RESTART
    park_after: int = PARK_AFTER
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    expectations: tuple[Expectation, ...] = ()
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    initial_state: GivenState | None = None

    @property
    def spec(self) -> CdcSpec | None:
        """How its rows replace those of the same key; None unless it is an update flow."""
        return UpdateSpec.for_keys(self.keys) if self.mode == UPDATE else None

    @property
    def replaces(self) -> bool:
        """Whether what it writes replaces what it wrote: the results of its state, and not new rows."""
        return self.mode != APPEND


@dataclass(frozen=True)
class AutoCdcFlow:
    """Flow that applies the changes of its source to its target, by ``spec``; else as :class:`AppendFlow`."""

    name: str
    target: str
    source: str
    spec: CdcSpec
    trigger: str
    spark_conf: Mapping[str, str]
    location: Location
    on_failure: str = PARK
    once: bool = False
    on_change: str = RESTART
    park_after: int = PARK_AFTER
    expectations: tuple[Expectation, ...] = ()
    mode: ClassVar[str] = APPEND
    replaces: ClassVar[bool] = False
    initial_state: ClassVar[None] = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the flow's inputs: its one source or view."""
        return (self.source,)


AnyFlow = AppendFlow | AutoCdcFlow


def quarantine_of(flow: AnyFlow) -> str | None:
    """Return the name of the table for rows that a flow's expectations drop; None if they go nowhere."""
    return next((item.quarantine for item in flow.expectations if item.quarantine is not None), None)


@dataclass(frozen=True)
class Notifier:
    """Airflow notifier for a pipeline's alerts: the path of its class, and its arguments (JSON values)."""

    classpath: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Scheduled recovery: the name of a kind, the time (cron, in UTC), and the values of its form."""

    name: str
    recovery: str
    cron: str
    values: Mapping[str, Any]
    location: Location


DEFAULT_NO_PROGRESS = 1800.0
DEFAULT_BEHIND_FOR = 600.0
DEFAULT_LATE = 0.01


@dataclass(frozen=True)
class Pipeline:
    """All declarations of one pipeline file.

    ``shared`` is a hash of the file's code outside of the declared functions, and of the modules beside it
    that it imports. ``shared_driver`` runs its flows as queries of one Spark application.
    ``no_progress_after`` is in seconds: an alert is sent when a flow has data to read and commits nothing for
    that long. None means no such alert. ``behind_above`` and ``behind_for``, in seconds: one is sent when a
    flow has been further behind for so long; ``late_above``: when more than this share of its rows was
    dropped as late. ``rehearse`` names recoveries that must be rehearsed first. ``owner``, ``pool`` and
    ``connection`` are empty where those of the settings count; ``tags`` are added to those.
    """

    name: str
    file: str
    shared: str
    sources: tuple[Source, ...] = ()
    views: tuple[View, ...] = ()
    tables: tuple[Table, ...] = ()
    flows: tuple[AnyFlow, ...] = ()
    shared_driver: bool = False
    notifiers: tuple[Notifier, ...] = ()
    no_progress_after: float | None = DEFAULT_NO_PROGRESS
    behind_above: float | None = None
    behind_for: float = DEFAULT_BEHIND_FOR
    late_above: float | None = DEFAULT_LATE
    schedules: tuple[Schedule, ...] = ()
    rehearse: tuple[str, ...] = ()
    owner: str = ""
    tags: tuple[str, ...] = ()
    pool: str = ""
    connection: str = ""

    def source(self, name: str) -> Source | None:
        """Return a source by name, or None."""
        return next((source for source in self.sources if source.name == name), None)

    def view(self, name: str) -> View | None:
        """Return a view by name, or None."""
        return next((view for view in self.views if view.name == name), None)

    def table(self, name: str) -> Table | None:
        """Return a table by name, or None."""
        return next((table for table in self.tables if table.name == name), None)

    def sink_of(self, flow: AnyFlow) -> Table | None:
        """Return the sink that a flow writes; None if it writes a table."""
        table = self.table(flow.target)
        return table if table is not None and table.sink is not None else None

    def needs_write_lock(self, table: str) -> bool:
        """Return whether the writers of a table need its write lock: whether it is kept by key."""
        return any(flow.spec is not None and flow.target == table for flow in self.flows)

    def flow(self, name: str) -> AnyFlow | None:
        """Return a flow by name, or None."""
        return next((flow for flow in self.flows if flow.name == name), None)

    def inputs(self, flow: AnyFlow) -> tuple[Source | View, ...]:
        """Return every source and view that a flow reads, also through views, each once, inputs first."""
        inputs_by_name: dict[str, Source | View] = {}

        def visit(name: str) -> None:
            if name in inputs_by_name:
                return
            view = self.view(name)
            if view is not None:
                for inner in view.sources:
                    visit(inner)
                inputs_by_name[name] = view
            else:
                source = self.source(name)
                if source is None:  # only a damaged manifest names what is not declared
                    raise KeyError(name)
                inputs_by_name[name] = source

        for name in flow.sources:
            visit(name)
        return tuple(inputs_by_name.values())

    def sources_of(self, flow: AnyFlow) -> tuple[Source, ...]:
        """Return every source that a flow reads, each once, in order of first use."""
        return tuple(item for item in self.inputs(flow) if isinstance(item, Source))


def check_name(kind: str, name: object, location: Location) -> str:
    """Return ``name``, after a check that it can name a ``kind``.

    :raises DeclarationError: it is not a name: letters, digits and underscores, a letter first, 100 at most.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DeclarationError(
            f"{location}: the {kind} name {name!r} cannot be used. A name has letters, digits and"
            " underscores, starts with a letter, and is at most 100 long, because folders, DAG ids and"
            " Spark's source names are made of it."
        )
    return name


def pipeline_to_json(pipeline: Pipeline) -> JsonObject:
    """Return a pipeline as a JSON object, without its code."""
    plain: JsonObject = _plain(pipeline)
    for item, flow in zip(plain["flows"], pipeline.flows, strict=True):
        item["kind"] = AUTO_CDC if isinstance(flow, AutoCdcFlow) else APPEND
    return plain


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {
            item.name: _plain(getattr(value, item.name)) for item in fields(value) if item.name != "function"
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def pipeline_from_json(value: JsonObject) -> Pipeline:
    """Return a pipeline from a JSON object of :func:`pipeline_to_json`; its functions are None."""
    return replace(
        read_as(Pipeline, {**value, "flows": ()}), flows=tuple(map(_flow_from_json, value["flows"]))
    )


def _flow_from_json(value: JsonObject) -> AnyFlow:
    plain = {name: item for name, item in value.items() if name != "kind"}
    if value["kind"] == APPEND:
        return read_as(AppendFlow, plain)
    return read_as(AutoCdcFlow, plain)
