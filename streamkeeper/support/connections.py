"""Values of Airflow's connections in options: ``{conn:NAME.FIELD}``, such as ``{conn:orders_db.password}``.

Declarations are kept in the manifest, which everybody may read, so the placeholder stays as it is there. What
Airflow starts gets the values in a file that its user alone may read (mode 0600), and removes it once it has
read it: no plan, log, argument or variable has them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from streamkeeper.errors import SettingsError

FIELDS = "host, port, login, password, schema or extra.KEY"
FILE_VARIABLE = "STREAMKEEPER_CONNECTIONS_FILE"
"""Variable with the file of the values that a driver or a job was handed."""
NEVER = "streamkeeper_*"
"""Connections that no pipeline may use: one has the login by which Streamkeeper's tasks ask Airflow."""
_NAME = r"([A-Za-z0-9_.-]+?)\.(host|port|login|password|schema|extra\.[A-Za-z0-9_.-]+)"
_PLACEHOLDER = re.compile(rf"\{{conn:(?P<name>{_NAME})\}}")
_ANY = re.compile(r"\{conn:[^}]*\}?")

Resolver = Callable[[str], str]
"""Returns the value of ``NAME.FIELD``, or raises :class:`SettingsError`."""
_resolvers: list[Resolver] = []


def names_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return ``NAME.FIELD`` of each placeholder in some texts, each once, in order of appearance."""
    return tuple(dict.fromkeys(match["name"] for text in texts for match in _PLACEHOLDER.finditer(text)))


def parts(name: str) -> tuple[str, str]:
    """Return connection and field of a ``NAME.FIELD`` that a placeholder has."""
    match = re.fullmatch(_NAME, name)
    assert match is not None, "a placeholder's name"
    return match[1], match[2]


def malformed(texts: Iterable[str]) -> str | None:
    """Return the first text between braces that begins as a placeholder and is none."""
    matches = (match[0] for text in texts for match in _ANY.finditer(text))
    return next((match for match in matches if not _PLACEHOLDER.fullmatch(match)), None)


def filled(text: str) -> str:
    """Return a text with the values in the place of its placeholders.

    :raises SettingsError: this process can get one of them from nowhere.
    """
    return _PLACEHOLDER.sub(lambda match: _value(match["name"]), text)


def why_refused(names: Iterable[str], allowed: Iterable[str]) -> str | None:
    """Return why pipelines may not use some ``NAME.FIELD``, in words; None if they may use all.

    :param allowed: names of connections, or patterns such as ``orders_*``: the setting. Empty means all.
    """
    allowed = tuple(allowed)
    for name in names:
        connection_id, _ = parts(name)
        if fnmatchcase(connection_id, NEVER):
            return f"the connection {connection_id!r} is Streamkeeper's own. Use one of another name"
        if allowed and not any(fnmatchcase(connection_id, pattern) for pattern in allowed):
            return (
                f"pipelines may not use the connection {connection_id!r}: STREAMKEEPER_PIPELINE_CONNECTIONS"
                f" names {', '.join(allowed)}. Add it there, for Airflow, its workers and the command line"
            )
    return None


def resolve_by(resolver: Resolver) -> None:
    """Let this process, which has Airflow, ask its connections from now on."""
    _resolvers[:] = [resolver]


def hand_over(values: Mapping[str, str], file: Path) -> None:
    """Write values into a file that only its owner may read; a file that is there is replaced.

    :raises OSError: it cannot be written.
    """
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as output:
        json.dump(dict(values), output)


def discard(environment: Mapping[str, str]) -> None:
    """Remove the file that a process with this environment was handed, if it did not read it."""
    if place := environment.get(FILE_VARIABLE):
        Path(place).unlink(missing_ok=True)


def _value(name: str) -> str:
    if _resolvers:
        return _resolvers[0](name)
    place = os.environ.get(FILE_VARIABLE)
    value = _taken(place).get(name) if place else None
    if value is None:
        raise SettingsError(
            f"{{conn:{name}}} is of a connection of Airflow's, which this process was not handed: only what"
            " Airflow starts on its own hosts gets it. Start the flow in Airflow with deploy mode client, or"
            " declare {env:NAME}."
        )
    return value


@lru_cache(maxsize=1)
def _taken(place: str) -> Mapping[str, str]:
    """Return the values of a file, and remove it: this process keeps them."""
    file = Path(place)
    try:
        values: dict[str, str] = json.loads(file.read_text("utf-8"))
        file.unlink()
    except FileNotFoundError:
        return {}
    return values
