"""Backups and restores to try things on: recoveries carried out in this process, step by step, killed where a
test wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.flows.ledger import Event, Ledger
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from tests.killing import Killed
from tests.worlds.flow_world import Flowbed
from tests.worlds.small_world import write_manifest


@dataclass
class Recoverer:
    """Plans and carries out recoveries of one pipeline."""

    spark: SparkSession
    settings: Settings
    pipeline: str

    @classmethod
    def of(cls, bed: Flowbed) -> Recoverer:
        """Recover the flow of a bed."""
        return cls(bed.spark, bed.settings, bed.home.pipeline)

    def draft(self, recovery: str, name: str = "r1", /, **values: Any) -> Plan:
        """Plan a recovery of a kind, and write nothing of it."""
        of, manifest = kind(recovery), write_manifest(self.settings)
        return engine.plan(self.settings, of, of.parse(values, manifest, "ada"), name)

    def impacts(self, recovery: str, /, **values: Any) -> list[str | None]:
        """Return what a plan asks to accept."""
        return [refusal.impact for refusal in self.draft(recovery, **values).refusals]

    def plan(self, recovery: str, name: str, /, **values: Any) -> Plan:
        """Plan a recovery of a kind, propose and approve it."""
        made = engine.propose(self.settings, self.draft(recovery, name, **values))
        engine.approve(self.settings, self.pipeline, name, "ada")
        return made

    def step(self, name: str, step: str) -> dict[str, Any]:
        """Carry out one step."""
        from streamkeeper_jobs.steps import perform

        return engine.carry_out(
            self.settings, self.pipeline, name, step, lambda act, work: perform(self.spark, act, work)
        )

    def until(self, name: str, last: str) -> dict[str, Any]:
        """Carry out the steps of a recovery up to and with one; give the evidence of each."""
        steps = engine.read_plan(self.settings, self.pipeline, name).steps
        return {step: self.step(name, step) for step in steps[: steps.index(last) + 1]}

    def carry_out(self, plan: Plan) -> dict[str, Any]:
        """Carry out the steps of a recovery; give the evidence of each. The wait for progress is left out."""
        return {step: self.step(plan.recovery_id, step) for step in plan.steps if step != "verify_progress"}

    def run(self, recovery: str, name: str, /, *, killed: bool = False, **values: Any) -> dict[str, Any]:
        """Plan a recovery and carry it out; give the evidence of all steps.

        :param killed: every step is killed at its end and run again.
        """
        plan = self.plan(recovery, name, **values)
        if not killed:
            return self.carry_out(plan)
        steps = [step for step in plan.steps if step != "verify_progress"]
        return {step: self.step_killed_at_its_end(name, step) for step in steps}

    def backup(self, name: str, table: str, **values: Any) -> dict[str, Any]:
        """Back a table up, and give the entry."""
        entry: dict[str, Any] = self.run("backup_table", name, table=table, **values)["enter"]["backups"][0]
        return entry

    def step_killed_at_its_end(self, name: str, step: str) -> dict[str, Any]:
        """Carry out a step whose process is killed when all is done and nothing of that is written down; then
        carry it out again.
        """
        real = Ledger.record

        def record(book: Ledger, event: str, evidence: dict[str, Any]) -> Event:
            if event == f"{step}.done":
                raise Killed
            return real(book, event, evidence)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Ledger, "record", record)
            with pytest.raises(Killed):
                self.step(name, step)
        return self.step(name, step)
