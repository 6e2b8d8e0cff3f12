"""Identity columns as a Delta table's schema keeps them: each with a mark, the last value that was given,
which every append moves.
"""

from __future__ import annotations

import json
from typing import Any

_STEP, _MARK = "delta.identity.step", "delta.identity.highWaterMark"


def without_marks(schema: str) -> str:
    """Give a schema, as it stands in the log, without how far its identity columns have counted; one that has
    none as it is.
    """
    if _STEP not in schema:
        return schema
    value = json.loads(schema)
    for metadata in _identities(value).values():
        metadata.pop(_MARK, None)
    return json.dumps(value)


def with_later_marks(schema: str, other: str) -> str:
    """Give a schema whose identity columns count on after what either of two tables has given, so that no
    later value was given before.

    :param other: the schema of the other table; columns that it has not count on as they did.
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
    """Give the metadata of the identity columns, by name; none is ever nested."""
    return {field["name"]: field["metadata"] for field in schema["fields"] if _STEP in field["metadata"]}
