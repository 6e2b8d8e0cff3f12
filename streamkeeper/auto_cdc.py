"""What ``dp.create_auto_cdc_flow`` may be given, checked without Spark: names, lists that exclude one another, flows that share a table.

Whether columns are there, can be ordered, and conditions parse is for the driver to say: only Spark knows a source's schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from streamkeeper.cdc import CdcSpec
from streamkeeper.declarations import AnyFlow, AutoCdcFlow, Where
from streamkeeper.errors import DeclarationError

Given = Mapping[str, object]
"""The parameters of ``create_auto_cdc_flow`` by name, as the pipeline file gave them."""

_SCD_TYPES: dict[object, int] = {1: 1, 2: 2, "1": 1, "2": 2}
_LEAST, _MOST = -(2**63), 2**63 - 1
"""A sequence is at most a BIGINT."""


def read_spec(flow: str, given: Given, where: Where) -> CdcSpec:
    """Give what an AUTO CDC flow does, from what its declaration says.

    :raises DeclarationError: with file and line, what was found and what is allowed.
    """
    said = f"{where}: the flow {flow}"
    sequence_by, literal = _sequence(said, given["sequence_by"])
    scd_type = _scd_type(said, given["stored_as_scd_type"])
    ignore = given["ignore_null_updates"]
    if not isinstance(ignore, bool):
        raise DeclarationError(f"{said} has ignore_null_updates={ignore!r}. Allowed are True and False.")
    spec = CdcSpec(
        keys=_names(said, "keys", given["keys"]),
        sequence_by=sequence_by,
        sequence_literal=literal,
        apply_as_deletes=_condition(said, "apply_as_deletes", given["apply_as_deletes"]),
        apply_as_truncates=_condition(said, "apply_as_truncates", given["apply_as_truncates"]),
        column_list=_optional_names(said, "column_list", given),
        except_column_list=_optional_names(said, "except_column_list", given),
        ignore_null_updates=ignore,
        scd_type=scd_type,
        track_history_column_list=_optional_names(said, "track_history_column_list", given),
        track_history_except_column_list=_optional_names(said, "track_history_except_column_list", given),
    )
    _check_lists(said, spec)
    _check_history(said, spec)
    return spec


def check_tables(flows: Sequence[AnyFlow]) -> None:
    """Make sure that flows which write one table can share it.

    :raises DeclarationError: rows are appended to a table that AUTO CDC keeps by key, or its flows differ in keys, SCD type or sequence.
    """
    for _, found in groupby(sorted(flows, key=lambda flow: flow.target), key=lambda flow: flow.target):
        together = sorted(found, key=lambda flow: flow.where.line)
        changes = [flow for flow in together if isinstance(flow, AutoCdcFlow)]
        appending = next((flow for flow in together if not isinstance(flow, AutoCdcFlow)), None)
        if changes and appending is not None:
            raise DeclarationError(
                f"{appending.where}: the flow {appending.name} appends to {appending.target}, whose rows the AUTO CDC flow "
                f"{changes[0].name} ({changes[0].where}) keeps by key. An appended row would have no sequence. Declare it with "
                "create_auto_cdc_flow too, or give it another table."
            )
        for other in changes[1:]:
            _check_alike(changes[0], other)


def _check_alike(first: AutoCdcFlow, other: AutoCdcFlow) -> None:
    """Refuse two flows of one table whose changes could not be compared with one another."""
    differences = {
        "keys": (list(first.spec.keys), list(other.spec.keys)),
        "stored_as_scd_type": (first.spec.scd_type, other.spec.scd_type),
        "ignore_null_updates": (first.spec.ignore_null_updates, other.spec.ignore_null_updates),
        "track_history_column_list": (first.spec.track_history_column_list, other.spec.track_history_column_list),
        "track_history_except_column_list": (
            first.spec.track_history_except_column_list,
            other.spec.track_history_except_column_list,
        ),
    }
    if first.spec.sequence_by and other.spec.sequence_by and len(first.spec.sequence_by) != len(other.spec.sequence_by):
        differences["sequence_by"] = (list(first.spec.sequence_by), list(other.spec.sequence_by))
    for name, (mine, theirs) in differences.items():
        if mine != theirs:
            raise DeclarationError(
                f"{other.where}: the flow {other.name} writes {other.target} with {name}={theirs!r}, and the flow {first.name} "
                f"({first.where}) with {name}={mine!r}. Changes of one table are compared with one another, so its flows must agree there. "
                "Give both the same, or another table to one of them."
            )


def _sequence(said: str, value: object) -> tuple[tuple[str, ...], int | None]:
    """Give the columns that order the changes, or the literal that stands for all of them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not _LEAST <= value <= _MOST:
            raise DeclarationError(f"{said} has sequence_by={value}. A literal sequence must fit into a BIGINT: {_LEAST} to {_MOST}.")
        return (), value
    if isinstance(value, str):
        return _names(said, "sequence_by", [value]), None
    if _is_column(value) or isinstance(value, (bool, float)) or value is None or not isinstance(value, Sequence):
        raise DeclarationError(
            f"{said} has sequence_by={_shown(value)}. Allowed are the name of a column, a list of names that are compared in order, and a "
            f"whole number, which is the sequence of every row.{_hint(value)}"
        )
    return _names(said, "sequence_by", value), None


def _scd_type(said: str, value: object) -> int:
    found = None if isinstance(value, (bool, float)) or not isinstance(value, (int, str)) else _SCD_TYPES.get(value)
    if found is None:
        raise DeclarationError(f"{said} has stored_as_scd_type={_shown(value)}. Allowed are 1 and 2.")
    return found


def _names(said: str, what: str, value: object) -> tuple[str, ...]:
    """Give a list of one or more different column names."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise DeclarationError(f"{said} has {what}={_shown(value)}. Give a list of column names, such as ['id'].{_hint(value)}")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise DeclarationError(f"{said} has {_shown(item)} in {what}. Give the names of columns as texts.{_hint(item)}")
    names = tuple(value)
    twice = sorted({name for name in names if sum(name.lower() == other.lower() for other in names) > 1})
    if twice:
        raise DeclarationError(f"{said} names {', '.join(twice)} twice in {what}. Name each column once.")
    return names


def _optional_names(said: str, what: str, given: Given) -> tuple[str, ...] | None:
    return None if given[what] is None else _names(said, what, given[what])


def _condition(said: str, what: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(
            f"{said} has {what}={_shown(value)}. Give a condition in SQL as a text, such as \"operation = 'DELETE'\".{_hint(value)}"
        )
    return value


def _check_lists(said: str, spec: CdcSpec) -> None:
    if spec.column_list is not None and spec.except_column_list is not None:
        raise DeclarationError(f"{said} has both column_list and except_column_list. Give one of them, or none to store every column.")
    keys = {name.lower(): name for name in spec.keys}
    if spec.column_list is not None:
        missing = [name for low, name in keys.items() if low not in {column.lower() for column in spec.column_list}]
        if missing:
            raise DeclarationError(f"{said} leaves its key {', '.join(missing)} out of column_list. A row is found by its keys: add it.")
    dropped = [name for name in spec.except_column_list or () if name.lower() in keys]
    if dropped:
        raise DeclarationError(f"{said} has its key {', '.join(dropped)} in except_column_list. A row is found by its keys: take it out.")


def _check_history(said: str, spec: CdcSpec) -> None:
    """Refuse what only one of the two SCD types can do."""
    tracked = [
        name
        for name, value in (
            ("track_history_column_list", spec.track_history_column_list),
            ("track_history_except_column_list", spec.track_history_except_column_list),
        )
        if value is not None
    ]
    if len(tracked) == 2:
        raise DeclarationError(f"{said} has both {tracked[0]} and {tracked[1]}. Give one of them, or none to track every column.")
    if tracked and spec.scd_type != 2:
        raise DeclarationError(f"{said} has {tracked[0]}, but keeps no history. Leave it out, or set stored_as_scd_type=2.")
    if spec.apply_as_truncates is not None and spec.scd_type != 1:
        raise DeclarationError(
            f"{said} has apply_as_truncates and stored_as_scd_type=2. A history cannot be truncated: leave the one out, or keep SCD type 1."
        )


def _is_column(value: object) -> bool:
    """Say whether a value is an expression of Spark's: Lakeflow takes them, but declarations are read where there is no Spark."""
    return type(value).__module__.partition(".")[0] == "pyspark"


def _hint(value: object) -> str:
    values = value if isinstance(value, (list, tuple)) else (value,)
    if not any(_is_column(item) for item in values):
        return ""
    return (
        " A declaration is read without Spark, so col(…), expr(…) and struct(…) cannot be in it: give the column's name, the condition's "
        "text, or a list of names."
    )


def _shown(value: object) -> str:
    return f"a pyspark {type(value).__name__}" if _is_column(value) else repr(value)
