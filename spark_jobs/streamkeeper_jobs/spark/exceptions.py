"""Splits an exception of Spark into the chain of causes that streamkeeper.drivers.failures classifies."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from streamkeeper.drivers.causes import Cause, line_of_user

_DEEPEST = 30


def causes_of(error: BaseException) -> list[Cause]:
    """Return the chain of an exception, outermost first: Python's causes, each with those in the JVM."""
    causes: list[Cause] = []
    link: BaseException | None = error
    while link is not None and len(causes) < _DEEPEST:
        thrown = _thrown_by_jvm(link)
        if thrown is None:
            frames = traceback.extract_tb(link.__traceback__)
            line = line_of_user((frame.filename, frame.lineno or 0, frame.name) for frame in frames)
            causes.append(Cause(type(link).__name__, None, None, str(link), line))
        else:
            causes.extend(_jvm_chain(thrown))
        link = link.__cause__
    return causes


def _thrown_by_jvm(error: BaseException) -> Any | None:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    if isinstance(error, CapturedException):
        return error._origin
    return None


def _jvm_chain(thrown: Any) -> Iterator[Cause]:
    for _ in range(_DEEPEST):
        if thrown is None:
            return
        yield _cause(thrown)
        thrown = thrown.getCause()


def _cause(thrown: Any) -> Cause:
    """Convert one throwable; only a ``SparkThrowable``, such as Delta's, has a condition and a SQLSTATE."""
    condition = state = None
    gateway = SparkContext._gateway
    if gateway is not None and is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable"):
        condition, state = thrown.getCondition(), thrown.getSqlState()
    return Cause(thrown.getClass().getName(), condition, state, thrown.getMessage() or "")
