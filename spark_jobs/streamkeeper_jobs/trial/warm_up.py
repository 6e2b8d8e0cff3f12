"""One batch with rows, for nothing: the process that takes over has done each thing once before it counts.

The first batch of a JVM takes five times as long as the next: classes are loaded, code is generated, nothing
is compiled yet. So the driver that waits reads a file, or a record, as its first batch will, from a copy of
the newest state and into a table that is removed.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.declare.model import UPDATE
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.query import ended, last_batch, writer_of
from streamkeeper_jobs.trial.trial import Bounds, Trial, of_newest, session_of

SECONDS = 120.0
"""Longest time that is spent on it: a flow that is slow anyway gains little."""


def warm_up(spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow) -> None:
    """Run a batch of a flow for nothing, if its sources have anything new; say so where that fails.

    A flow whose source removes what it has read is left alone.
    """
    opened = looked_up(spark, opened_flow(flow, replace(settings, read_at_most=1)))
    if any(source.takes_files for source in opened.pipeline.sources_of(opened.declaration)):
        return
    try:
        newest = of_newest(spark, home, opened)
        if newest is not None and newest[0].batch is not None:
            with newest[0].scratch():
                _run(session_of(spark, flow), newest[0])
    except (PySparkException, StreamkeeperError) as error:
        say(f"{home.full_name} begins cold, since its batch for nothing failed: {error}")


def _run(session: SparkSession, trial: Trial) -> None:
    trial.copy(session)
    frame = flow_frame(session, trial.flow, trial.schemas, checkpoint=trial.path)
    mode = trial.flow.declaration.mode
    writer = writer_of(frame, f"{trial.flow.full_name} (for nothing)", trial.path, None, mode)
    # Delta's own sink does not take updates.
    writer = writer.format("noop" if mode == UPDATE else "delta")
    bounds = Bounds(SECONDS, one_batch=True)
    query = writer.start(spark_url(f"{trial.path}/table"))
    with ended(query):
        while not query.awaitTermination(0.1):  # type: ignore[arg-type]
            if bounds.are_reached(lambda: last_batch(query) is not None):
                return
