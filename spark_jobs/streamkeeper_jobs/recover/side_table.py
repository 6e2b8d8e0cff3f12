"""Flows that build a side table, each in a session of its own, run until all available data is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from streamkeeper.drivers.submit import spark_settings
from streamkeeper.errors import RecoveryError
from streamkeeper.flows import generations, holds, leases, side_flow
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.side_flow import SideHome
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper_jobs.driver.derived_flow import drive_derived_flow
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.spark.jvm import classes


@dataclass(frozen=True)
class Builder:
    """A flow that builds a side table: derived flow and its state, and home and plan of the declared flow."""

    flow: Flow
    side: SideHome
    home: FlowHome
    plan: FlowPlan


def builders(work: Work, plan: Plan) -> list[Builder]:
    """Return the flows that build the side table.

    :raises RecoveryError: a declaration differs from the one that the plan was made for.
    """
    (table,) = plan.tables
    _, file = find(work.settings, plan.flows[0].flow)
    pipeline = load_pipeline(file, work.settings.data)
    planned = {side_flow.name_of(flow.name, plan.recovery_id): flow for flow in plan.flows}
    changed = [
        flow.flow for flow in plan.flows if declared_in(pipeline, flow.name).fingerprint != flow.fingerprint
    ]
    flows = side_flow.derive(work.settings, pipeline, table, plan.recovery_id)
    if changed or planned.keys() != {flow.name for flow in flows}:
        raise RecoveryError(
            f"What is declared of {', '.join(changed) or table} changed since the plan was made. The table"
            f" was not changed. Give this recovery up (streamkeeper abandon {plan.recovery_id}), and plan"
            " again."
        )
    homes = {name: work.home(flow) for name, flow in planned.items()}
    return [
        Builder(
            flow,
            side_flow.side_home(homes[flow.name], plan.recovery_id),
            homes[flow.name],
            planned[flow.name],
        )
        for flow in flows
    ]


def read_what_is_there(spark: SparkSession, work: Work, flows: list[Builder]) -> int:
    """Run each flow until all available data is read; return the number of batches.

    :raises RecoveryError: a flow stopped before.
    """
    read = 0
    for builder in flows:
        if builder.flow.declaration.once and generations.finished(builder.side) is not None:
            continue
        _decide_side_flow(builder, work.plan)
        before = last_commit(builder.side)

        def tell(numbers: dict[str, int], name: str = builder.plan.flow) -> None:
            work.progress(flow=name, **numbers)
            work.check_stop()

        with _session(spark, work, builder.flow) as session:
            ended = drive_derived_flow(
                work.settings,
                builder.side,
                builder.flow,
                tell,
                lambda _flow: session,
                check_stop=work.check_stop,
            )
        work.check_stop()
        if ended.reason is not None:
            raise RecoveryError(
                f"Reading for {builder.plan.flow} into the side table stopped after batch {ended.batch}:"
                f" {ended.reason}\n"
                "The table was not changed. Fix that error and run this step again: it continues from there."
            )
        read += last_commit(builder.side) - before
    return read


def _decide_side_flow(builder: Builder, plan: Plan) -> None:
    """Decide the first generation of a flow that builds a side table, unless it has one."""
    if builder.side.generations():
        return
    previous = (
        generations.read_start(builder.home, builder.plan.previous)
        if builder.plan.previous is not None
        else None
    )
    schemas = previous.schemas if previous is not None and builder.plan.keeps_schemas else {}
    first = generations.first(builder.side, builder.flow.fingerprint)
    reason = f"{plan.recovery}: {builder.flow.declaration.target} is built"
    generations.decide(
        builder.side, replace(first, schemas=schemas, reason=reason, by=plan.by, recovery=plan.recovery_id)
    )


def last_commit(side: SideHome) -> int:
    """Return the last batch that a flow's checkpoint has committed; -1 if there is none."""
    batch = Observed(side).last_commit
    return -1 if batch is None else batch


@contextmanager
def _session(spark: SparkSession, work: Work, flow: Flow) -> Iterator[SparkSession]:
    """Yield a session of a flow's own: what one flow sets, such as its state partitions, affects no other."""
    java = classes(spark)
    static = java("org.apache.spark.sql.internal.SQLConf").isStaticConfigKey
    session = spark.newSession()
    for name, value in spark_settings(
        work.settings, flow.declaration, str(spark.sparkContext.master)
    ).items():
        if name.startswith(("spark.sql.", "spark.databricks.")) and not static(name):
            session.conf.set(name, value)
    active = java("org.apache.spark.sql.classic.SparkSession")
    active.setActiveSession(session._jsparkSession)
    try:
        yield session
    finally:
        active.setActiveSession(spark._jsparkSession)


def stop_for_good(work: Work, flows: list[Builder]) -> None:
    """Hold the flows that build the side table, and wait until their drivers are gone.

    That includes processes of an earlier try: their checkpoints now belong to the declared flows.
    """
    for builder in flows:
        holds.put(
            builder.side, holds.recovery(work.plan.recovery_id), "what it built is put in place", work.plan.by
        )
    for builder in flows:
        leases.wait_until_gone(builder.side, work.settings.stop_timeout, work.settings.lease_term)
