"""Spark settings of flows in one application: those of the application, and those of each flow's session.

Flows with a shared driver have one application. A job on the tables of several flows has one for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamkeeper.declare.model import RESTART, AnyFlow
from streamkeeper.errors import DeclarationError

FAIR = {"spark.scheduler.mode": "FAIR"}
"""Spark's mode in which the queries of an application take turns, each in a pool of its own (Spark's "Job
Scheduling", default pools).
"""

_OF_SESSIONS = ("spark.sql.", "spark.databricks.delta.")
_STATIC = (
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.warehouse.dir",
)
"""Settings of Spark's ``StaticSQLConf`` that users know. Spark itself refuses any other when the flow's
session is created.
"""


def is_of_session(name: str) -> bool:
    """Return whether each session of an application may have its own value of a setting."""
    return name.startswith(_OF_SESSIONS) and name not in _STATIC


def common_conf(flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return the settings that all flows declare alike: those of their application."""
    first, *others = flows
    return {
        name: value
        for name, value in first.spark_conf.items()
        if all(flow.spark_conf.get(name) == value for flow in others)
    }


def job_conf(flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return the settings of a job on the tables of some flows.

    A setting of a session counts if all flows declare it alike. A setting of an application counts if any
    flow declares it; of different values, the first flow's.
    """
    of_application = {
        name: value
        for flow in reversed(flows)
        for name, value in flow.spark_conf.items()
        if not is_of_session(name)
    }
    return {**of_application, **(common_conf(flows) if flows else {})}


def own_conf(flow: AnyFlow, flows: Sequence[AnyFlow]) -> dict[str, str]:
    """Return a flow's settings beyond those of its application: those of its own session."""
    common = common_conf(flows)
    return {name: value for name, value in flow.spark_conf.items() if name not in common}


def check_shareable(flows: Sequence[AnyFlow]) -> None:
    """Check that some flows can run in one application.

    :raises DeclarationError: two of them differ in a setting that only a whole application can have, one sets
        the scheduler's mode, one runs once, or one has its changes tried.
    """
    first, *others = flows
    for flow in flows:
        if flow.once:
            raise DeclarationError(
                f"{flow.where}: the flow {flow.name} runs once, but its pipeline has a shared driver, whose"
                " flows end together: they would all end with it. Leave shared_driver out, or declare the"
                " flow in a pipeline file of its own, with another table."
            )
        if flow.on_change != RESTART:
            raise DeclarationError(
                f"{flow.where}: the flow {flow.name} has on_change {flow.on_change!r}, but its pipeline has a"
                " shared driver, whose flows begin and end together with one code. Leave on_change or"
                " shared_driver out."
            )
        taken = sorted(set(flow.spark_conf) & set(FAIR))
        if taken:
            raise DeclarationError(
                f"{flow.where}: the flow {flow.name} sets {taken[0]}, but its pipeline has a shared driver,"
                " whose queries take turns in FAIR pools. Leave it out; weights of pools go into"
                " spark.scheduler.allocation.file, with the flows' names."
            )
    for other in others:
        for name in sorted({*first.spark_conf, *other.spark_conf}):
            mine, theirs = first.spark_conf.get(name), other.spark_conf.get(name)
            if mine != theirs and not is_of_session(name):
                raise DeclarationError(
                    f"{other.where}: the flow {other.name} has {_said(name, theirs)}, and the flow"
                    f" {first.name} ({first.where}) has {_said(name, mine)}. They share one driver, and only"
                    " a whole application can have that setting. Give both the same value, or leave"
                    " shared_driver out; settings that start with spark.sql. may differ."
                )


def _said(name: str, value: str | None) -> str:
    return f"no {name}" if value is None else f"{name}={value!r}"
