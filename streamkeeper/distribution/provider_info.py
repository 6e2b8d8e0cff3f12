"""What Airflow asks a provider package: the settings as a section of its configuration.

Connections are of Airflow's own types (``spark``, ``http``), and alerts are sent by other providers'
notifiers, so it offers none of either. Every Airflow calls this, also one that is too old for the rest, so
nothing of Airflow is imported.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any

from streamkeeper import __version__
from streamkeeper.settings import SECTION, Settings, variable

DISTRIBUTION = "streamkeeper-airflow"
"""Name on a package index."""

_TYPES = {"float": "float", "int": "integer", "bool": "boolean"}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's information, by the names of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": DISTRIBUTION,
        "name": "Streamkeeper",
        "description": "Keeps Spark Structured Streaming flows running, and recovers them.",
        "versions": [__version__],
        "config": {
            SECTION: {
                "description": (
                    "Settings of Streamkeeper. The environment variable that an option names comes before it."
                ),
                "options": options(),
            }
        },
    }


def options() -> dict[str, dict[str, Any]]:
    """Return an option for each setting, with its default and what it is."""
    texts = docstrings(Settings)
    return {
        field.name: {
            "description": f"{texts[field.name]}\nVariable: {variable(field.name)}.",
            "version_added": None,
            "type": _TYPES.get(str(field.type), "string"),
            "example": None,
            "default": None if field.default is MISSING else _text(field.default),
        }
        for field in fields(Settings)
    }


def _text(value: object) -> str | None:
    return (",".join(value) if isinstance(value, tuple) else str(value)) or None


def docstrings(owner: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, or member of an enumeration, in one line."""
    (body,) = (
        node.body for node in ast.parse(inspect.getsource(owner)).body if isinstance(node, ast.ClassDef)
    )
    texts = {}
    for before, after in pairwise(body):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts
