"""Condition on rows that a person typed, as Spark's own parser reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamkeeper.errors import RequestError
from streamkeeper.sources import predicate as conditions

_CATALYST = "org.apache.spark.sql.catalyst"
_SUB_QUERY = f"{_CATALYST}.expressions.SubqueryExpression"
_FUNCTION = f"{_CATALYST}.analysis.UnresolvedFunction"
_NAMED_BY_TEXT = f"{_CATALYST}.analysis.ExpressionWithUnresolvedIdentifier"


def check_predicate(spark: SparkSession, predicate: str) -> None:
    """Check that a condition looks at columns alone.

    :raises RequestError: it has a sub-query, or calls a function that reaches outside of the row.
    :raises PySparkException: it is no expression of SQL.
    """
    reason = conditions.why_refused(predicate)
    gateway = spark.sparkContext._gateway
    if reason is None:
        tree = spark._jsparkSession.sessionState().sqlParser().parseExpression(predicate)
        reason = next((why for node in _nodes(tree) if (why := _why(gateway, node)) is not None), None)
    if reason is not None:
        raise RequestError(f"{reason[0].upper()}{reason[1:]} Nothing was read. Plan the backfill again.")


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _why(gateway: Any, node: Any) -> str | None:
    if is_instance_of(gateway, node, _SUB_QUERY):
        return f"the predicate has {conditions.SUB_QUERY}."
    if is_instance_of(gateway, node, _NAMED_BY_TEXT):
        return f"the predicate calls identifier, which {conditions.OUTSIDE['identifier']}."
    if is_instance_of(gateway, node, _FUNCTION):
        name = str(node.nameParts().last()).lower()
        if name in conditions.OUTSIDE:
            return f"the predicate calls {name}, which {conditions.OUTSIDE[name]}."
    return None
