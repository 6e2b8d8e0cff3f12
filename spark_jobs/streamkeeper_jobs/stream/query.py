"""Runs a streaming query under the orders of its watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.model import APPEND
from streamkeeper.storage import open_storage
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.spark.stateful_operators import heeds_processing_time
from streamkeeper_jobs.stream.in_flight import pin_partitions
from streamkeeper_jobs.stream.watch import Orders, Stopped

POLL_SECONDS = 0.25
"""Seconds until an order is seen, at most."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at a query, at least: the greatest age of the heartbeat's batch. A look reads the
query's progress as JSON in Python, on a core that the batch could use.
"""
NO_INPUT = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Setting of Spark: whether batches without input are run, such as for windows that have closed."""
BATCH_SECONDS = 60.0
"""Seconds that a running batch may take to end before the query is stopped within it.

The checkpoint and the sink's log allow such a stop.
"""


class StillRunning(Exception):
    """A query could not be stopped: it may still write."""


def writer_of(
    frame: DataFrame, name: str, checkpoint: str, trigger: str | None, mode: str = APPEND
) -> DataStreamWriter:
    """Return the writer of a flow's query, complete but for its sink.

    :param trigger: how often to look for data; None processes all available data and ends.
    :param mode: Spark's output mode.
    """
    pin_partitions(open_storage(checkpoint), "", frame.sparkSession.conf.get(PARTITIONS, "200") or "200")
    writer = (
        frame.writeStream.outputMode(mode).queryName(name).option("checkpointLocation", spark_url(checkpoint))
    )
    return writer.trigger(availableNow=True) if trigger is None else writer.trigger(processingTime=trigger)


@contextmanager
def ends_with_its_input(frame: DataFrame, trigger: str | None) -> Iterator[None]:
    """Let a query that is started inside the ``with`` block end when it has processed all available data.

    Where a state heeds processing time, Spark would run one batch without input after the other, and never
    end (measured with Spark 4.2.0). So there are none then. A query reads the setting when it is started.
    """
    conf = frame.sparkSession.conf
    if trigger is not None or not heeds_processing_time(frame):
        yield
        return
    before = conf.get(NO_INPUT)
    conf.set(NO_INPUT, "false")
    try:
        yield
    finally:
        conf.set(NO_INPUT, str(before))


def run_muted(frame: DataFrame, name: str, checkpoint: str, watch: Orders, mode: str = APPEND) -> int:
    """Run one batch without output: the planned one, or else all available data.

    Return the rows that it read.

    :raises Stopped: an order ended it.
    """
    writer = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .queryName(name)
        .option("checkpointLocation", spark_url(checkpoint))
    )
    query = writer.trigger(once=True).start()
    follow(query, watch)
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def follow(
    query: StreamingQuery, watch: Orders, look: Callable[[StreamingQuery], None] | None = None
) -> None:
    """Wait until a query ends by itself, or end it when there is an order.

    In any case it has ended afterwards.

    :param look: called once a second while it runs, and after an order.
    :raises Stopped: an order ended it.
    :raises StreamingQueryException: it failed.
    :raises StillRunning: it could not be stopped.
    """
    next_look = 0.0
    with ended(query):
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            if look is not None and time.monotonic() >= next_look:
                look(query)
                next_look = time.monotonic() + LOOK_SECONDS
            order = watch.order()
            if order is not None:
                watch.tell(phase="stopping")
                if not order.at_once:
                    _await_end_of_batch(query)
                    if look is not None:
                        look(query)
                raise Stopped(order)


@contextmanager
def ended(query: StreamingQuery) -> Iterator[None]:
    """Ensure that a query has ended when the block is left, on which later steps rely.

    :raises StillRunning: it could not be stopped.
    """
    try:
        yield
    finally:
        stop(query)


def stop(query: StreamingQuery) -> None:
    """Stop a query; do nothing if it has ended.

    :raises StillRunning: it could not be stopped.
    """
    try:
        query.stop()
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise StillRunning(
            f"The query {query.name} could not be stopped ({error}), so whether it still writes is not known."
        ) from error


def _await_end_of_batch(query: StreamingQuery) -> None:
    """Wait until no batch runs or the running one is committed, at most ``BATCH_SECONDS``."""
    deadline = time.monotonic() + BATCH_SECONDS
    before = last_batch(query)
    while query.status["isTriggerActive"] and last_batch(query) == before and time.monotonic() < deadline:
        if query.awaitTermination(0.05):  # type: ignore[arg-type]
            return


def last_batch(query: StreamingQuery) -> int | None:
    """Return the last batch of this run that is committed; None if there is none."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
