"""The socket source in a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.declare.model import Source
from streamkeeper_jobs.sources.job_format import JobFormat, Planting
from streamkeeper_jobs.spark.jvm import classes


class SocketInJob(JobFormat[None, None]):
    """Spark's socket source (``TextSocketMicroBatchStream``)."""

    def write_position(self, into: Planting, position: None, look: Callable[[], None]) -> list[Any]:
        raise NotImplementedError("a new connection has no position to write")

    def ended(self, spark: SparkSession, source: Source) -> str | None:
        # The thread that reads ends with its connection, and Spark's query waits on without a word.
        threads = str(classes(spark)("java.lang.Thread").getAllStackTraces().keySet().toString())
        place = f"{source.option('host')}:{source.option('port')}"
        reads = f"TextSocketSource({place.replace(':', ', ')})"
        return None if reads in threads else f"the connection to {place} has ended"
