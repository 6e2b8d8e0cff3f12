"""``streamkeeper plan``, ``recover`` and ``abandon``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamkeeper.cli.output import say, show
from streamkeeper.errors import PlanRefused, RecoveryError, RequestError, TableLocked
from streamkeeper.outcomes import Outcome
from streamkeeper.settings import Settings

if TYPE_CHECKING:
    from streamkeeper.plans import Plan, Step
    from streamkeeper.requests import ResetRequest

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FlowOption = Annotated[str, typer.Option("--flow", help="The flow, as pipeline.flow or by its own name.")]
From = Annotated[str, typer.Option("--from", help="after-last, earliest, latest, timestamp:MOMENT or offsets:JSON.")]
State = Annotated[str, typer.Option("--state", help="rebuilt or empty, for a query that keeps state.")]
Accept = Annotated[list[str] | None, typer.Option("--accept", help="A price to accept: loss, repeats, missing-history, unknown-price.")]
Again = Annotated[bool, typer.Option("--infer-schemas", help="Infer schemas again that the sources do not declare.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the ledger.")]

planning = typer.Typer(no_args_is_help=True, help="Show what a recovery would do and cost; nothing is touched.")
recovering = typer.Typer(no_args_is_help=True, help="Plan a recovery, ask, and carry it out, without Airflow.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(planning, name="plan")
    app.add_typer(recovering, name="recover")
    app.command()(abandon)


@planning.callback()
@recovering.callback()
def _group() -> None:
    """Keep the recovery's name a command of its own, though there is only one yet."""


@planning.command("reset_checkpoint")
def plan_reset(
    *,
    flow: FlowOption,
    start: From = "after-last",
    state: State = "rebuilt",
    accept: Accept = None,
    infer_schemas: Again = False,
    reason: Reason = "",
    json: AsJson = False,
) -> None:
    """Plan a reset: the next generation of a flow's checkpoint, from a position."""
    from streamkeeper import explain, plans, recoveries

    settings = Settings.from_environment()
    values = {"flow": flow, "state": state, "accept": accept or [], "infer_schemas": infer_schemas, "reason": reason}
    plan = recoveries.plan(settings, _request(settings, start, values), "plan-only")
    show(plans.to_json(plan), json, explain.as_text(plan))


@recovering.command("reset_checkpoint")
def recover_reset(
    *,
    flow: FlowOption,
    start: From = "after-last",
    state: State = "rebuilt",
    accept: Accept = None,
    infer_schemas: Again = False,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    resume: Annotated[str, typer.Option("--resume", help="Go on with this recovery, which was interrupted.")] = "",
    json: AsJson = False,
) -> None:
    """Reset a flow's checkpoint: the steps that the DAG of this name has, here."""
    from streamkeeper import explain, recoveries

    settings = Settings.from_environment()
    if resume:
        plan = _interrupted(settings, flow, resume)
    else:
        values = {"flow": flow, "state": state, "accept": accept or [], "infer_schemas": infer_schemas, "reason": reason}
        plan = recoveries.plan(settings, _request(settings, start, values), _new_id())
    session = _Session(settings, plan, yes, json)
    session.tell(explain.as_text(plan))
    recoveries.check_accepted(plan)
    if not recoveries.was_approved(settings, plan):
        session.approve()
    evidence = {step.value: session.carry_out(step) for step in plan.steps}
    show({"recovery": plan.recovery_id, "evidence": evidence}, json, session.ending(evidence))


def abandon(
    recovery: Annotated[str, typer.Argument(help="The id of a recovery that was interrupted.")],
    *,
    json: AsJson = False,
) -> None:
    """Give up a recovery: its hold and its lock go. A generation that it decided already stays decided."""
    from streamkeeper import ledger, recoveries
    from streamkeeper.storage import open_storage

    settings = Settings.from_environment()
    pipeline = ledger.pipeline_of(open_storage(settings.state), recovery)
    if pipeline is None:
        raise RequestError(f"There is no recovery {recovery!r}. The holds that `streamkeeper flows` shows name those that are at work.")
    recoveries.abandon(settings, pipeline, recovery, _user())
    show({"abandoned": recovery}, json, f"{recovery} is given up; its hold and lock are gone.")


@dataclass(frozen=True)
class _Session:
    """One run of ``recover``: asks where it must, and tells as it goes (on standard error where the result is JSON)."""

    settings: Settings
    plan: Plan
    yes: bool
    as_json: bool

    @property
    def again(self) -> str:
        """The command that goes on with this recovery."""
        return f"streamkeeper recover {self.plan.recovery} --flow {self.plan.flow} --resume {self.plan.recovery_id}"

    def tell(self, text: str) -> None:
        """Print a line of progress."""
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def approve(self) -> None:
        """Ask, and write plan and approval to the ledger.

        :raises PlanRefused: the answer was no.
        """
        from streamkeeper import recoveries

        if not self.yes and not typer.confirm("Carry this out?", err=self.as_json):
            raise PlanRefused("The plan was not approved; nothing was touched.")
        recoveries.propose(self.settings, self.plan)
        recoveries.approve(self.settings, _pipeline(self.plan), self.plan.recovery_id, self.plan.request.by)
        self.tell(f"recovery {self.plan.recovery_id}; if it is interrupted, go on with: {self.again}")

    def carry_out(self, step: Step) -> dict[str, Any]:
        """Carry out one step, and ask again where the price got worse."""
        from streamkeeper import plans, recoveries

        if step is plans.Step.VERIFY_PROGRESS and not recoveries.is_done(self.settings, self.plan, step):
            self._start_driver()
        try:
            evidence = recoveries.carry_out(self.settings, _pipeline(self.plan), self.plan.recovery_id, step.value)
        except TableLocked:
            # Another recovery was faster, between our plan and our first step: nothing of ours is left to go on with.
            recoveries.give_up(self.settings, _pipeline(self.plan), self.plan.recovery_id, "another recovery had the table")
            raise
        self.tell(f"{step.value}: done")
        if step is plans.Step.PLAN_AGAIN and evidence["worse"] and not recoveries.was_approved_again(self.settings, self.plan):
            self._ask_again(evidence["why"])
        return evidence

    def ending(self, evidence: dict[str, Any]) -> str:
        """Say how it stands now."""
        progress = evidence["verify_progress"]
        if "held_by" in progress:
            return f"{self.plan.flow} has generation {self.plan.next_generation}, and is held by {', '.join(progress['held_by'])}."
        return f"{self.plan.flow} runs on generation {progress.get('superseded_by', self.plan.next_generation)}."

    def _ask_again(self, why: list[str]) -> None:
        from streamkeeper import recoveries

        say("\n".join(["The price got worse while the flow stopped:", *why]))
        if self.yes or not typer.confirm("Go on all the same?", err=True):
            recoveries.give_up(
                self.settings, _pipeline(self.plan), self.plan.recovery_id, "the price got worse, and was not approved again"
            )
            raise PlanRefused("The plan got worse and was not approved again. The flow is released; nothing was changed.")
        recoveries.approve(self.settings, _pipeline(self.plan), self.plan.recovery_id, self.plan.request.by, again=True)

    def _start_driver(self) -> None:
        """Run what is there now through the new generation, unless another supervisor's driver has it already."""
        from streamkeeper.cli.running import describe_outcome, drive
        from streamkeeper.manifest import read_manifest

        flow = read_manifest(self.settings).find(self.plan.flow)
        code = drive(self.settings, flow, available_now=True, output=sys.stderr if self.as_json else None)
        if code not in (Outcome.STOPPED, Outcome.LEASE_HELD, Outcome.HELD, Outcome.PARKED):
            raise RecoveryError(
                f"The driver of generation {self.plan.next_generation} of {self.plan.flow} ended with exit code {code} "
                f"({describe_outcome(code)}). The generation is decided and the flow is free to run: see what the driver said above, then "
                f"go on with {self.again}"
            )


def _interrupted(settings: Settings, flow: str, recovery: str) -> Plan:
    """Read the plan of the recovery to go on with.

    :raises RequestError: there is no such recovery, or it is of another flow.
    """
    from streamkeeper import recoveries
    from streamkeeper.manifest import read_manifest

    known = read_manifest(settings).find(flow)
    plan = recoveries.read_plan(settings, known.pipeline.name, recovery)
    if plan.flow != known.full_name:
        raise RequestError(f"The recovery {recovery} is of {plan.flow}, not of {known.full_name}. Name the right flow or recovery.")
    return plan


def _request(settings: Settings, start: str, values: dict[str, Any]) -> ResetRequest:
    from streamkeeper.manifest import read_manifest
    from streamkeeper.requests import parse_reset, values_from_command_line

    return parse_reset({**values_from_command_line(start), **values}, read_manifest(settings), by=_user())


def _new_id() -> str:
    import uuid

    from streamkeeper import recoveries

    return recoveries.recovery_id("reset_checkpoint", f"cli-{uuid.uuid4().hex[:12]}")


def _user() -> str:
    import getpass

    return getpass.getuser()


def _pipeline(plan: Plan) -> str:
    return plan.flow.split(".", maxsplit=1)[0]
