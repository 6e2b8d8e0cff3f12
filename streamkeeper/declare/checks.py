"""Checks of a declaration's values, each of which raises :class:`DeclarationError` with the file's line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamkeeper.checkpoint.log_entries import CHANGELOG, PROVIDER, WATERMARK_POLICY
from streamkeeper.declare.checkpoint_window import TRIGGER
from streamkeeper.declare.driver import Driver, check_settings
from streamkeeper.declare.model import (
    A_MINUTE,
    ASK,
    COMMITS,
    DROP,
    MOST_TRIES,
    OUR_FOLDERS,
    PARK,
    RESTART,
    RETRY,
    ROWS,
    SECONDS,
    TRY,
    WATERMARK,
    AssetEvery,
    Expectation,
    GivenState,
    Location,
    Table,
    check_name,
)
from streamkeeper.declare.registry import Registry, listed
from streamkeeper.errors import DeclarationError
from streamkeeper.redaction import redact
from streamkeeper.settings import AIRFLOW_NAME, pipeline_connections, pipeline_env, why_refused_place
from streamkeeper.support import connections
from streamkeeper.support.ddl import Column, as_json, columns_of
from streamkeeper.support.user_environment import variables_in, why_refused

DEFAULT_TRIGGER = "10 seconds"
_REGISTERED = re.compile(r"[A-Za-z0-9_]{1,100}\.[A-Za-z0-9_]{1,100}", re.ASCII)
_DURATION = re.compile(r"([1-9][0-9]{0,8}) (second|minute|hour|day)s?")
_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_COUNT = re.compile(r"([1-9][0-9]{0,14}) (commit|row)s?")
_SPANS = {"watermark hour": 3600, "watermark day": 86400}
_OURS = ("path", "checkpointlocation", "schema", "startingoffsets", "startingversion", "startingtimestamp")


def new_flow(registry: Registry, name: object, location: Location) -> str:
    """Return a flow's name, after a check that it is valid and that no other flow has it."""
    flow = check_name("flow", name, location)
    if flow.lower() in OUR_FOLDERS:
        raise DeclarationError(
            f"{location}: the flow name {flow!r} cannot be used: beside the folders of a pipeline's flows,"
            f" Streamkeeper keeps its own {listed(OUR_FOLDERS)}. Give the flow another name."
        )
    if flow in registry.flows:
        raise DeclarationError(
            f"{location}: the flow {flow} is declared at {registry.flows[flow].location} already. Rename one"
            " of the two."
        )
    return flow


def how_often(flow: str, trigger: object, once: object, location: Location) -> str:
    """Return how often a flow looks for data; without effect for a once flow."""
    if not isinstance(once, bool):
        raise DeclarationError(f"{location}: flow {flow} has once={once!r}. Allowed are True and False.")
    if once and trigger is not None:
        raise DeclarationError(
            f"{location}: flow {flow} runs once and has the trigger {trigger!r}. It ends when it has read"
            " what is there: leave trigger out."
        )
    often = DEFAULT_TRIGGER if trigger is None else trigger
    if not isinstance(often, str) or not TRIGGER.fullmatch(often):
        raise DeclarationError(
            f"{location}: flow {flow} has the trigger {often!r}. Allowed is a number and a unit, such as '10"
            " seconds'."
        )
    return often


def check_park_after(flow: str, park_after: object, location: Location) -> None:
    """Check a flow's ``park_after``."""
    if isinstance(park_after, bool) or not isinstance(park_after, int) or not 1 <= park_after <= MOST_TRIES:
        raise DeclarationError(
            f"{location}: flow {flow} has park_after {park_after!r}. Allowed is a whole number from 1 to"
            f" {MOST_TRIES}: the tries of a batch whose input is at fault, after which the flow is parked."
        )


def check_policies(flow: str, on_failure: object, on_change: object, once: bool, location: Location) -> None:
    """Check a flow's ``on_failure`` and ``on_change``."""
    if on_failure not in (PARK, RETRY):
        raise DeclarationError(
            f"{location}: flow {flow} has on_failure {on_failure!r}. Allowed are {PARK!r} and {RETRY!r}."
        )
    if on_change not in (RESTART, TRY, ASK):
        raise DeclarationError(
            f"{location}: flow {flow} has on_change {on_change!r}. Allowed are {RESTART!r}, {TRY!r} and"
            f" {ASK!r}."
        )
    if once and on_change != RESTART:
        raise DeclarationError(
            f"{location}: flow {flow} runs once and has on_change {on_change!r}. It ends by itself: leave"
            " on_change out."
        )


def check_new(registry: Registry, name: str, location: Location) -> None:
    """Check that no source, view or initial state has the name already."""
    for taken in (registry.sources.get(name), registry.views.get(name), registry.initial_states.get(name)):
        if taken is not None:
            raise DeclarationError(
                f"{location}: the name {name} is declared at {taken.location} already. Rename one of the two."
            )


def check_named_table(name: object, location: Location) -> None:
    """Check the name of a table of the warehouse."""
    parts = name.split(".") if isinstance(name, str) else [name]
    for part in parts:
        check_name("table", part, location)
    if len(parts) > 2:
        raise DeclarationError(
            f"{location}: the table name {name!r} has more than one dot. Allowed are `table` and"
            " `schema.table`."
        )


def check_table_name(registry: Registry, name: object, location: Location) -> None:
    """Check a table's name: valid, not Streamkeeper's own, its folder neither in nor around another's."""
    check_named_table(name, location)
    for other, taken in registry.tables.items():
        if other == name:
            raise DeclarationError(
                f"{location}: the table {name} is declared at {taken.location} already. Remove one of the"
                " two."
            )
        if are_nested(str(name), other):
            raise DeclarationError(nested(location, str(name), other, taken.location))


def check_registered(subject: str, name: object, location: Location) -> None:
    """Check the name of a table in the session catalog; None is none."""
    if name is not None and (not isinstance(name, str) or not _REGISTERED.fullmatch(name)):
        raise DeclarationError(
            f"{location}: {subject} has registered_as={name!r}. Allowed is `schema.table` of the session"
            " catalog, such as 'shop.customers': two parts of letters, digits and underscores."
        )


def check_registered_once(registry: Registry, table: Table) -> None:
    """Check that no other table of a file has the same name in the session catalog, where case is equal."""
    for other in registry.tables.values():
        if is_same_name(table.registered_as, other.registered_as):
            raise DeclarationError(
                f"{table.location}: the table {table.name} is registered_as {table.registered_as!r}, and so"
                f" is the table {other.name} ({other.location}). Give each a name of its own."
            )


def is_same_name(one: str | None, other: str | None) -> bool:
    """Return whether two names in the session catalog are one; None is none."""
    return one is not None and other is not None and one.lower() == other.lower()


def column_comments_of(table: str, schema: object, location: Location) -> dict[str, str]:
    """Return the comments of a table's columns, from the ``schema`` of a declaration."""
    if schema is None:
        return {}
    if not isinstance(schema, Mapping) or not all(
        isinstance(text, str) and text.strip() for item in schema.items() for text in item
    ):
        raise DeclarationError(
            f"{location}: the table {table} has the schema {schema!r}. Allowed is a dict of comments by"
            " column, such as {'id': 'number of the customer'}; the columns themselves come from its flows."
        )
    return dict(schema)


def are_nested(one: str, other: str) -> bool:
    """Return whether of two tables one's folder lies in the other's."""
    return other.startswith(f"{one}.") or one.startswith(f"{other}.")


def nested(location: Location, name: str, other: str, declared: Location) -> str:
    """Return the error of nested tables; ``declared`` is where the other one is declared."""
    return (
        f"{location}: the table {name} and the table {other} ({declared}) would lie in one another's"
        " folder, where a VACUUM of one removes the files of the other. Rename one of the two, or"
        " put both into a schema."
    )


def duration(subject: str, value: object, location: Location) -> float | None:
    """Return a duration such as ``30 minutes`` in seconds; None for None."""
    if value is None:
        return None
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise DeclarationError(
            f"{location}: {subject} is {value!r}. Allowed is a number and a unit, such as '30 minutes', or"
            " None."
        )
    return int(match[1]) * _SECONDS[match[2]]


def asset_every_of(table: str, value: object, location: Location) -> AssetEvery | None:
    """Return how often an asset event is posted for a table; None for None.

    :raises DeclarationError: it is none of the texts that are allowed, or less than a minute.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value in _SPANS:
            return AssetEvery(_SPANS[value], WATERMARK)
        if match := _COUNT.fullmatch(value):
            return AssetEvery(int(match[1]), COMMITS if match[2] == "commit" else ROWS)
        match = _DURATION.fullmatch(value)
        seconds = 0.0 if match is None else int(match[1]) * _SECONDS[match[2]]
        if seconds >= A_MINUTE.amount:
            return AssetEvery(int(seconds), SECONDS)
    raise DeclarationError(
        f"{location}: the table {table} has asset_every={value!r}. Allowed are a time of a minute or more,"
        " such as '5 minutes'; a number of commits or rows, such as '100 commits' or '50000 rows'; 'watermark"
        " hour' and 'watermark day'; and None, for no asset events."
    )


def share(subject: str, value: object, location: Location) -> float | None:
    """Return a share from 0 to below 1; None for None."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise DeclarationError(
            f"{location}: {subject} is {value!r}. Allowed is a share of the rows, such as 0.05 for 5 %, or"
            " None."
        )
    return float(value)


def airflow_name(subject: str, value: object, location: Location) -> str:
    """Return the name of something of Airflow's; empty for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not AIRFLOW_NAME.fullmatch(value):
        raise DeclarationError(
            f"{location}: {subject} is {value!r}. Allowed are 1 to 100 letters, digits, blanks and _ . -."
        )
    return value


def spark_connection(value: object, location: Location) -> str:
    """Return the name of the connection by which drivers are submitted; empty for None."""
    name = airflow_name("connection", value, location)
    if " " in name:
        raise DeclarationError(f"{location}: connection is {value!r}. Leave the blanks out: no id has any.")
    refused = connections.why_refused([f"{name}.host"] if name else (), pipeline_connections())
    if refused is not None:
        raise DeclarationError(f"{location}: connection: {refused}.")
    return name


def expectations_of(
    conditions: object,
    action: str,
    location: Location,
    quarantine: object = None,
    alert: tuple[object, object] = (None, 1),
) -> tuple[Expectation, ...]:
    """Return the expectations of a dict of names and conditions. Whether a condition parses, only Spark
    knows.

    :param alert: the share of failed rows to alert above, or None, and the batches that it is taken over.
    """
    alert_above, alert_window = alert
    if not isinstance(conditions, Mapping) or not conditions:
        raise DeclarationError(
            f"{location}: the expectations are {conditions!r}. Give a dict of names and conditions, such as"
            " {'valid id': 'id IS NOT NULL'}."
        )
    for name, condition in conditions.items():
        for part, value in (("name", name), ("condition", condition)):
            if not isinstance(value, str) or not value.strip():
                raise DeclarationError(
                    f"{location}: the expectation {name!r} has the {part} {value!r}. Give a text; a condition"
                    " is one in SQL, such as 'id IS NOT NULL'."
                )
    if quarantine is not None and (action != DROP or not isinstance(quarantine, str)):
        raise DeclarationError(
            f"{location}: the expectations have the quarantine {quarantine!r}. Allowed is the name of a"
            " table, and only where rows are dropped (expect_or_drop, expect_all_or_drop)."
        )
    above = share("alert_above of the expectations", alert_above, location)
    if isinstance(alert_window, bool) or not isinstance(alert_window, int) or not 1 <= alert_window <= 1000:
        raise DeclarationError(
            f"{location}: the expectations have alert_window {alert_window!r}. Allowed is a number of batches"
            " from 1 to 1000."
        )
    return tuple(
        Expectation(name, condition, action, location, quarantine, above, alert_window)
        for name, condition in conditions.items()
    )


def check_text(subject: str, value: object, location: Location) -> None:
    """Check that a value is a text or None."""
    if value is not None and not isinstance(value, str):
        raise DeclarationError(
            f"{location}: the {subject} is {value!r}, of type {type(value).__name__}. Give a text, or leave"
            " it out."
        )


def filled_path(path: object, subject: str, registry: Registry, location: Location) -> str:
    """Return the path of a source or a sink with ``{data}`` filled in, without a slash at its end."""
    if "{data}" in str(path) and not registry.data:
        raise DeclarationError(
            f"{location}: the path {path!r} of {subject} begins in the data folder, and there is none. Set"
            " STREAMKEEPER_DATA, or give the path in full."
        )
    try:
        filled = str(path).format(data=registry.data)
    except (KeyError, IndexError, ValueError) as error:
        raise DeclarationError(
            f"{location}: the path {path!r} of {subject} cannot be filled in ({error!r}). Only {{data}} is"
            " known."
        ) from error
    if "://" not in filled and not filled.startswith("/"):
        raise DeclarationError(
            f"{location}: the path {path!r} of {subject} is relative. Start it with {{data}}/, with /, or"
            " with a URL's scheme."
        )
    if (refused := why_refused_place(filled)) is not None:
        raise DeclarationError(f"{location}: the path of {subject}: {refused}")
    return filled.rstrip("/") or "/"


BY_NAME = (
    "put the secret into a connection of Airflow's, or an environment variable of the driver, and write"
    " '{conn:NAME.password}' or '{env:NAME}' here."
)
_OF_SPARK = (
    "it is given to spark-submit as an argument. Put it into spark-defaults.conf (SPARK_CONF_DIR), or into a"
    " credential store that spark.hadoop.hadoop.security.credential.provider.path names."
)


def options_of(
    subject: str,
    options: object,
    location: Location,
    reserved: Sequence[str] = _OURS,
    *,
    called: str = "option",
    instead: str = BY_NAME,
) -> dict[str, str]:
    """Return options as texts, after a check that none is reserved for Streamkeeper, and that none is a
    secret, by its name or by the form of its value.

    :param called: what one of them is called.
    :param instead: where a secret belongs, as the error says it.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise DeclarationError(
            f"{location}: the options of {subject} are {options!r}. Give a dict of names and values."
        )
    plain: dict[str, str] = {}
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float, bool)):
            raise DeclarationError(
                f"{location}: the option {key!r}: {value!r} of {subject} cannot be used. Give a name with a"
                " text, a number or a truth value."
            )
        if key.lower() in reserved:
            raise DeclarationError(
                f"{location}: the option {key!r} of {subject} is Streamkeeper's own to set: path and schema"
                " are parameters of create_source, and positions belong to the flow's generation. Leave it"
                " out."
            )
        plain[key] = str(value).lower() if isinstance(value, bool) else str(value)
        if _holds_secret(key, plain[key]):
            raise DeclarationError(
                f"{location}: {subject} has a secret in its {called} {key!r}. What is declared is kept in the"
                f" manifest, for all to read: {instead}"
            )
    return plain


def _holds_secret(key: str, value: str) -> bool:
    if "{env:" in value or "{conn:" in value:
        return False
    named = {"" if key.endswith("keytab") else key: value}
    return bool(redact(named) != named)


def check_variables(subject: str, options: Mapping[str, str], location: Location) -> None:
    """Check that pipelines may see the variables and connections in options, and their fields."""
    values = options.values()
    refused = why_refused(variables_in(values), pipeline_env()) or connections.why_refused(
        connections.names_in(values), pipeline_connections()
    )
    if refused is not None:
        raise DeclarationError(f"{location}: {subject}: {refused}.")
    wrong = connections.malformed(options.values())
    if wrong is not None:
        raise DeclarationError(
            f"{location}: {subject} has {wrong!r} in an option. Allowed is {{conn:NAME.FIELD}} with"
            f" {connections.FIELDS} for FIELD, such as {{conn:orders_db.password}}."
        )


_STORES = "org.apache.spark.sql.execution.streaming.state"
STATE_STORES: Mapping[str, Mapping[str, str]] = {
    "default": {PROVIDER: f"{_STORES}.HDFSBackedStateStoreProvider"},
    "rocksdb": {PROVIDER: f"{_STORES}.RocksDBStateStoreProvider", CHANGELOG: "true"},
}
"""Spark settings of each declared ``state_store``."""
WATERMARK_POLICIES: Mapping[str, Mapping[str, str]] = {
    policy: {WATERMARK_POLICY: policy} for policy in ("min", "max")
}
"""Spark settings of each declared ``watermark_policy``."""


def conf_of(
    flow: str,
    conf: object,
    location: Location,
    *,
    state_store: object = None,
    watermark_policy: object = None,
    driver: object = None,
) -> dict[str, str]:
    """Return a flow's Spark settings: those that it gives, those that its driver needs, and those of its
    state that have names here.

    :raises DeclarationError: a setting is a secret or has ``{env:…}`` in it, a name is unknown, or a setting
        is given both ways.
    """
    settings = spark_conf_of(f"flow {flow}", conf, location)
    if driver is not None:
        needed = checked_driver(driver, location).conf
        twice = next((setting for setting in needed if setting in settings), None)
        if twice is not None:
            raise DeclarationError(
                f"{location}: the flow {flow} sets {twice} in its spark_conf and by its driver. Leave one of"
                " them out."
            )
        settings.update(needed)
    for name, choice, choices in (
        ("state_store", state_store, STATE_STORES),
        ("watermark_policy", watermark_policy, WATERMARK_POLICIES),
    ):
        if choice is None:
            continue
        if not isinstance(choice, str) or choice not in choices:
            raise DeclarationError(
                f"{location}: the flow {flow} has {name} {choice!r}. Allowed are {listed(choices)}."
            )
        twice = next((setting for setting in choices[choice] if setting in settings), None)
        if twice is not None:
            raise DeclarationError(
                f"{location}: the flow {flow} has {name} {choice!r} and sets {twice} to {settings[twice]!r},"
                f" which {name} sets. Leave one of them out."
            )
        settings.update(choices[choice])
    return settings


def checked_driver(driver: object, location: Location) -> Driver:
    """Return what ``driver=`` was given."""
    if not isinstance(driver, Driver):
        raise DeclarationError(
            f"{location}: driver is {driver!r}. Give what a driver needs: dp.driver(driver_memory='2g', …)."
        )
    return driver


def spark_conf_of(subject: str, conf: object, location: Location) -> dict[str, str]:
    """Return Spark settings as texts, after a check that none is a secret, has ``{env:…}`` in it, or is
    Streamkeeper's to set.

    :param subject: whose they are, such as ``flow f``.
    """
    # Settings are in the manifest and in the application's command line, which all users of a host can read.
    plain = options_of(f"the {subject}", conf, location, reserved=(), called="spark_conf", instead=_OF_SPARK)
    check_settings(subject, plain, location)
    for name, value in plain.items():
        if "{env:" in value or "{conn:" in value:
            raise DeclarationError(
                f"{location}: the {subject} has {name}={value!r} in its spark_conf. Only options of sources"
                " take {env:NAME} and {conn:NAME.FIELD}: Spark would get the text as it stands. Give"
                " the value itself, or put the setting into spark-defaults.conf (SPARK_CONF_DIR)."
            )
    return plain


def inputs_of(
    subject: str,
    function: Callable[..., Any],
    sources: object,
    location: Location,
    initial_state: GivenState | None = None,
) -> tuple[str, ...]:
    """Return a function's inputs, after a check that it takes a parameter for each, the state's last."""
    if (
        isinstance(sources, str)
        or not isinstance(sources, Sequence)
        or not sources
        or not all(isinstance(item, str) for item in sources)
    ):
        raise DeclarationError(
            f"{location}: the sources of {subject} are {sources!r}. Give a list of one or more names, such as"
            " ['events']."
        )
    try:
        inspect.signature(function).bind(*sources, *(() if initial_state is None else (initial_state.name,)))
    except TypeError as error:
        raise DeclarationError(
            f"{location}: {subject} has {len(sources)} sources ({listed(sources)})"
            f"{'' if initial_state is None else f' and the initial state {initial_state.name}'} but its"
            f" function takes {inspect.signature(function)}: {error}. Give it one parameter for each source,"
            f" in the same order{'' if initial_state is None else ', and a last one for the initial state'}."
        ) from error
    return tuple(sources)


MOST_ROWS = 1000
"""Most rows of an initial state that stand in a pipeline file: the manifest holds them."""


def initial_state_of(registry: Registry, flow: str, name: object, location: Location) -> GivenState | None:
    """Return the initial state that a flow takes by name; None if it takes none."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in registry.initial_states:
        raise DeclarationError(
            f"{location}: the flow {flow} has the initial_state {name!r}. Declared above it are"
            f" {listed(registry.initial_states)}. Give one of these names, or declare it with"
            " dp.create_initial_state."
        )
    return registry.initial_states[name]


def schema_columns(subject: str, schema: object, location: Location) -> tuple[Column, ...]:
    """Return the columns of a schema that is given as DDL."""
    try:
        return columns_of(str(schema))
    except ValueError as error:
        raise DeclarationError(
            f"{location}: {subject} has the schema {schema!r}: {error}. Give columns in DDL, such as"
            " 'fruit STRING, pieces BIGINT'."
        ) from error


def checked_rows(name: str, rows: object, schema: str, location: Location) -> tuple[Mapping[str, Any], ...]:
    """Return the rows of an initial state as JSON values, after a check of each against the schema."""
    subject = f"the initial state {name}"
    columns = schema_columns(subject, schema, location)
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Sequence) or len(rows) > MOST_ROWS:
        rows_text = f"{len(rows):,} rows" if isinstance(rows, Sequence) else repr(rows)
        raise DeclarationError(
            f"{location}: {subject} has as rows {rows_text}. Allowed is a list of at most {MOST_ROWS:,}"
            " dicts, such as [{'fruit': 'apple', 'pieces': 3}]; more belong into a table (table=…)."
        )
    return tuple(
        _checked_row(f"{location}: row {at} of {subject}", row, columns) for at, row in enumerate(rows, 1)
    )


def _checked_row(subject: str, row: object, columns: Sequence[Column]) -> Mapping[str, Any]:
    names = [column.name for column in columns]
    if not isinstance(row, Mapping) or set(row) != set(names):
        raise DeclarationError(
            f"{subject} is {row!r}. Give a dict with one value for each column of the schema:"
            f" {listed(names)}; None where there is none."
        )
    try:
        plain = {name: as_json(row[name]) for name in names}
    except TypeError as error:
        raise DeclarationError(
            f"{subject} cannot be used: {error}. Allowed are texts, numbers, truth values, dates, times,"
            " None, and lists and dicts of them."
        ) from error
    for column in columns:
        misfit = column.misfit(plain[column.name])
        if misfit is not None:
            raise DeclarationError(
                f"{subject} has {column.name} {row[column.name]!r}, and {column.name} is {column.type}. Give"
                f" {misfit}."
            )
    return plain
