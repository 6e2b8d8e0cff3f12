"""Delta sources that have a name in the session catalog: looked up once a start, and then read by location.
So positions, plans and lags are those of a table with a path.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.delta.history import read_history
from streamkeeper.errors import DeclarationError, SourceError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.manifest.named_tables import named_table, note_named_table
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper_jobs.catalog.session_catalog import SessionCatalog
from streamkeeper_jobs.spark.log import say


def looked_up(spark: SparkSession, flow: Flow) -> Flow:
    """Return an opened flow whose sources by name have the location that the session catalog names now.

    :raises DeclarationError: a name is of a view, or of a table that is not Delta's.
    :raises SourceError: a name is of no table.
    :raises SettingsError: the session catalog ends with its session.
    :raises CatalogError: the catalog does not answer.
    """
    paths = {
        source.name: _location(SessionCatalog(spark), source, source.registered_as)
        for source in flow.pipeline.sources_of(flow.declaration)
        if source.registered_as is not None
    }
    sources = tuple(
        replace(source, path=paths.get(source.name, source.path)) for source in flow.pipeline.sources
    )
    return replace(flow, pipeline=replace(flow.pipeline, sources=sources))


def note_names(settings: Settings, flow: Flow) -> None:
    """Note where the names of a flow's sources lead, for plans and lags, which have no Spark.

    A name that leads to another table than at the last start is said; the check of positions judges it.
    """
    storage = open_storage(settings.state)
    for source in flow.pipeline.sources_of(flow.declaration):
        if source.registered_as is None or source.path is None:
            continue
        history, known = read_history(source.path), named_table(storage, source.registered_as)
        table_id = str(None if history is None else history.table_id)
        if known is not None and (known.location, known.table_id) != (source.path, table_id):
            say(
                f"{source.registered_as}, which the source {source.name} reads, is the table {table_id} at"
                f" {source.path} now; it was {known.table_id} at {known.location}."
            )
        elif known is not None:
            continue
        note_named_table(storage, source.registered_as, source.path, table_id)


def _location(catalog: SessionCatalog, source: Source, name: str) -> str:
    entry = catalog.look(name)
    if entry is None:
        raise SourceError(
            f"The source {source.name} ({source.location}) reads {name}, and the session catalog has no such"
            " table. Check registered_as, or create the table."
        )
    if entry.location is None or not entry.is_delta:
        what = "a view" if entry.location is None else f"of the format {entry.provider}"
        raise DeclarationError(
            f"{source.location}: the source {source.name} reads {name}, which is {what} in the session"
            " catalog. Allowed is a Delta table. Name the table itself, or read its files."
        )
    return entry.location
