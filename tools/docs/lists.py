"""Lists that the code has: settings, metrics, alerts, events, versions."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any

from streamkeeper.distribution.provider_info import docstrings
from streamkeeper.distribution.versions import VERSIONS
from streamkeeper.health.metrics import _DEFINITIONS, Metric
from streamkeeper.history.events import Kind
from streamkeeper.settings import _FOLDERS as FOLDERS
from streamkeeper.settings import PROJECT, Settings, variable
from streamkeeper.watch.alerts import AlertKind
from tools.docs.made import from_docstring, table


def settings() -> str:
    """Return a table of the settings, with their options in Airflow's configuration."""
    texts = docstrings(Settings)
    rows = [
        (f"`{variable(field.name)}`", _default(field), from_docstring(texts[field.name]))
        for field in fields(Settings)
    ]
    return table(("environment variable", "default", "what it is"), rows)


def _default(field: Field[Any]) -> str:
    default = FOLDERS.get(field.name, field.default)
    if default is MISSING or default in ("", ()):
        return "none"
    if isinstance(default, tuple):
        return "those of the [example pipelines](../get-started/examples.md)"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{str(default).removeprefix(f'{PROJECT}/').removesuffix('.0')}`"


def metrics() -> str:
    """Return a table of the metrics, by their names in Prometheus and OpenTelemetry."""
    all_metrics = [
        Metric(f"streamkeeper.{name}", kind, unit, text, ()) for name, kind, unit, text, _ in _DEFINITIONS
    ]
    rows = [
        (f"`{metric.prometheus}`", metric.kind, f"`{metric.name}`", f"`{metric.unit or '1'}`", metric.help)
        for metric in all_metrics
    ]
    return table(("Prometheus", "type", "OpenTelemetry", "unit", "what it is"), rows)


def alert_rules() -> str:
    """Return the rules for Prometheus, as their file has them."""
    rules = (PROJECT / "docker/prometheus/streams.rules.yaml").read_text().partition("rules:\n")[2]
    return f"```yaml\n{textwrap.dedent(rules).strip()}\n```"


def alerts() -> str:
    """Return a table of the kinds of alert."""
    rows = []
    for kind, text in _members(AlertKind):
        when, _, once = text.rstrip(".").partition(" Once for ")
        rows.append((f"`{kind.value}`", f"FLOW {kind.description}", when.rstrip("."), once))
    return table(("kind", "subject", "sent when", "once for"), rows)


def events() -> str:
    """Return a table of the kinds of event."""
    return table(("kind", "what happened"), [(f"`{kind.value}`", text) for kind, text in _members(Kind)])


def _members(kinds: type[Enum]) -> list[tuple[Any, str]]:
    """Return the members of an enumeration with their docstrings.

    :raises KeyError: a member has none.
    """
    texts = docstrings(kinds)
    return [(member, from_docstring(texts[name])) for name, member in kinds.__members__.items()]


def versions() -> str:
    """Return a table of the versions that Streamkeeper is made for."""
    names = {
        "airflow": "Airflow",
        "spark": "Spark",
        "delta": "Delta Lake",
        "python": "Python",
        "java": "Java",
    }
    rows = [
        (names[part], _allowed(release), ", ".join(map(str, release["tested"])))
        for part, release in VERSIONS.items()
    ]
    return table(("", "accepted", "tested"), rows)


def _allowed(versions: dict[str, Any]) -> str:
    match versions:
        case {"oldest": oldest, "below": below}:
            return f"{oldest} or later, below {below}"
        case {"oldest": oldest, "newest": newest}:
            return f"{oldest} to {newest}"
        case {"release": release}:
            return f"{release}, any patch release"
        case {"supported": supported}:
            return " or ".join(map(str, supported))
        case _:
            return "the one that is tested, for which the jars are locked"
