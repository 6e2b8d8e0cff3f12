"""Tables that flows write, registered in the session catalog by their location. Nothing is written through
the name, and no batch asks the catalog.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint.files_log import plain_path
from streamkeeper.declare.model import Table, quarantine_of
from streamkeeper.errors import DeclarationError, StreamkeeperError
from streamkeeper.flows.ledger import NAME_STALE
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.manifest.named_tables import columns_mark, note_registration, registration_of
from streamkeeper.recover.plans.kind import Work
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper_jobs.catalog.session_catalog import Entry, Field, SessionCatalog
from streamkeeper_jobs.spark.delta_snapshot import read_metadata
from streamkeeper_jobs.spark.log import say

_REGISTERING = threading.Lock()
"""Flows of one driver may register their table at the same moment."""
_OWNER = "streamkeeper.pipeline"
"""Property of a registered table: the pipeline that writes it."""
_OF_DELTA = "delta."


def check_names(spark: SparkSession, settings: Settings, flow: Flow) -> None:
    """Check that the names of the tables that a flow writes are theirs, or free.

    :raises DeclarationError: a name belongs to another table, or its schema is missing; nothing was touched.
    :raises SettingsError: the session catalog ends with its session.
    :raises CatalogError: the catalog does not answer.
    """
    aside = quarantine_of(flow.declaration)
    for name in (flow.declaration.target, *([] if aside is None else [aside])):
        table = flow.pipeline.table(name)
        if table is not None and table.registered_as is not None and settings.register_tables:
            _entry(SessionCatalog(spark), settings, table, table.registered_as)


def register(spark: SparkSession, settings: Settings, pipeline: str, table: Table) -> None:
    """Let a table's name in the session catalog show the table as it is; nothing is written there if it does.

    :raises DeclarationError: as :func:`check_names`, or a comment is of a column that the table lacks.
    :raises CatalogError: the catalog does not answer, or refuses.
    """
    if table.registered_as is None or not settings.register_tables:
        return
    path, name = settings.table_path(table.name), table.registered_as
    metadata = read_metadata(spark, path)
    columns = _columns(table, metadata)
    with _REGISTERING:
        catalog = SessionCatalog(spark)
        entry = _entry(catalog, settings, table, name)
        if entry is None:
            catalog.create(name, path)
            entry = _entry(catalog, settings, table, name)
            assert entry is not None, f"{name} was created"
            say(f"The table {table.name} is {name} in the session catalog.")
        comment = table.comment or metadata.get("description")
        properties = _properties(entry.properties, metadata.get("configuration", {}), pipeline)
        if (entry.comment, entry.properties) != (comment, properties):
            catalog.describe(name, comment, properties)
        if entry.columns != columns:
            catalog.put_columns(name, columns)
            say(f"{name} has {len(columns)} columns in the session catalog.")
        _note(settings, table, path, columns_mark(metadata["schemaString"]))


def register_again(spark: SparkSession, work: Work) -> None:
    """Let the names of a recovery's tables show what it made of them, as far as a driver has registered them.

    A catalog that refuses stops no recovery: that is noted, and the next start of a flow writes the name.
    """
    for name in work.plan.tables:
        try:
            if registration_of(work.book.storage, name) is None:
                continue
            pipeline = read_manifest(work.settings).pipeline(work.plan.pipeline_of(name))
            table = None if pipeline is None else pipeline.table(name)
            if pipeline is not None and table is not None:
                register(spark, work.settings, pipeline.name, table)
        except (StreamkeeperError, PySparkException, Py4JError) as error:
            say(
                f"The name of {name} in the session catalog was not written anew: {error} The recovery goes"
                " on, and the next start of a flow writes it."
            )
            work.book.record(f"{work.step}.{NAME_STALE}", {"error": f"{name}: {error}"})


def _entry(catalog: SessionCatalog, settings: Settings, table: Table, name: str) -> Entry | None:
    """Return what the catalog has of a table; None if the name is free."""
    path, entry = settings.table_path(table.name), catalog.look(name)
    if entry is None:
        if not catalog.has_schema(name):
            raise DeclarationError(
                f"{table.location}: the table {table.name} is registered_as {name!r}, and the session catalog"
                f" has no schema {name.partition('.')[0]}. Nothing was touched. Let somebody create it"
                " (CREATE SCHEMA), and start the flow again."
            )
        return None
    if entry.location is not None and plain_path(entry.location) == plain_path(path) and entry.is_delta:
        return entry
    other = "a view" if entry.location is None else f"the {entry.provider} table at {entry.location}"
    raise DeclarationError(
        f"{table.location}: the table {table.name} at {path} is registered_as {name!r}, and in the session"
        f" catalog that is {other}. Nothing was touched. Give it another name, or drop that entry (DROP TABLE"
        f" {name}) if it is not in use: of an external table the files stay."
    )


def _columns(table: Table, metadata: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the columns of a table, with the declared comments, and otherwise those that the table has."""
    fields = json.loads(metadata["schemaString"])["fields"]
    unknown = set(table.column_comments) - {field["name"] for field in fields}
    if unknown:
        raise DeclarationError(
            f"{table.location}: the table {table.name} has comments of {', '.join(sorted(unknown))} (schema),"
            f" and its columns are {', '.join(field['name'] for field in fields)}. Correct the names."
        )
    return tuple(
        {**field, "metadata": {} if comment is None else {"comment": comment}}
        for field in fields
        for comment in [table.column_comments.get(field["name"], field["metadata"].get("comment"))]
    )


def _properties(
    present: Mapping[str, str], configuration: Mapping[str, str], pipeline: str
) -> dict[str, str]:
    """Return the properties of a table in the catalog: Delta's as the table has them, and those of others."""
    others = {name: value for name, value in present.items() if not name.startswith(_OF_DELTA)}
    return {**others, **configuration, _OWNER: pipeline}


def _note(settings: Settings, table: Table, path: str, columns: str) -> None:
    storage, name = open_storage(settings.state), str(table.registered_as)
    known = registration_of(storage, table.name)
    if known is None or (known.name, known.location, known.columns) != (name, path, columns):
        note_registration(storage, table.name, name, path, columns)
