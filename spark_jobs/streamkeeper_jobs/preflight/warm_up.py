"""One batch with rows, for nothing: the process that takes over has done each thing once before it counts.

The first batch of a JVM takes five times as long as the next: classes are loaded, code is generated, nothing
is compiled yet. So the driver that waits reads a file, or a record, as its first batch will, from a copy of
the newest state and into a table that is removed.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import UPDATE
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import Settings
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint
from streamkeeper_jobs.preflight.dry_run import QUERY_ID, session_of
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.given_state import as_recorded
from streamkeeper_jobs.stream.query import ended, last_batch, writer_of

SECONDS = 120.0
"""Longest time that is spent on it: a flow that is slow anyway gains little."""


def warm_up(spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow) -> None:
    """Run a batch of a flow for nothing, if its sources have anything new; say so where that fails.

    A flow whose source removes what it has read is left alone.
    """
    opened = looked_up(spark, opened_flow(flow, replace(settings, read_at_most=1)))
    if any(source.takes_files for source in opened.pipeline.sources_of(opened.declaration)):
        return
    folder = f"{home.trials}/{uuid.uuid4().hex}"
    try:
        _run(session_of(spark, flow), home, opened, folder)
    except (PySparkException, StreamkeeperError) as error:
        say(f"{home.full_name} begins cold, since its batch for nothing failed: {error}")
    finally:
        home.storage.remove(folder)


def _run(spark: SparkSession, home: FlowHome, flow: Flow, folder: str) -> None:
    begun = Observed(home).begun
    checkpoint = Checkpoint(home.storage, begun[1].checkpoint) if begun else None
    last = checkpoint.last_commit() if checkpoint is not None else None
    if begun is None or checkpoint is None or last is None:
        return
    copy_checkpoint(checkpoint, last, folder, QUERY_ID, lambda: None, home.storage)
    pin_state_partitions(spark, Checkpoint(home.storage, folder))
    path = home.storage.path(folder)
    flow = as_recorded(spark, flow, begun[1].evidence, spent=True)
    frame = flow_frame(spark, flow, begun[1].schemas, checkpoint=path)
    mode = flow.declaration.mode
    writer = writer_of(frame, f"{home.full_name} (for nothing)", path, None, mode)
    # Delta's own sink does not take updates.
    writer = writer.format("noop" if mode == UPDATE else "delta")
    until = time.monotonic() + SECONDS
    query = writer.start(spark_url(f"{path}/table"))
    with ended(query):
        while not query.awaitTermination(0.1) and last_batch(query) is None:  # type: ignore[arg-type]
            if time.monotonic() > until:
                return
