"""One run of ``streamkeeper recover``: asks, carries out the steps, and prints the progress."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import typer

from streamkeeper.cli import running
from streamkeeper.cli.output import put, say
from streamkeeper.errors import PlanRefused, RecoveryError, StreamkeeperError, TableLocked
from streamkeeper.exit_codes import Outcome, described
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import course, engine
from streamkeeper.recover.course import Undone
from streamkeeper.recover.plans import approvers, rehearsal
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.steps import submission
from streamkeeper.recover.steps.shared import PLAN_AGAIN, VERIFY_PROGRESS
from streamkeeper.settings import DEFAULT_MASTER, Settings


@dataclass(frozen=True)
class Session:
    """One run of ``recover``; prints progress, to standard error if the result is JSON."""

    settings: Settings
    plan: Plan
    yes: bool
    as_json: bool
    master: str = DEFAULT_MASTER

    @property
    def _named(self) -> tuple[Settings, str, str]:
        return self.settings, self.plan.pipeline, self.plan.recovery_id

    @property
    def again(self) -> str:
        """The command that continues this recovery."""
        elsewhere = "" if self.master == DEFAULT_MASTER else f" --master '{self.master}'"
        return f"streamkeeper recover {self.plan.recovery} --resume {self.plan.recovery_id}{elsewhere}"

    def tell(self, text: str) -> None:
        """Print a line of progress."""
        put(text, sys.stderr if self.as_json else sys.stdout)

    def try_out(self) -> dict[str, dict[str, Any]]:
        """Carry out the steps before approval, if the kind has any, and return their evidence.

        Change nothing.

        :raises StreamkeeperError: one could not be done: what was planned does not fit. The recovery is given
            up.
        """
        steps = course.trial(self.plan)
        if steps:
            engine.propose(self.settings, self.plan)
        try:
            return {step.name: self.carry_out(step.name) for step in steps}
        except StreamkeeperError as error:
            engine.give_up(*self._named, f"{Undone.TRIAL_FAILED}: {error}")
            raise

    def dry_run(self) -> dict[str, dict[str, Any]]:
        """Do as :meth:`try_out`, then end the recovery."""
        try:
            return self.try_out()
        finally:
            engine.end_dry_run(*self._named)

    def carry_through(self) -> dict[str, dict[str, Any]]:
        """Check, try, ask and carry out, or go on where an earlier run ended; return the steps' evidence.

        :raises PlanRefused: the plan is refused, or an answer was no.
        :raises StreamkeeperError: a step could not be done.
        """
        # What was accepted with the approval is in the ledger, which the steps ask.
        approved = engine.was_approved(self.settings, self.plan)
        if not approved:
            if kind(self.plan.recovery).after_approval:
                self._check_approver()
            course.check(self.plan, asks=False)
            self.try_out()

        def approval(stage: course.Approval, evidence: course.Evidence) -> None:
            if stage.again:
                self._approve_again(evidence[PLAN_AGAIN.name])
            elif not approved:
                self._approve()

        return course.carry_through(self.plan, self.carry_out, approval)

    def _check_approver(self) -> None:
        """Check, before anything is written, that whoever runs this may approve its own plan.

        :raises PlanRefused: the settings forbid it.
        """
        if self.yes:
            approvers.check_off(self.settings)
        approvers.check(self.settings, self.plan, running.user())

    def _approve(self) -> None:
        """Ask, and write plan and approval to the ledger; a rehearsal has nothing that needs approval.

        :raises PlanRefused: the answer was no.
        """
        if not kind(self.plan.recovery).after_approval:
            return
        if not self.yes and not _confirmed("Carry this out?", self.as_json):
            if engine.is_open(*self._named):
                engine.give_up(*self._named, Undone.REJECTED)
            raise PlanRefused("The plan was not approved. Nothing was changed.")
        engine.propose(self.settings, self.plan)
        engine.approve(*self._named, running.user())
        self.tell(f"recovery {self.plan.recovery_id}; if it is interrupted, continue with: {self.again}")

    def carry_out(self, step: str) -> dict[str, Any]:
        """Carry out one step, in Spark if it needs that.

        :raises StreamkeeperError: the step could not be done.
        """
        done = engine.evidence_of(*self._named, step)
        if step == VERIFY_PROGRESS.name and done is None:
            for flow in self.plan.flows:
                self._start_driver(flow)
        in_spark = kind(self.plan.recovery).step(step).needs_spark
        if in_spark and engine.without_spark(*self._named, step) is None:
            self._submit(step)
        try:
            evidence = engine.carry_out(*self._named, step)
        except TableLocked:
            # Another recovery locked the table between our plan and our first step: there is nothing to
            # continue.
            engine.give_up(*self._named, Undone.LOCKED)
            raise
        self.tell(f"{step}: done")
        return evidence

    def ending(self, evidence: dict[str, Any]) -> str:
        """Return the final state of the flows; of a rehearsal what it came to, and how to go on."""
        if self.plan.recovery == rehearsal.REHEARSE:
            rehearsed = rehearsal.read(evidence[rehearsal.REHEARSE])
            tried = self.plan.request["recovery"]
            name = f"--rehearsal {self.plan.recovery_id}"
            way = (
                f"Go: the same values to streamkeeper recover {tried}, with {name}." if rehearsed.plan else ""
            )
            return "\n".join(filter(None, (rehearsed.as_text(), way)))
        progress = evidence.get("verify_progress", {}).get("flows", {})
        lines = [_ending(flow, progress[flow.flow]) for flow in self.plan.flows if flow.flow in progress]
        return "\n".join(lines or [f"{self.plan.recovery} of {self.plan.subject} is done."])

    def _approve_again(self, planned_again: dict[str, Any]) -> None:
        if not planned_again["worse"] or engine.was_approved(self.settings, self.plan, again=True):
            return
        say("\n".join(["The impact got worse while the flows stopped:", *planned_again["reasons"]]))
        try:
            asks = course.asks_at(course.APPROVE_AGAIN, planned_again, asks=not self.yes)
            if asks and not _confirmed("Continue anyway?", True):
                raise PlanRefused(
                    "The plan got worse and was not approved again. The flows are released; nothing was"
                    " changed."
                )
        except PlanRefused:
            engine.give_up(*self._named, Undone.WORSE)
            raise
        engine.approve(*self._named, running.user(), again=True)

    def _submit(self, step: str) -> None:
        """Run a step in an application of its own; its evidence and its error are in the ledger."""
        job = submission.recovery_step(*self._named, step, self.master)
        job.check_host()
        output = sys.stderr if self.as_json else None
        code = subprocess.run(
            job.command(), env=job.environment, stdin=subprocess.DEVNULL, stdout=output, check=False
        ).returncode
        if code:
            recorded_reason = engine.why_failed(*self._named, step)
            way_on = (
                ""
                if kind(self.plan.recovery).step(step).unasked
                else f" Fix that, then continue with {self.again}"
            )
            reason = (recorded_reason or "see Spark's output above").rstrip(".")
            raise RecoveryError(f"The step {step} ended with {described(code)}: {reason}.{way_on}")

    def _start_driver(self, flow: FlowPlan) -> None:
        """Run available data through a new generation, unless another supervisor's driver has the flow."""
        if flow.next_generation is None:
            return
        declared_flow = read_manifest(self.settings).find(flow.flow)
        code = running.drive(
            self.settings, declared_flow, True, self.master, sys.stderr if self.as_json else None
        )
        if code not in (Outcome.STOPPED, Outcome.LEASE_HELD, Outcome.HELD, Outcome.PARKED):
            raise RecoveryError(
                f"The driver of generation {flow.next_generation} of {flow.flow} ended with"
                f" {described(code)}: {running.describe_outcome(code)}. The generation is decided and the"
                f" flow is free to run: see the driver's output above, then continue with {self.again}"
            )


def _confirmed(question: str, err: bool) -> bool:
    """Ask; without a terminal, or if the question is aborted, the answer is no."""
    try:
        return typer.confirm(question, err=err)
    except typer.Abort:
        return False


def _ending(flow: FlowPlan, progress: dict[str, Any]) -> str:
    if "held_by" in progress:
        return (
            f"{flow.flow} has generation {flow.next_generation}, and is held by"
            f" {', '.join(progress['held_by'])}."
        )
    return f"{flow.flow} runs on generation {progress.get('superseded_by', flow.next_generation)}."
