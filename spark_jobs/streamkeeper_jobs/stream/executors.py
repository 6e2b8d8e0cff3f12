"""Whether the cluster still computes for a driver.

A standalone master that lost its memory knows no application and no executor any more, and the driver of
Spark 4.2 does not register again: its batch waits for ever, while its heart beats on (docs/decisions/0040).
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from streamkeeper.drivers.submit import partitions
from streamkeeper.errors import ExecutorsGone
from streamkeeper.settings import DEFAULT_MASTER
from streamkeeper_jobs.spark.jvm import classes

_BETWEEN = 12
"""Looks in the time that a batch may be without executors."""


class Executors:
    """Measurement of the time that a batch had no executor.

    :param timeout: seconds of it after which the driver ends, so that the next one registers anew.
    """

    def __init__(self, spark: SparkSession, timeout: float) -> None:
        self._spark, self._timeout = spark, timeout
        self._on_cluster = partitions(spark.sparkContext.master or DEFAULT_MASTER) is None
        self._looked = self._last_present = time.monotonic()

    def look(self, batch_runs: bool) -> None:
        """Count the executors, if that is due and a batch runs.

        :raises ExecutorsGone: a batch had none for too long.
        """
        now = time.monotonic()
        if not self._on_cluster or now - self._looked < self._timeout / _BETWEEN:
            return
        self._looked = now
        if not batch_runs or self.count() > 0:
            self._last_present = now
        elif now - self._last_present >= self._timeout:
            raise ExecutorsGone(
                f"The application {self._spark.sparkContext.applicationId} had no executor for"
                f" {now - self._last_present:.0f} s while a batch waited (STREAMKEEPER_EXECUTORS_TIMEOUT is"
                f" {self._timeout:g} s). The cluster gives it none, or has forgotten it: the next driver"
                f" registers anew with {self._spark.sparkContext.master}."
            )

    def memory(self) -> int:
        """Return the bytes that Spark gives computations and storage on all executors."""
        status = self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        java = classes(self._spark)
        memory_by_place = java("scala.jdk.javaapi.CollectionConverters").asJava(status)
        driver = f"{self._spark.conf.get('spark.driver.host', '')}:" if self._on_cluster else "\n"
        sizes = {place: int(pair._1()) for place, pair in memory_by_place.items()}
        executors = [size for place, size in sizes.items() if not place.startswith(driver)]
        return sum(executors or sizes.values())

    def count(self) -> int:
        """Return the number of executors; on a local master the driver is the only one.

        Spark's own list has the driver, too.
        """
        if not self._on_cluster:
            return 1
        return int(self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1
