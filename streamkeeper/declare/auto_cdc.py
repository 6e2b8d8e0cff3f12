"""Checks of ``dp.create_auto_cdc_flow`` without Spark: names, lists that exclude each other, flows of one
table.

Only Spark knows a source's schema. So the driver checks that columns exist and can be ordered, and that
conditions parse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from streamkeeper.declare.cdc_spec import COMMIT_TIMESTAMP, COMMIT_VERSION, FEED_RULES, CdcSpec
from streamkeeper.declare.model import (
    COMPLETE,
    FILE_SINKS,
    UPDATE,
    AnyFlow,
    AppendFlow,
    AutoCdcFlow,
    Location,
    Pipeline,
    Source,
    Table,
)
from streamkeeper.errors import DeclarationError

Parameters = Mapping[str, object]
"""Parameters of ``create_auto_cdc_flow`` by name, as the pipeline file gave them."""

_LISTS = (
    "column_list",
    "except_column_list",
    "track_history_column_list",
    "track_history_except_column_list",
)
_SCD_TYPES: dict[object, int] = {1: 1, 2: 2, "1": 1, "2": 2}
_LEAST, _MOST = -(2**63), 2**63 - 1
"""Range of a literal sequence: a BIGINT."""


def read_spec(flow: str, parameters: Parameters, location: Location) -> CdcSpec:
    """Return the changes that an AUTO CDC flow declares.

    :raises DeclarationError: a parameter is not allowed; the message has file and line, what was found and
        what is allowed.
    """
    subject = f"{location}: the flow {flow}"
    feed = _truth(subject, "change_feed", parameters["change_feed"])
    if feed:
        _check_feed_alone(subject, parameters)
    sequence_by, literal = ((), None) if feed else _sequence(subject, parameters["sequence_by"])
    values: dict[str, Any] = {
        "keys": names_of(subject, "keys", parameters["keys"]),
        "sequence_by": sequence_by,
        "sequence_literal": literal,
        "ignore_null_updates": _truth(subject, "ignore_null_updates", parameters["ignore_null_updates"]),
        "scd_type": _scd_type(subject, parameters["stored_as_scd_type"]),
        **{
            name: _condition(subject, name, parameters[name])
            for name in ("apply_as_deletes", "apply_as_truncates")
        },
        **{
            name: None if parameters[name] is None else names_of(subject, name, parameters[name])
            for name in _LISTS
        },
    }
    try:
        spec = CdcSpec(**(values | FEED_RULES if feed else values), change_feed=feed)
    except DeclarationError as error:
        raise DeclarationError(f"{subject} is contradictory: {error}") from error
    _check_keys_stored(subject, spec)
    return spec


def check_feeds(pipeline: Pipeline) -> None:
    """Check that flows which apply a Delta table's change feed say so, and that it is one.

    :raises DeclarationError: a flow with ``change_feed`` reads something else, or several sources; or the
        commit alone orders the changes of a feed.
    """
    for flow in pipeline.flows:
        if not isinstance(flow, AutoCdcFlow):
            continue
        sources = pipeline.sources_of(flow)
        if flow.spec.change_feed:
            _check_is_feed(flow, sources)
        elif any(source.reads_change_feed for source in sources):
            _check_ranked(flow)


def _check_is_feed(flow: AutoCdcFlow, sources: Sequence[Source]) -> None:
    subject = f"{flow.location}: the flow {flow.name} has change_feed=True"
    if len(sources) > 1:
        raise DeclarationError(
            f"{subject} and reads {' and '.join(source.name for source in sources)}. Commits of one table"
            " have no order with those of another: give each feed a flow of its own, and keys that the other"
            " does not have."
        )
    [source] = sources
    if not source.reads_change_feed:
        raise DeclarationError(
            f"{subject}, and its source {source.name} ({source.location}) gives no change feed. Allowed is a"
            " Delta table: dp.create_source(…, format='delta', options={'readChangeFeed': True}), where the"
            " table has the property delta.enableChangeDataFeed. Or leave change_feed out, and say"
            " sequence_by."
        )


def _check_ranked(flow: AutoCdcFlow) -> None:
    """Raise if nothing ranks the changes of one commit."""
    named = {name.lower() for name in flow.spec.sequence_by}
    if named and named <= {COMMIT_VERSION, COMMIT_TIMESTAMP}:
        raise DeclarationError(
            f"{flow.location}: the flow {flow.name} orders a change feed by"
            f" {', '.join(flow.spec.sequence_by)} alone. A commit can delete a row and insert it again"
            " (MERGE, INSERT OVERWRITE): of two changes at one sequence the delete wins, and the row would be"
            " lost. Say change_feed=True in place of sequence_by and apply_as_deletes."
        )


def _check_feed_alone(subject: str, parameters: Parameters) -> None:
    others = [
        name
        for name in ("sequence_by", "apply_as_deletes", "apply_as_truncates")
        if parameters[name] is not None
    ]
    others += ["ignore_null_updates"] if parameters["ignore_null_updates"] else []
    if others:
        raise DeclarationError(
            f"{subject} has change_feed=True and {', '.join(others)}. A change feed has its own order and"
            " deletes, and its rows are whole: leave the others out, or change_feed."
        )


def check_tables(flows: Sequence[AnyFlow], tables: Mapping[str, Table]) -> None:
    """Check that flows which write one table can share it.

    :raises DeclarationError: a flow appends to a table that AUTO CDC keeps by key, or its AUTO CDC flows
        differ in keys, SCD type, ``ignore_null_updates``, tracked columns or the number of sequence columns;
        or an update or complete flow, or the flow of a sink of files, is not the only one.
    """
    for _, group in groupby(sorted(flows, key=lambda flow: flow.target), key=lambda flow: flow.target):
        together = sorted(group, key=lambda flow: flow.location.line)
        changes = [flow for flow in together if isinstance(flow, AutoCdcFlow)]
        _check_alone(together)
        _check_files(together, tables[together[0].target])
        appending = next((flow for flow in together if not isinstance(flow, AutoCdcFlow)), None)
        if changes and appending is not None:
            raise DeclarationError(
                f"{appending.location}: the flow {appending.name} appends to {appending.target}, whose rows"
                f" the AUTO CDC flow {changes[0].name} ({changes[0].location}) keeps by key. An appended row"
                " would have no sequence. Declare it with create_auto_cdc_flow too, or give it another table."
            )
        for other in changes[1:]:
            _check_alike(changes[0], other)


def _check_files(flows: Sequence[AnyFlow], table: Table) -> None:
    """Raise if two flows write a sink of files."""
    if table.sink in FILE_SINKS and len(flows) > 1:
        raise DeclarationError(
            f"{flows[1].location}: the flow {flows[1].name} writes the sink {table.name}, as {flows[0].name}"
            f" does ({flows[0].location}). Spark's log of a folder has room for one query: give it a sink of"
            " its own."
        )


def _check_alone(flows: Sequence[AnyFlow]) -> None:
    """Raise if another flow writes the table of an update or complete flow."""
    alone = next((flow for flow in flows if flow.replaces), None)
    other = next((flow for flow in flows if flow is not alone), None)
    if alone is None or other is None:
        return
    reasons = {
        UPDATE: "Of two flows, none would know which of their rows of a key is the later one",
        COMPLETE: "It would remove the other's rows",
    }
    raise DeclarationError(
        f"{other.location}: the flow {other.name} writes {other.target}, which the {alone.mode} flow"
        f" {alone.name} ({alone.location}) writes alone. {reasons[alone.mode]}. Give it another table."
    )


def with_keys(flow: AnyFlow, table: Table) -> AnyFlow:
    """Return an update flow with the keys of its table; another flow as it is.

    :raises DeclarationError: the table has no keys and needs some, or has some that nothing would use.
    """
    if table.sink is not None and (flow.replaces or isinstance(flow, AutoCdcFlow)):
        raise DeclarationError(
            f"{flow.location}: the flow {flow.name} writes the sink {table.name} ({table.location}), which"
            " takes rows that"
            " are appended. Declare it with dp.append_flow, or give it a table of dp.create_streaming_table."
        )
    if isinstance(flow, AppendFlow) and flow.mode == UPDATE:
        if not table.keys:
            raise DeclarationError(
                f"{flow.location}: the update flow {flow.name} writes {table.name}, which has no keys"
                f" ({table.location})."
                " A row replaces the one of the same key. Add them: dp.create_streaming_table("
                f"{table.name!r}, keys=['…']), the columns that the query groups by."
            )
        return replace(flow, keys=table.keys)
    if table.keys:
        own = "its own keys" if isinstance(flow, AutoCdcFlow) else "no use for them"
        raise DeclarationError(
            f"{table.location}: the table {table.name} has keys, and the flow {flow.name} ({flow.location})"
            f" has {own}. keys are for update flows (dp.update_flow): leave them out, or declare the flow as"
            " one."
        )
    return flow


def _check_alike(first: AutoCdcFlow, other: AutoCdcFlow) -> None:
    """Raise if the changes of two flows of one table cannot be compared."""
    of_sequence = first.spec.sequence_by and other.spec.sequence_by
    for name in ("keys", "scd_type", "ignore_null_updates", *_LISTS[2:], "change_feed", "sequence_by"):
        mine, theirs = getattr(first.spec, name), getattr(other.spec, name)
        if name == "sequence_by":
            alike = not of_sequence or len(mine) == len(theirs)
        else:
            alike = mine == theirs or (name == "change_feed" and not of_sequence)
        if not alike:
            parameter = "stored_as_scd_type" if name == "scd_type" else name
            mine, theirs = (list(one) if isinstance(one, tuple) else one for one in (mine, theirs))
            raise DeclarationError(
                f"{other.location}: the flow {other.name} writes {other.target} with {parameter}={theirs!r},"
                f" and the flow {first.name} ({first.location}) with {parameter}={mine!r}. Changes of one"
                " table are compared with one another, so its flows must agree there. Give both the same, or"
                " another table to one of them."
            )


def _sequence(subject: str, value: object) -> tuple[tuple[str, ...], int | None]:
    """Return the columns that order the changes and None, or no columns and the literal for all rows."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not _LEAST <= value <= _MOST:
            raise DeclarationError(
                f"{subject} has sequence_by={value}. A literal sequence must fit into a BIGINT: {_LEAST} to"
                f" {_MOST}."
            )
        return (), value
    if isinstance(value, str):
        return names_of(subject, "sequence_by", [value]), None
    if (
        _is_column(value)
        or isinstance(value, (bool, float))
        or value is None
        or not isinstance(value, Sequence)
    ):
        raise DeclarationError(
            f"{subject} has sequence_by={_shown(value)}. Allowed are the name of a column, a list of names"
            " that are compared in order, and a whole number, which is the sequence of every row; or"
            f" change_feed=True in its place.{_hint(value)}"
        )
    return names_of(subject, "sequence_by", value), None


def _scd_type(subject: str, value: object) -> int:
    scd_type = (
        None
        if isinstance(value, (bool, float)) or not isinstance(value, (int, str))
        else _SCD_TYPES.get(value)
    )
    if scd_type is None:
        raise DeclarationError(f"{subject} has stored_as_scd_type={_shown(value)}. Allowed are 1 and 2.")
    return scd_type


def names_of(subject: str, parameter: str, value: object) -> tuple[str, ...]:
    """Return one or more column names."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise DeclarationError(
            f"{subject} has {parameter}={_shown(value)}. Give a list of column names, such as"
            f" ['id'].{_hint(value)}"
        )
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise DeclarationError(
                f"{subject} has {_shown(item)} in {parameter}. Give the names of columns as"
                f" texts.{_hint(item)}"
            )
    return tuple(value)


def _truth(subject: str, parameter: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise DeclarationError(f"{subject} has {parameter}={_shown(value)}. Allowed are True and False.")
    return value


def _condition(subject: str, parameter: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(
            f"{subject} has {parameter}={_shown(value)}. Give a condition in SQL as a text, such as"
            ' "operation ='
            f" 'DELETE'\".{_hint(value)}"
        )
    return value


def _check_keys_stored(subject: str, spec: CdcSpec) -> None:
    keys = {name.lower(): name for name in spec.keys}
    if spec.column_list is not None:
        missing = [
            name for low, name in keys.items() if low not in {column.lower() for column in spec.column_list}
        ]
        if missing:
            raise DeclarationError(
                f"{subject} leaves its key {', '.join(missing)} out of column_list. A row is found by its"
                " keys: add it."
            )
    dropped = [name for name in spec.except_column_list or () if name.lower() in keys]
    if dropped:
        raise DeclarationError(
            f"{subject} has its key {', '.join(dropped)} in except_column_list. A row is found by its keys:"
            " take it out."
        )


def _is_column(value: object) -> bool:
    """Return whether a value is an expression of Spark's."""
    # Lakeflow takes such expressions, but declarations are read where there is no Spark.
    return type(value).__module__.partition(".")[0] == "pyspark"


def _hint(value: object) -> str:
    values = value if isinstance(value, (list, tuple)) else (value,)
    if not any(_is_column(item) for item in values):
        return ""
    return (
        " A declaration is read without Spark, so col(…), expr(…) and struct(…) cannot be in it: give the"
        " column's name, the condition's text, or a list of names."
    )


def _shown(value: object) -> str:
    return f"a pyspark {type(value).__name__}" if _is_column(value) else repr(value)
