"""The Spark step that rehearses: a recovery, or a declaration, is carried out on a copy.

The steps are those of the recovery, in this application's session, under the settings of the copy. Drivers
are processes of their own. Whatever fails, the copy is removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.errors import RecoveryError, StreamkeeperError
from streamkeeper.flows.backfill_flow import name_of
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.side_flow import side_home
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.recover import course, engine
from streamkeeper.recover.moves.backfill_source import FILL, FillingIn
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import DriverEvidence, Evidence, StepTime, TableEvidence
from streamkeeper.recover.steps import rehearse as rehearsals
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.settings import Settings
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.steps import perform
from streamkeeper_jobs.trial.copied import Copying
from streamkeeper_jobs.trial.differences import compare
from streamkeeper_jobs.trial.drivers import AT_BOUNDS, evidence_of, run_driver
from streamkeeper_jobs.trial.trial import Bounds


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Rehearse, and return the evidence.

    :raises RecoveryError: what was rehearsed failed on the copy, or cannot be rehearsed; nothing was changed.
    """
    rehearsed = rehearsals.rehearsed(work.plan)
    rehearsals.remove(work)
    began = time.monotonic()
    copy = rehearsals.copy_settings(work, rehearsed)
    try:
        rehearsal = _Rehearsal(spark, work, copy, rehearsed)
        rehearsal.copy_all()
        rehearsal.carry_out()
        evidence = rehearsal.evidence(time.monotonic() - began)
    except StreamkeeperError as error:
        raise RecoveryError(
            f"The rehearsal of {work.plan.subject} failed on the copy, and nothing was changed: {error}"
        ) from error
    finally:
        rehearsals.remove(work)
    say(evidence.as_text())
    return {"rehearsed": asdict(evidence), "markdown": evidence.as_markdown()}


class _Enough(Exception):
    """A recovery's own flow has read as much as the bounds allow."""

    def __init__(self, flow: str) -> None:
        super().__init__(flow)
        self.flow = flow


@dataclass(frozen=True)
class _BoundedWork(Work):
    """Work whose flows, which run within a step, are stopped at the bounds of the rehearsal."""

    bounds: Bounds

    def progress(self, **numbers: Any) -> None:
        super().progress(**numbers)
        if {"batch", "rows"} <= {*numbers} and self.bounds.are_reached(lambda: numbers["rows"]):
            raise _Enough(str(numbers.get("flow") or self.plan.details_as(FillingIn).flow))


class _Rehearsal:
    """One rehearsal: the copy, and what was measured on it so far."""

    def __init__(
        self, spark: SparkSession, work: Work, copy: Settings, rehearsed: rehearsals.Rehearsed
    ) -> None:
        self._spark, self._work, self._copy, self._rehearsed = spark, work, copy, rehearsed
        self._copying = Copying(work.settings, copy, work.check_stop)
        self._versions: dict[str, int | None] = {}
        self._plan: Plan | None = None
        self._steps: list[StepTime] = []
        self._drivers: list[DriverEvidence] = []
        self._omitted_steps: tuple[str, ...] = ()

    def copy_all(self) -> None:
        """Copy the tables, what they are read with, and the flows that write them."""
        settings, manifest = self._work.settings, read_manifest(self._work.settings)
        flows = list(self._flows(manifest))
        self._copying.names()
        _check_sources(self._flows(read_manifest(self._copy)))
        tables = {*self._work.plan.tables, *(flow.declaration.target for flow in flows)}
        read = {
            source.table
            for flow in flows
            for source in flow.pipeline.sources_of(flow.declaration)
            if source.table is not None
        }
        for table in sorted(tables | read):
            version = self._copying.table(settings.table_path(table), self._copy.table_path(table))
            if table in tables:
                self._versions[table] = version
                self._copying.backups(self._work.plan.pipeline, table)
        states = _generations(self._work.plan)
        for flow in flows:
            target = flow.declaration.target
            home, path = open_home(settings, flow.full_name), settings.table_path(target)
            self._copying.flow(home, path, self._versions[target], states)

    def carry_out(self) -> None:
        """Carry out the recovery on the copy, if there is one, and let the flows read there."""
        if self._rehearsed.recovery is None:
            flows = (flow.flow for flow in self._work.plan.flows)
            self._drive(read_manifest(self._copy).find(name) for name in flows)
            return
        recovery_kind = kind(self._rehearsed.recovery)
        request = recovery_kind.read_request(self._rehearsed.request)
        plan = engine.plan(self._copy, recovery_kind, request, self._work.plan.recovery_id, on_copy=True)
        self._plan = plan
        shared_steps.check_possible(plan)
        engine.propose(self._copy, plan)
        impacts = {item.impact for item in plan.refusals if item.impact is not None}
        engine.approve(self._copy, plan.pipeline, plan.recovery_id, plan.by, accepted=impacts, asked=False)
        with contextlib.suppress(_Enough):
            # Both approvals are granted: whoever approves the real recovery has seen what this one came to.
            course.carry_through(plan, partial(self._carry_out, plan), lambda stage, evidence: None)

    def _carry_out(self, plan: Plan, step: str) -> dict[str, Any]:
        self._work.check_stop()
        began, since = time.monotonic(), time.time()
        if step == shared_steps.VERIFY_PROGRESS.name:
            manifest = read_manifest(self._copy)
            self._drive(manifest.find(flow.flow) for flow in plan.flows if flow.next_generation is not None)
        try:
            return engine.carry_out(self._copy, plan.pipeline, plan.recovery_id, step, self._in_spark)
        except _Enough as enough:
            self._drivers.append(_read_within(self._copy, plan, step, enough.flow, since))
            self._omitted_steps = plan.steps[plan.steps.index(step) + 1 :]
            raise
        finally:
            self._steps.append(StepTime(step, round(time.monotonic() - began, 1)))
            self._work.progress(step=step)

    def evidence(self, seconds: float) -> Evidence:
        """Return what it came to."""
        return Evidence(
            plan=self._plan,
            pipelines=str(self._copy.pipelines),
            seconds=round(seconds, 1),
            files=self._copying.amount.files,
            bytes=self._copying.amount.bytes,
            steps=tuple(self._steps),
            drivers=tuple(self._drivers),
            tables=tuple(self._tables()),
            environment=self._copy.environment,
            skipped_steps=self._omitted_steps,
        )

    def _in_spark(self, act: str, work: Work) -> dict[str, Any]:
        bounded = _BoundedWork(work.settings, work.plan, work.book, work.step, self._bounds())
        return perform(self._spark, act, bounded)

    def _drive(self, flows: Iterator[Flow]) -> None:
        for flow in flows:
            self._drivers.append(run_driver(self._copy, flow, self._bounds(), self._work.check_stop))

    def _bounds(self) -> Bounds:
        return Bounds(self._rehearsed.minutes * 60, self._rehearsed.files is not None)

    def _flows(self, manifest: Manifest) -> Iterator[Flow]:
        """Yield the flows of the plan, and all that write a table of it."""
        plan = self._work.plan
        for flow in manifest.flows():
            named = plan.flow(flow.full_name) is not None
            writes = flow.pipeline.name == plan.pipeline and flow.declaration.target in plan.tables
            if named or writes:
                yield flow

    def _tables(self) -> Iterator[TableEvidence]:
        manifest = read_manifest(self._copy)
        for table, version in self._versions.items():
            keys = next(
                (
                    flow.declaration.spec.keys
                    for flow in manifest.writers(self._work.plan.pipeline, table)
                    if flow.declaration.spec is not None
                ),
                (),
            )
            yield compare(self._spark, table, self._copy.table_path(table), version, keys)


def _read_within(copy: Settings, plan: Plan, step: str, name: str, since: float) -> DriverEvidence:
    """Return what a recovery's own flow did for a declared one, from its step's begin to its bounds."""
    home, seconds = open_home(copy, name), time.time() - since
    if step != FILL:
        return evidence_of(side_home(home, plan.recovery_id), name, AT_BOUNDS, seconds, since)
    own = FlowHome(home.storage, home.pipeline, name_of(home.flow, plan.recovery_id))
    reads = plan.details_as(FillingIn).reads
    evidence = evidence_of(own, name, AT_BOUNDS, seconds, since)
    return replace(evidence, total=None if reads is None else reads.rows)


def _generations(plan: Plan) -> set[int]:
    """Return the generations whose state a plan may need."""
    named = [number for flow in plan.flows for number in (flow.previous, flow.start.generation)]
    return {number for number in named if number is not None}


def _check_sources(flows: Iterator[Flow]) -> None:
    """Check that a driver on the copy takes nothing away from the sources.

    :raises RecoveryError: one would remove or move files that it has read.
    """
    for flow in flows:
        for source in flow.pipeline.sources_of(flow.declaration):
            if source.takes_files:
                raise RecoveryError(
                    f"The source {source.name} of {flow.full_name} has cleanSource"
                    f" {source.option('cleanSource')}: a driver on a copy would take away files that the flow"
                    " needs. Declare it off in a folder of its own, and rehearse that (pipelines)."
                )
