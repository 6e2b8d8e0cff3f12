"""Rows of a flow or a view, computed once from what its sources hold: neither state nor table is touched.

Sources are read as batches, a bounded number of rows each. So an aggregation is of these rows, duplicates are
those among them, and state of one's own begins empty, or with its initial state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.errors import RequestError
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.stream.data_frame import frames_of
from streamkeeper_jobs.stream.given_state import given_frame
from streamkeeper_jobs.trial.trial import session_of

READ = 10_000
"""Rows that are read of each source at most."""
_CHANGES = "readchangefeed"


def sample(
    spark: SparkSession, settings: Settings, flow: Flow, rows: int, name: str | None = None
) -> tuple[DataFrame, str]:
    """Return some rows of a flow, and what they are of.

    :param flow: as imported, functions included.
    :param rows: how many, at most.
    :param name: a source or view that the flow reads; the flow's own rows by default.
    :raises RequestError: the flow reads nothing of that name, or a source holds no rows.
    :raises DeclarationError: a function of the pipeline file raises.
    :raises SettingsError: a source needs a variable of the environment that is not set.
    """
    session = session_of(spark, flow)
    most = max(READ, rows)
    with _duplicates_dropped_in_batches(session):
        frames = frames_of(
            looked_up(spark, opened_flow(flow, settings)),
            lambda source: _read(session, source).limit(most),
            lambda initial_state: given_frame(session, initial_state).limit(most),
        )
    shown_name = name or flow.name
    if shown_name not in frames:
        raise RequestError(
            f"The flow {flow.full_name} reads nothing that is called {shown_name!r}. It has"
            f" {', '.join(sorted(frames))}."
        )
    return frames[shown_name].limit(rows), shown_name


@contextmanager
def _duplicates_dropped_in_batches(session: SparkSession) -> Iterator[None]:
    """Let ``dropDuplicatesWithinWatermark``, which Spark refuses in a batch, drop those of the batch."""
    frame_type = type(session.range(0))
    of_streams = frame_type.dropDuplicatesWithinWatermark
    setattr(frame_type, of_streams.__name__, frame_type.dropDuplicates)
    try:
        yield
    finally:
        setattr(frame_type, of_streams.__name__, of_streams)


def _read(session: SparkSession, source: Source) -> DataFrame:
    """Open a source as a batch of all that it holds; rows of the rate source are made up."""
    if source.kind.connection:
        raise RequestError(
            f"The source {source.name} ({source.format}) holds no rows to show: they come by a connection."
            " Try the flow with rows of a test (streamkeeper.testing)."
        )
    if not source.kind.history:
        return session.range(READ).selectExpr("current_timestamp() AS timestamp", "id AS value")
    reader = session.read.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    if source.option(_CHANGES) == "true":
        reader = reader.option("startingVersion", "0")
    return reader.load() if source.path is None else reader.load(spark_url(source.path))
