"""Asks a person for approval of a recovery's plan, and records who approved it in the ledger."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from streamkeeper.errors import PlanRefused
from streamkeeper.recover import course, engine
from streamkeeper.recover.steps.shared import PLAN_AGAIN
from streamkeeper.settings import Settings
from streamkeeper_airflow import forms

PLAN = "plan"

ASKS = 100
"""Retries of a question.

Airflow 3.3 loses an answer that comes before its scheduler has seen the asking process end, and asks again.
"""


class PlanApproval(ApprovalOperator):
    """Waits, without a slot, until a person approves the plan, and records the approval in the ledger.

    If the form switched approval off, it passes at once and records that.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {
            "subject": "Approve {{ ti.xcom_pull(task_ids='plan')['asks'] }}?",
            "body": "{{ ti.xcom_pull(task_ids='plan')['markdown'] }}\n\n"
            "{{ (ti.xcom_pull(task_ids='rehearse') or {}).get('markdown', '') }}",
            **kwargs,
        }
        super().__init__(**kwargs)

    stage = course.APPROVE

    def execute(self, context: Context) -> Any:
        """Ask, unless there is nothing to ask.

        :raises AirflowFailException: the impact got worse, and the form switched approval off.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        planned_again = context["ti"].xcom_pull(task_ids=PLAN_AGAIN.name) if self.stage.again else {}
        try:
            if course.asks_at(self.stage, planned_again, asks=plan["approval"]):
                self.options = [self._consent(context), self.REJECT]
                return super().execute(context)
        except PlanRefused as error:
            raise AirflowFailException(str(error)) from error
        if self.stage.again:
            self.log.info("The impact has not changed since the approval.")
        else:
            self._approved(context, f"{forms.asker(context)}, approval switched off in the form", asked=False)
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Record who approved; a rejection skips what follows.

        :raises ApprovalRefused: who answered may not approve it; the task's next try asks again.
        """
        if "error" not in event and event["chosen_options"] == [self._consent(context)]:
            user = event.get("responded_by_user") or {}
            self._approved(context, str(user.get("name") or user.get("id") or "someone in Airflow"))
            event = {**event, "chosen_options": [self.APPROVE]}
        return super().execute_complete(context, event)

    def _consent(self, context: Context) -> str:
        """Return the label of the approving button: it names the impacts that it accepts."""
        plan = context["ti"].xcom_pull(task_ids=PLAN_AGAIN.name if self.stage.again else PLAN)
        return str(plan.get("consent", self.APPROVE))

    def _approved(self, context: Context, by: str, *, asked: bool = True) -> None:
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        recovery_key = (Settings.from_environment(), plan["pipeline"], plan["recovery"])
        again = self.stage.again
        accepted = () if again else plan.get("impacts", ())
        engine.approve(*recovery_key, by, again=again, accepted=accepted, asked=asked)


class WorseImpactApproval(PlanApproval):
    """Asks again only if the plan made again under the hold costs more than the approved one."""

    stage = course.APPROVE_AGAIN

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="The impact got worse. Approve {{ ti.xcom_pull(task_ids='plan')['asks'] }} anyway?",
            body="{{ ti.xcom_pull(task_ids='plan_again')['markdown'] }}",
            **kwargs,
        )
