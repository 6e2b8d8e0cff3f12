"""The tasks of a recovery's DAG. Each calls one function of :mod:`streamkeeper.recoveries`, as the command line does.

    plan >> approve >> hold >> plan_again >> approve_again >> decide >> … ; decide >> give_up

``plan`` checks everything that the form gave before anything is touched. What ends before ``decide`` leaves nothing behind: ``give_up``
sees to it.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Context, SkipMixin, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamkeeper import explain, plans, recoveries
from streamkeeper.errors import PlanRefused, RecoveryError, StreamkeeperError, TableLocked, UsageError
from streamkeeper.manifest import read_manifest
from streamkeeper.requests import parse_reset, reset_form
from streamkeeper.settings import Settings
from streamkeeper_airflow import forms
from streamkeeper_airflow.recovery_alerts import is_decided, is_last_try, tell_failed, tell_finished, tell_given_up

PLAN, PLAN_AGAIN, DECIDE = "plan", plans.Step.PLAN_AGAIN.value, plans.Step.DECIDE.value
FINAL = (UsageError, PlanRefused, TableLocked, RecoveryError)
"""Errors that another try would meet again."""


class ResetPlan(BaseOperator, SkipMixin):
    """Checks the form's values, all of them together, plans the reset, writes the plan to the ledger, and hands it on as Markdown.

    A dry run ends here: what follows is skipped.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Give what the later tasks need, the plan as Markdown among it; only the ledger is written.

        :raises AirflowFailException: a value does not fit, the table is locked, or the plan has a price that was not accepted.
        """
        settings = Settings.from_environment()
        try:
            manifest = read_manifest(settings)
            fields = reset_form(manifest)
            given = forms.values(context, fields)
            request = parse_reset(given, manifest, by=forms.asker(context))
            run = context["dag_run"]
            plan = recoveries.plan(settings, request, recoveries.recovery_id(run.dag_id, run.run_id))
            self.log.info("%s", explain.as_text(plan))
            dry_run = bool(given.get("dry_run", False))
            if not dry_run:
                recoveries.check_accepted(plan)
                # A cleared task plans anew, but what is shown, approved and carried out is the plan that the ledger has.
                plan = recoveries.propose(settings, plan)
        except FINAL as error:
            raise AirflowFailException(str(error)) from error
        flow = manifest.find(plan.flow)
        handed_on = {
            "recovery": plan.recovery_id,
            "pipeline": plan.flow.split(".")[0],
            "flow": plan.flow,
            "markdown": explain.as_markdown(plan),
            "dag_id": flow.dag_id,
            "once": flow.declaration.once,
            "approval": bool(given.get("approval", True)),
            "dry_run": dry_run,
        }
        if dry_run:
            self.log.info("This was a dry run: nothing was changed, and what follows is skipped.")
            context["ti"].xcom_push(key="return_value", value=handed_on)
            self.skip(context["ti"], self.get_direct_relatives(upstream=False))
        return handed_on


ASKS = 100
"""Retries of a question: Airflow 3.3 loses an answer that comes before its scheduler has seen the asking process end, and asks again."""


class PlanApproval(ApprovalOperator):
    """Waits, without a slot, until someone approves the plan, and writes to the ledger who did.

    Where the form switched asking off, it passes at once and writes that down.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {
            "subject": "Approve the reset of {{ ti.xcom_pull(task_ids='plan')['flow'] }}?",
            "body": "{{ ti.xcom_pull(task_ids='plan')['markdown'] }}",
            **kwargs,
        }
        super().__init__(**kwargs)

    again = False

    def execute(self, context: Context) -> Any:
        """Ask, unless there is nothing to ask.

        :raises AirflowFailException: the price got worse, and the form switched asking off.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        if not self._has_question(context):
            self.log.info("The price is the one that was approved.")
            return None
        if plan["approval"]:
            return super().execute(context)
        if self.again:
            raise AirflowFailException(
                f"The price got worse since the plan was made, and approval is switched off, so the reset of {plan['flow']} ends here. "
                "It changed nothing. Trigger it again with approval switched on."
            )
        self._approved(context, f"{forms.asker(context)}, approval switched off in the form")
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write down who approved; a rejection skips what follows."""
        if "error" not in event and event["chosen_options"] == [self.APPROVE]:
            user = event.get("responded_by_user") or {}
            self._approved(context, str(user.get("name") or user.get("id") or "someone in Airflow"))
        return super().execute_complete(context, event)

    def _has_question(self, context: Context) -> bool:
        return True

    def _approved(self, context: Context, by: str) -> None:
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        recoveries.approve(Settings.from_environment(), plan["pipeline"], plan["recovery"], by, again=self.again)


class WorsePriceApproval(PlanApproval):
    """Asks once more only if the plan that was made again under the hold costs more than the approved one."""

    again = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="The price got worse. Approve the reset of {{ ti.xcom_pull(task_ids='plan')['flow'] }} all the same?",
            body="{{ ti.xcom_pull(task_ids='plan_again')['markdown'] }}",
            **kwargs,
        )

    def _has_question(self, context: Context) -> bool:
        return bool(context["ti"].xcom_pull(task_ids=PLAN_AGAIN)["worse"])


class RecoveryStep(BaseOperator):
    """Carries out one step of a recovery; a step that is done already gives its evidence again, so clearing a task is always safe.

    :param task_id: the step, one of :class:`streamkeeper.plans.Step`.
    :param patient: try again where a recovery says that it could not be done yet.
    """

    def __init__(self, *, patient: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patient = patient

    def execute(self, context: Context) -> dict[str, Any]:
        """Give the step's evidence.

        :raises AirflowFailException: another try would meet the same error again.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        try:
            evidence = recoveries.carry_out(Settings.from_environment(), plan["pipeline"], plan["recovery"], self.task_id)
        except StreamkeeperError as error:
            final = isinstance(error, FINAL) and not (self.patient and isinstance(error, RecoveryError))
            way_on = self._way_on(plan["recovery"])
            if final or is_last_try(context):
                tell_failed(plan, context, self.task_id, error, way_on)
            if final:
                raise AirflowFailException(f"{error}{way_on}") from error
            raise
        self.log.info("%s: %s", self.task_id, {key: value for key, value in evidence.items() if key != "plan"})
        if "plan" in evidence:
            worse = "\n".join(f"- {item}" for item in evidence["why"])
            evidence = {**evidence, "markdown": f"{worse}\n\n{explain.as_markdown(plans.from_json(evidence['plan']))}"}
        if self.task_id == plans.STEPS[-1].value:
            tell_finished(plan, context, evidence)
        return evidence

    def _way_on(self, recovery: str) -> str:
        """Say what becomes of a recovery that failed after its decision: until then GiveUp takes everything back."""
        if not is_decided(self.task_id):
            return ""
        return (
            "\nThe next generation is decided. Put right what is said above and clear this task: the recovery goes on from here. Or leave "
            f"it with `streamkeeper abandon {recovery}`: its hold and lock go, and the flow runs on the new generation."
        )


class RunAgain(TriggerDagRunOperator):
    """Triggers the DAG of a flow that runs once: after a reset nothing else would. It is skipped for every other flow.

    The run is named after the recovery, so that a task that is cleared triggers no second one.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            trigger_dag_id="{{ ti.xcom_pull(task_ids='plan')['dag_id'] }}",
            trigger_run_id="{{ ti.xcom_pull(task_ids='plan')['recovery'] }}",
            skip_when_already_exists=True,
            **kwargs,
        )

    def execute(self, context: Context) -> None:
        """Trigger it.

        :raises AirflowSkipException: the flow never ends, so its DAG runs already.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        if not plan["once"]:
            raise AirflowSkipException(f"{plan['flow']} is kept running by its DAG; nothing has to be triggered.")
        super().execute(context)


class GiveUp(BaseOperator):
    """Runs once ``decide`` is over, however it ended: where nothing was decided, it takes the recovery's hold and lock away."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {"trigger_rule": TriggerRule.ALL_DONE, **kwargs}
        super().__init__(**kwargs)

    def execute(self, context: Context) -> None:
        """Leave nothing behind.

        :raises AirflowSkipException: there is nothing to give up.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        if plan is None or plan["dry_run"]:
            raise AirflowSkipException("Nothing was begun, so there is nothing to give up.")
        if context["ti"].xcom_pull(task_ids=DECIDE) is not None:
            raise AirflowSkipException("The next generation is decided, so there is nothing to give up.")
        why = "rejected, or failed before anything was decided"
        if not recoveries.give_up(Settings.from_environment(), plan["pipeline"], plan["recovery"], why):
            raise AirflowSkipException(
                "The next generation is decided already: clear the failed task, and the recovery goes on from there."
            )
        said = f"The recovery {plan['recovery']} of {plan['flow']} was given up: its hold and lock are gone, and nothing else was changed."
        self.log.info("%s", said)
        tell_given_up(plan, context, f"{said} It was {why}.")
