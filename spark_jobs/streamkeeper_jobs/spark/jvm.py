"""Classes of the session's JVM, each found with a single call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamkeeper.errors import SettingsError
from streamkeeper.settings import FILL_JARS, FILL_S3_JARS

Classes = Callable[[str], Any]
"""Returns a class of the JVM by its full name; a nested one's has a ``$``."""

_PIECE = 4_000
"""Characters of one answer, which become twice as many bytes at most."""


def classes(session: SparkSession) -> Classes:
    """Return a function that finds the classes of a session's JVM.

    ``session._jvm.org.apache…`` asks for each package on the way, and for each the JVM first searches every
    jar for a class of that name: 2.0 to 4.2 ms with Spark's jars, 0.03 ms by the full name. It raises
    SettingsError for a class that no jar has.
    """
    return partial(_class, session._jvm)


def _class(jvm: Any, name: str) -> Any:
    java_class = getattr(jvm, name)
    if isinstance(java_class, JavaPackage):
        raise SettingsError(
            f"No jar of this driver has the class {name}: the jars are of another release. Run `{FILL_JARS}`"
            f" (with S3 `{FILL_S3_JARS}`), and build the image anew where drivers run in one."
        )
    return java_class


def scala_object(java: Classes, name: str) -> Any:
    """Return a Scala ``object`` by its full name."""
    return getattr(java(f"{name}$"), "MODULE$")


def scala_seq(java: Classes, items: Iterable[Any]) -> Any:
    """Return a Scala ``Seq`` of the items."""
    return java("scala.jdk.javaapi.CollectionConverters").asScala(java_list(java, items)).toSeq()


def java_list(java: Classes, items: Iterable[Any]) -> Any:
    """Return a list of Java of the items."""
    made = java("java.util.ArrayList")()
    for item in items:
        made.add(item)
    return made


def scala_map(java: Classes, values: Mapping[str, str]) -> Any:
    """Return a Scala ``Map`` of the values."""
    made = java("java.util.HashMap")()
    for name, value in values.items():
        made.put(name, value)
    return java("org.apache.spark.api.python.PythonUtils").toScalaMap(made)


def python_list(items: Any) -> list[Any]:
    """Return the items of a Scala ``Seq``.

    One call an item: Python's own way through a list of the JVM ends with an exception, and PySpark makes
    some thirty calls to understand that.
    """
    return [items.apply(number) for number in range(items.size())]


def json_of(java: Classes, items: Any) -> Any:
    """Return what JSON says of Scala's values, as Delta writes it: of actions, too.

    In pieces: of an answer above 8 KB the JVM sends the rest only when Python has acknowledged the first
    part, and Python's side waits 40 ms with that.
    """
    writer = java("org.apache.spark.sql.delta.util.JsonUtils").mapper().writer()
    # No piece ends inside a character.
    ascii_only = java("com.fasterxml.jackson.core.JsonGenerator$Feature").ESCAPE_NON_ASCII
    written = java("java.io.StringWriter")()
    getattr(writer, "with")(ascii_only).writeValue(written, items)
    text = written.getBuffer()
    length = int(text.length())
    pieces = [text.substring(at, min(at + _PIECE, length)) for at in range(0, length, _PIECE)]
    return json.loads("".join(pieces))
