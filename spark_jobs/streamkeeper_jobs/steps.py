"""Dispatch of steps that need Spark: finds the function that a step names, and calls it with a session."""

from __future__ import annotations

import importlib
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.errors import RequestError
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import REGISTER_AGAIN, Work, kind
from streamkeeper.settings import Settings

_PACKAGE = "streamkeeper_jobs."


def carry_out(settings: Settings, pipeline: str, recovery: str, step: str) -> dict[str, Any]:
    """Carry out one step of a recovery and return its evidence; start a session only if it is not done yet.

    :raises StreamkeeperError: the step could not be done; mend what the message names, and run it again.
    """
    started: list[SparkSession] = []

    def in_spark(act: str, work: Work) -> dict[str, Any]:
        started.append(SparkSession.builder.getOrCreate())
        return perform(started[0], act, work)

    try:
        return engine.carry_out(settings, pipeline, recovery, step, in_spark)
    finally:
        for spark in started:
            spark.stop()


def perform(spark: SparkSession, act: str, work: Work) -> dict[str, Any]:
    """Call ``streamkeeper_jobs.<module>:<function>`` with a session and the work, and return its evidence.

    If tables may have been changed, their names in the session catalog are written anew: before the step
    counts as done, so that one that is killed in between does it when it is carried out again.

    :raises RequestError: there is no such function.
    """
    evidence: dict[str, Any] = _call(spark, act, work)
    if kind(work.plan.recovery).may_have_changed(work.step):
        _call(spark, REGISTER_AGAIN, work)
    return evidence


def _call(spark: SparkSession, act: str, work: Work) -> Any:
    module, _, name = act.partition(":")
    function = getattr(importlib.import_module(module), name, None) if module.startswith(_PACKAGE) else None
    if not callable(function):
        raise RequestError(
            f"The step {work.step} of {work.plan.recovery} names {act!r}, which is no function of"
            f" {_PACKAGE[:-1]}."
        )
    return function(spark, work)
