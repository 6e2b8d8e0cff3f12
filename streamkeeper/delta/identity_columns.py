"""Identity columns in a Delta table's schema. Each has a mark, the last value given, which every append
moves.
"""

from __future__ import annotations

import json
from typing import Any

_STEP, _MARK = "delta.identity.step", "delta.identity.highWaterMark"


def without_marks(schema: str) -> str:
    """Return a schema, as in the log, without the marks of its identity columns; unchanged if it has none."""
    if _STEP not in schema:
        return schema
    value = json.loads(schema)
    for metadata in _identities(value).values():
        metadata.pop(_MARK, None)
    return json.dumps(value)


def with_later_marks(schema: str, other: str) -> str:
    """Return a schema whose identity columns continue after the last value of either of two tables, so that
    no value repeats.

    :param other: the schema of the other table; columns that are missing there keep their mark.
    """
    if _STEP not in schema:
        return schema
    value, theirs = json.loads(schema), _identities(json.loads(other))
    for name, metadata in _identities(value).items():
        marks = [found[_MARK] for found in (metadata, theirs.get(name, {})) if _MARK in found]
        if marks:
            metadata[_MARK] = max(marks) if metadata[_STEP] > 0 else min(marks)
    return json.dumps(value, separators=(",", ":"))


def _identities(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metadata of the identity columns, by name; they are never nested."""
    return {field["name"]: field["metadata"] for field in schema["fields"] if _STEP in field["metadata"]}
