"""The Spark session of a flow: that of its own application, or its own session in a shared application."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from pyspark import SparkConf, SparkContext
from pyspark.errors import utils
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from streamkeeper.declare.driver import AT_SUBMISSION, CHECKPOINT_MANAGER, FAIR, OURS, common_conf, own_conf
from streamkeeper.declare.model import Pipeline
from streamkeeper.drivers.submit import shared_settings, spark_settings
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper_jobs.spark.jvm import classes

POOL = "spark.scheduler.pool"

T = TypeVar("T")

_without: list[int] = []
"""Threads inside :func:`without_call_sites`."""
_switching = threading.Lock()

_ALWAYS = (*OURS, *FAIR, CHECKPOINT_MANAGER, "spark.sql.extensions")
"""Settings that no setting of spark-submit replaces. The extensions always hold Delta's."""

_REPEATED = (
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
    "org.apache.spark.sql.execution.LogicalRDD",
    "org.apache.spark.rdd.MapPartitionsRDD",
)
"""Loggers that warn with every batch.

They report that a batch took longer than its trigger, which is normal on a busy flow, and how a batch and a
local checkpoint, as AUTO CDC uses them, pass their rows on.
"""


def open_session(settings: Settings, flow: Flow) -> SparkSession:
    """Open the session of a flow that has an application of its own.

    The master is that of spark-submit. Its settings take precedence over the defaults of
    :func:`streamkeeper.drivers.submit.spark_settings`. What the flow declares takes precedence over
    spark-submit, since it may be newer than the submission, and so does what Streamkeeper must set itself. So
    a plain ``spark-submit run_flow.py`` or ``python run_flow.py`` runs the same flow. What took effect at
    spark-submit stays as it left that.
    """
    submitted_conf = _submitted_conf()
    conf = spark_settings(settings, flow.declaration, _master(submitted_conf))
    return _open(flow.full_name, submitted_conf, conf, flow.declaration.spark_conf)


class SharedApplication:
    """The application that flows of a pipeline share, opened by the first thread that needs a session."""

    def __init__(self, settings: Settings, pipeline: Pipeline) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._opening = threading.Lock()
        self._application: SparkSession | None = None

    def session(self, flow: Flow) -> SparkSession:
        """Return a session of the flow's own.

        All that the calling thread starts then runs in the flow's pool.

        What one query pins in its session, such as its number of state partitions, does not affect the
        others. Threads of Python are threads of the JVM (``PYSPARK_PIN_THREAD``), so pool and active session
        are the calling thread's alone; a streaming query inherits both from the thread that starts it.

        :raises AnalysisException: it sets for itself what only a whole application can have.
        """
        session = self._open().newSession()
        for name, value in own_conf(flow.declaration, self._pipeline.flows).items():
            session.conf.set(name, value)
        _activate(session)
        session.sparkContext.setLocalProperty(POOL, flow.name)
        return session

    def _open(self) -> SparkSession:
        with self._opening:
            if self._application is None:
                submitted_conf = _submitted_conf()
                conf = shared_settings(self._settings, self._pipeline, _master(submitted_conf))
                declared = common_conf(self._pipeline.flows)
                self._application = _open(self._pipeline.name, submitted_conf, conf, declared)
            return self._application


def begun(session: SparkSession, act: Callable[[], T]) -> Future[T]:
    """Run something in a thread of its own, in the session, pool and job description of this one.

    Whoever asks for the outcome waits for it, and meets the error.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            _activate(session)
            outcome.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
            outcome.set_exception(error)

    threading.Thread(target=inheritable_thread_target(session)(run), daemon=True).start()
    return outcome


@contextmanager
def without_call_sites() -> Iterator[None]:
    """Make columns inside the block without a note where in Python each was made.

    PySpark notes that place for its messages, which takes some ten calls of the JVM a column. Columns of a
    declaration have it; in a message about an engine's own columns it helps no user. The switch is the
    process's: the last of several threads turns it back.
    """
    me, switch = threading.get_ident(), cast(Any, utils)
    with _switching:
        _without.append(me)
        switch._enable_debugging_cache = False
    try:
        yield
    finally:
        with _switching:
            _without.remove(me)
            if not _without:
                switch._enable_debugging_cache = None  # the session's setting is read again


def _activate(session: SparkSession) -> None:
    java = classes(session)
    java("org.apache.spark.sql.classic.SparkSession").setActiveSession(session._jsparkSession)


@contextmanager
def with_settings(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Apply some settings to the session inside the block; unset them afterwards."""
    for name, value in conf.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in conf:
            session.conf.unset(name)


def spark_url(location: str) -> str:
    """Return a path or URL as Spark's file systems spell it: ``s3://`` becomes ``s3a://``."""
    return "s3a://" + location.removeprefix("s3://") if location.startswith("s3://") else location


def _submitted_conf() -> dict[str, str]:
    """Return the settings of spark-submit, which only its JVM knows: until Python is connected to that, a
    ``SparkConf`` is empty.

    Without spark-submit there is no JVM yet, and asking would start one before its class path is known.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _master(submitted_conf: Mapping[str, str]) -> str:
    return submitted_conf.get("spark.master", DEFAULT_MASTER)


def _open(
    name: str, submitted_conf: Mapping[str, str], conf: Mapping[str, str], declared: Container[str]
) -> SparkSession:
    builder = SparkSession.builder.appName(name).master(_master(submitted_conf))
    for key, value in conf.items():
        if key in _ALWAYS or key not in submitted_conf or (key in declared and key not in AT_SUBMISSION):
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    _quiet(session)
    return session


def _quiet(session: SparkSession) -> None:
    """Suppress the warnings that Spark repeats with every batch; its errors and all other warnings stay."""
    java = classes(session)
    for logger in _REPEATED:
        java("org.apache.logging.log4j.core.config.Configurator").setLevel(
            logger, java("org.apache.logging.log4j.Level").ERROR
        )
