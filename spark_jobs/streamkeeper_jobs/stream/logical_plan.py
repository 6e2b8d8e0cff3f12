"""A query's logical plan in a form that two runs can be compared by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from streamkeeper_jobs.stream.given_state import NAME_IN_PLAN

_IDS = re.compile(r"#[0-9]+L?|@[0-9a-f]{6,8}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Numbers of columns, hashes of objects and ids of watermarks, which each run gives anew (Spark 4.2.0)."""
_SOURCE = re.compile(r"^([\s:+|-]*).*StreamingRelation.*$")
_MOST_FIELDS = 10_000


def normal_plan(frame: DataFrame) -> tuple[str, ...]:
    """Return the lines of a query's analyzed plan, the same for each run of one declaration.

    A source is just ``source``: where it reads, and by which options, is not of the plan. Nor is where the
    rows of an initial state come from: a query beyond its first batch is given none.
    """
    java: Any = frame._jdf
    text = str(java.queryExecution().analyzed().treeString(True, False, _MOST_FIELDS, False, False))
    lines = _without_given(line for line in text.splitlines() if line)
    return tuple(_SOURCE.sub(r"\1source", _IDS.sub("", line)).rstrip() for line in lines)


def _without_given(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what stands below the rows of an initial state."""
    below: int | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip(" :+-"))
        if below is None or depth <= below:
            below = depth if line[depth:] == f"SubqueryAlias {NAME_IN_PLAN}" else None
            yield line
