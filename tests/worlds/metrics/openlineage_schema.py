"""What OpenLineage's published schema says of an event.

The files in ``openlineage`` are the schemas of OpenLineage 2-0-2 and of the facets that Streamkeeper and
OpenLineage's client send, unchanged (https://openlineage.io/spec, Apache License 2.0, copyright contributors
to the OpenLineage project): no package that can be installed has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

_FILES = [json.loads(file.read_text()) for file in Path(__file__).with_name("openlineage").glob("*.json")]
_REGISTRY: Registry[Any] = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in _FILES]
)


_FORMATS = FormatChecker()


@_FORMATS.checks("date-time", ValueError)
def _is_moment(text: object) -> bool:
    return not isinstance(text, str) or datetime.fromisoformat(text).tzinfo is not None


def check(event: dict[str, Any]) -> None:
    """Check an event and each facet of it by the schema that it names itself.

    :raises ValidationError: it breaks a rule.
    """
    assert event["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    _check(event, event["schemaURL"])
    for facet in _facets(event):
        _check(facet, facet["_schemaURL"])


def _check(value: Any, schema_url: str) -> None:
    validator = Draft202012Validator({"$ref": schema_url}, registry=_REGISTRY, format_checker=_FORMATS)
    validator.validate(value)


def _facets(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        yield from (part.get("facets") or {}).values()
