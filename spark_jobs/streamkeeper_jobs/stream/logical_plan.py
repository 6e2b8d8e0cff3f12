"""A query's logical plan in a form that two runs can be compared by."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

_IDS = re.compile(r"#[0-9]+L?|@[0-9a-f]{6,8}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Numbers of columns, hashes of objects and ids of watermarks, which each run gives anew (Spark 4.2.0)."""
_SOURCE = re.compile(r"^([\s:+|-]*).*StreamingRelation.*$")
_MOST_FIELDS = 10_000


def normal_plan(frame: DataFrame) -> tuple[str, ...]:
    """Return the lines of a query's analyzed plan, the same for each run of one declaration.

    A source is just ``source``: where it reads, and by which options, is not of the plan.
    """
    java: Any = frame._jdf
    text = str(java.queryExecution().analyzed().treeString(True, False, _MOST_FIELDS, False, False))
    return tuple(_SOURCE.sub(r"\1source", _IDS.sub("", line)).rstrip() for line in text.splitlines() if line)
