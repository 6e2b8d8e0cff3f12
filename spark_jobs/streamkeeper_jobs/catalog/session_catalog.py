"""The session catalog by Spark's own client: a Hive metastore, or another one behind the same interface.

Spark stores a Delta table's entry without columns, and cannot add them later where the metastore refuses
another type at a column's place (``hive.metastore.disallow.incompatible.col.type.changes``, on by default):
then only Spark sees them. So the columns are taken out first. Uses internals of Spark, which
tests/spark/catalog/test_named_tables.py pins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.driver import CATALOG, HIVE
from streamkeeper.errors import CatalogError, SettingsError
from streamkeeper_jobs.spark.jvm import classes, json_of, scala_map
from streamkeeper_jobs.spark.session import spark_url

Field = dict[str, Any]
"""A column as in Spark's JSON of a schema: name, type, nullable, and metadata, such as its comment."""


@dataclass(frozen=True)
class Entry:
    """A table in the catalog. ``location`` is a path or URL, None for a view; ``provider`` such as
    ``delta``.
    """

    location: str | None
    provider: str | None
    columns: tuple[Field, ...]
    comment: str | None
    properties: Mapping[str, str]

    @property
    def is_delta(self) -> bool:
        """Whether it is a Delta table."""
        return (self.provider or "").lower() == "delta"


class SessionCatalog:
    """The session catalog of a session.

    :raises SettingsError: it is one that no other session sees.
    :raises CatalogError: it does not answer.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._java = spark, classes(spark)
        with _asking("itself"):
            self._external = spark._jsparkSession.sessionState().catalog().externalCatalog()
        if self._external.unwrapped().getClass().getSimpleName() == "InMemoryCatalog":
            raise SettingsError(
                f"The session catalog is in memory ({CATALOG}) and ends with its session: names in it reach"
                f" nobody. Set {CATALOG}={HIVE}, and spark.hadoop.hive.metastore.uris to the metastore's"
                " address, in the Spark connection or spark_conf."
            )

    def look(self, name: str) -> Entry | None:
        """Return the table of a name (``schema.table``); None if there is none.

        :raises CatalogError: the catalog does not answer.
        """
        schema, table = name.split(".")
        with _asking(name):
            if not self._external.tableExists(schema, table):
                return None
            entry = self._external.getTable(schema, table)
            location, provider, comment = (
                entry.storage().locationUri(),
                entry.provider(),
                entry.comment(),
            )
            return Entry(
                plain_path(location.get().toString()) if location.isDefined() else None,
                provider.get() if provider.isDefined() else None,
                tuple(json.loads(entry.schema().json())["fields"]),
                comment.get() if comment.isDefined() else None,
                json_of(self._java, entry.properties()),
            )

    def has_schema(self, name: str) -> bool:
        """Return whether the schema of a name (``schema.table``) is there.

        :raises CatalogError: the catalog does not answer.
        """
        with _asking(name):
            return bool(self._external.databaseExists(name.split(".", maxsplit=1)[0]))

    def create(self, name: str, path: str) -> None:
        """Create the name of an existing Delta table, unless it is taken meanwhile; the table is not touched.

        :raises CatalogError: the catalog does not answer, or refuses.
        """
        quoted = spark_url(path).replace("\\", "\\\\").replace("'", "\\'")
        with _asking(name):
            self._spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(name)} USING delta LOCATION '{quoted}'")

    def describe(self, name: str, comment: str | None, properties: Mapping[str, str]) -> None:
        """Replace comment and properties of a table in the catalog.

        :raises CatalogError: the catalog does not answer, or refuses.
        """
        with _asking(name):
            entry = self._external.getTable(*name.split("."))
            parts = {
                "comment": self._java("scala.Option").apply(comment),
                "properties": scala_map(self._java, properties),
            }
            fields = range(entry.productArity())
            self._external.alterTable(
                entry.copy(
                    *(parts.get(entry.productElementName(at), entry.productElement(at)) for at in fields)
                )
            )

    def put_columns(self, name: str, columns: tuple[Field, ...]) -> None:
        """Replace the columns of a table in the catalog. Types that Hive does not have are for Spark alone.

        :raises CatalogError: the catalog does not answer, or refuses.
        """
        schema, table = name.split(".")
        struct = json.dumps({"type": "struct", "fields": columns})
        with _asking(name):
            hive = self._external.unwrapped().client().clientLoader().cachedHive().getMSC()
            entry = hive.getTable(schema, table)
            entry.getSd().setCols(self._java("java.util.ArrayList")())
            hive.alter_table(schema, table, entry)
            made = self._java("org.apache.spark.sql.types.DataType").fromJson(struct)
            self._external.alterTableDataSchema(schema, table, made)


@contextmanager
def _asking(name: str) -> Iterator[None]:
    """Raise what the catalog answers with as an error that says which name it is about."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        reason = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        raise CatalogError(
            f"The session catalog was asked about {name} and answers: {reason.partition(chr(10))[0]}. Check"
            " spark.hadoop.hive.metastore.uris, and that this user may create and alter tables in that"
            " schema."
        ) from None  # Spark's AnalysisException would pass for a fault of the declaration


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
