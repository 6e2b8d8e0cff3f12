"""The tasks of a recovery's DAG.

Each calls one function of :mod:`streamkeeper.recover.engine`, as the command line does.
"""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Context, SkipMixin, TriggerRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.log import mask_secret

from streamkeeper.drivers import submit
from streamkeeper.errors import (
    PlanRefused,
    RecoveryError,
    RequestError,
    StreamkeeperError,
    TableLocked,
    UsageError,
)
from streamkeeper.manifest.manifest import Manifest, read_manifest, settings_of
from streamkeeper.recover import course, engine
from streamkeeper.recover.plans import approvers, explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Kind, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import REHEARSE
from streamkeeper.recover.rehearse import values_of
from streamkeeper.recover.requests.form import APPROVAL, DRY_RUN
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.recover.steps import submission
from streamkeeper.recover.steps.rehearse import rehearsed
from streamkeeper.redaction import secrets_in
from streamkeeper.settings import Settings, dag_id
from streamkeeper.support.markdown import plain
from streamkeeper_airflow import forms
from streamkeeper_airflow.flow.submit import SubmitJob
from streamkeeper_airflow.recovery.alerts import (
    end_refused,
    is_last_try,
    tell_failed,
    tell_finished,
    tell_undone,
)
from streamkeeper_airflow.recovery.approvals import PLAN

_log = logging.getLogger(__name__)

FINAL = (UsageError, PlanRefused, TableLocked, RecoveryError)
"""Errors that another try would meet again."""

REFUSALS = (RequestError, PlanRefused, TableLocked)
"""Refusals of a plan, which are answers and no failures."""


class PlanRecovery(BaseOperator, SkipMixin):
    """Checks all values of the form, makes the plan, writes it to the ledger, and passes it on as Markdown.

    A dry run ends here, or after the steps of the kind that run before approval: what follows is skipped. A
    refused plan ends the run as *skipped*, with the reasons in its note. An alert reports a refusal of what a
    schedule asked for and, if nobody will be asked, an impact that was not accepted.

    :param kind_name: the kind of recovery.
    """

    def __init__(self, *, kind_name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind_name = kind_name

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what the later tasks need, including the plan as Markdown; write nothing but the ledger.

        :raises AirflowSkipException: a value does not fit, a table is locked, or the plan has an impact that
            was not accepted.
        :raises AirflowFailException: the same in a scheduled run; or another try would meet the same error
            again.
        """
        settings, recovery_kind = Settings.from_environment(), kind(self.kind_name)
        try:
            manifest = read_manifest(settings)
            form_values = forms.values(context, recovery_kind.form(manifest))
            asks, dry_run = bool(form_values.get(APPROVAL, True)), bool(form_values.get(DRY_RUN, False))
            plan = self._plan(context, settings, recovery_kind, form_values, manifest)
            if not dry_run:
                self._check(context, plan, manifest, asks=asks)
            tries = bool(course.trial(plan))
            if tries or not dry_run:
                # A cleared task makes a new plan, but the plan in the ledger is shown, approved and carried
                # out.
                plan = engine.propose(settings, plan)
        except REFUSALS as error:
            end_refused(context, error)
        except FINAL as error:
            raise AirflowFailException(str(error)) from error
        handed_on = {
            **_named(plan, recovery_kind, manifest),
            "markdown": explain.as_markdown(plan),
            "consent": explain.consent(plan),
            "impacts": sorted({item.impact for item in plan.refusals if item.impact is not None}),
            "go": _go(plan),
            "connection": _connection(settings, plan, manifest),
            "once_dags": sorted(
                {manifest.find(flow.flow).dag_id for flow in plan.flows if flow.once and flow.next_generation}
            ),
            APPROVAL: asks,
            DRY_RUN: dry_run,
        }
        if dry_run and not tries:
            _end_dry_run(self, context, handed_on)
        return handed_on

    def _plan(
        self,
        context: Context,
        settings: Settings,
        recovery_kind: Kind,
        form_values: dict[str, Any],
        manifest: Manifest,
    ) -> Plan:
        for secret in secrets_in(form_values):
            mask_secret(secret)
        run = context["dag_run"]
        # A dry run ends its recovery, so a cleared one needs another id.
        name = f"{run.run_id}/dry run {context['ti'].try_number}" if form_values.get(DRY_RUN) else run.run_id
        recovery = engine.recovery_id(recovery_kind.name, name)
        try:
            request = recovery_kind.parse(form_values, manifest, forms.asker(context))
            plan = engine.plan(settings, recovery_kind, request, recovery)
        except REFUSALS as error:
            # A run that names its rehearsal was started by the person who said go.
            if run.run_type != "manual" and not form_values.get("rehearsal"):
                tell_undone(_unplanned(recovery, form_values, manifest), context, f"did not start: {error}")
            raise
        self.log.info("%s", explain.as_text(plan))
        return plan

    def _check(self, context: Context, plan: Plan, manifest: Manifest, *, asks: bool) -> None:
        try:
            if not asks and context["dag_run"].run_type == "manual":
                approvers.check_off(Settings.from_environment())
            course.check(plan, asks=asks)
        except PlanRefused as error:
            if not asks:
                tell_undone(_named(plan, kind(plan.recovery), manifest), context, f"did not start: {error}")
            raise


def _connection(settings: Settings, plan: Plan, manifest: Manifest) -> str:
    """Return the connection of a recovery's jobs: the one that its pipelines share, else the settings'."""
    pipelines = filter(None, map(manifest.pipeline, plan.pipelines))
    return settings_of(settings, list(pipelines)).connection


def _go(plan: Plan) -> dict[str, Any] | None:
    """Return the DAG that an approved rehearsal starts, and its values; None if there is none.

    The values name the rehearsal, and accept the impacts that its approval names.
    """
    if plan.recovery != REHEARSE:
        return None
    tried = rehearsed(plan)
    if tried.recovery is None:
        return None
    request = plan.request.get("request") or {}
    impacts = sorted({item.impact for item in plan.refusals if item.impact is not None})
    return {
        "dag": dag_id(tried.recovery),
        "conf": {
            **values_of(
                kind(tried.recovery), plan.request["flow"], f"{plan.pipeline}.{plan.tables[0]}", request
            ),
            "rehearsal": plan.recovery_id,
            "reason": plan.reason or f"go, as rehearsed by {plan.recovery_id}",
            "accept": impacts,
            APPROVAL: False,
        },
    }


def _named(plan: Plan, recovery_kind: Kind, manifest: Manifest) -> dict[str, Any]:
    """Return a recovery's names for tasks and alerts.

    ``flow`` is the one to which alerts belong. A table's recovery has its first writer or, if no flow writes
    the table any more, any flow of its pipeline; None if there is none.
    """
    of_pipeline = [flow for flow in manifest.flows() if flow.pipeline.name == plan.pipeline]
    of_pipeline.sort(key=lambda flow: flow.declaration.target not in plan.tables)
    flow_names = [*(flow.flow for flow in plan.flows), *(flow.full_name for flow in of_pipeline)]
    return {
        "kind": recovery_kind.name,
        "recovery": plan.recovery_id,
        "pipeline": plan.pipeline,
        "flow": next(iter(flow_names), None),
        "subject": plan.subject,
        "asks": f"the {recovery_kind.noun or recovery_kind.name} of {plan.subject}",
    }


def _unplanned(recovery: str, form_values: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the names, for an alert, of a recovery that got no plan: from what it was asked for."""
    single = (form_values.get(name) for name in ("flow", "table", "pipeline"))
    several = (name for names in ("flows", "tables") for name in form_values.get(names) or ())
    subject = str(next(filter(None, (*single, *several)), "all"))
    pipeline = subject.partition(".")[0]
    flows = [flow for flow in manifest.flows() if pipeline in (flow.pipeline.name, "all")]
    flows.sort(key=lambda flow: subject not in (flow.full_name, f"{pipeline}.{flow.declaration.target}"))
    flow = next((flow.full_name for flow in flows), None)
    return {"recovery": recovery, "pipeline": pipeline, "flow": flow, "subject": subject}


class RecoveryStep(BaseOperator):
    """Carries out one step of a recovery.

    A completed step returns its evidence again, so clearing it is safe.

    :param task_id: the step, one of the kind's.
    :param kind_name: the kind of recovery.
    :param patient: try again if the recovery reports that it could not be done yet.
    """

    def __init__(self, *, kind_name: str, patient: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind_name = kind_name
        self.patient = patient

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the step's evidence.

        :raises AirflowSkipException: the plan was made again under the hold, and is refused; GiveUp removes
            the hold.
        :raises AirflowFailException: another try would meet the same error again.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        try:
            evidence = engine.carry_out(
                Settings.from_environment(), plan["pipeline"], plan["recovery"], self.task_id
            )
        except PlanRefused as error:
            tell_failed(plan, context, self.task_id, error, "")
            end_refused(context, error)
        except StreamkeeperError as error:
            final = isinstance(error, FINAL) and not (self.patient and isinstance(error, RecoveryError))
            _fail(self.task_id, context, error, final=final)
        return _handed_on(self, plan, context, evidence)


class SparkStep(SubmitJob):
    """Carries out one step of a recovery that needs Spark, as a separate job.

    A step that is already done, or has nothing to do, starts no Spark. Parameters as :class:`RecoveryStep`.
    """

    def __init__(self, *, kind_name: str, patient: bool = False, **kwargs: Any) -> None:
        name = f"{kind_name} {kwargs['task_id']}"
        super().__init__(job=submit.RECOVERY_JOB, name=name, **kwargs)
        self.kind_name = kind_name
        self.patient = patient

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # the provider's returns nothing
        """Return the step's evidence, which the job writes to the ledger.

        :raises AirflowFailException: another try would meet the same error again.
        :raises AirflowException: the job failed otherwise.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        settings = Settings.from_environment()
        step_key = (settings, plan["pipeline"], plan["recovery"], self.task_id)
        try:
            evidence = engine.without_spark(*step_key)
        except StreamkeeperError as error:
            _fail(self.task_id, context, error, final=isinstance(error, FINAL) and not self.patient)
        if evidence is None:
            self._conn_id = plan["connection"]
            try:
                self.take(lambda master: submission.recovery_step(*step_key, master))
            except StreamkeeperError as error:
                _fail(self.task_id, context, error, final=False)
            try:
                super().execute(context)
            except AirflowException as error:
                reason = engine.why_failed(*step_key)
                final = reason is not None and reason.partition(":")[0] in _names(FINAL) and not self.patient
                _fail(self.task_id, context, RecoveryError(reason) if reason else error, final=final)
            evidence = engine.evidence_of(*step_key)
            if evidence is None:
                raise AirflowException(
                    f"The job succeeded, but the ledger has no end of {self.task_id}. See the job's log"
                    " above."
                )
        return _handed_on(self, plan, context, evidence)


class UnaskedStep(SparkStep, SkipMixin):
    """A step that changes nothing and runs before approval; a dry run ends after the last one.

    Parameters as :class:`RecoveryStep`.
    """

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # as SparkStep's
        """Return the step's evidence, as :class:`SparkStep` does.

        :raises AirflowFailException: another try would meet the same error again.
        :raises AirflowException: the job failed otherwise.
        """
        evidence = super().execute(context)
        if (
            context["ti"].xcom_pull(task_ids=PLAN)[DRY_RUN]
            and self.task_id == kind(self.kind_name).unasked[-1].name
        ):
            _end_dry_run(self, context, evidence)
        return evidence


def _end_dry_run(task: PlanRecovery | UnaskedStep, context: Context, handed_on: dict[str, Any]) -> None:
    """Skip what follows."""
    task.log.info("This was a dry run: nothing was changed, and the remaining tasks are skipped.")
    # To skip is to raise, so what the task returns would be lost.
    context["ti"].xcom_push(key="return_value", value=handed_on)
    task.skip(context["ti"], task.get_direct_relatives(upstream=False))


def _names(errors: tuple[type[Exception], ...]) -> set[str]:
    """Return the names of errors and of all their subclasses, as the ledger writes them."""
    below = {name for error in errors for name in _names(tuple(error.__subclasses__()))}
    return below | {error.__name__ for error in errors}


def _fail(step: str, context: Context, error: Exception, *, final: bool) -> NoReturn:
    """Send an alert if there is no further try, and raise.

    :raises AirflowFailException: another try would meet the same error again.
    """
    plan = context["ti"].xcom_pull(task_ids=PLAN)
    way_on = _way_on(plan)
    if (final or is_last_try(context)) and not plan[DRY_RUN]:
        tell_failed(plan, context, step, error, way_on)
    if final:
        raise AirflowFailException(f"{error}{way_on}") from error
    raise error


def _handed_on(
    task: BaseOperator, plan: dict[str, Any], context: Context, evidence: dict[str, Any]
) -> dict[str, Any]:
    """Log a step's evidence, alert after the last step, and return what later tasks need of it."""
    task.log.info("%s: %s", task.task_id, {key: value for key, value in evidence.items() if key != "plan"})
    if task.task_id == shared_steps.PLAN_AGAIN.name:
        worse = "\n".join(f"- {plain(item)}" for item in evidence["reasons"])
        again = plans.from_json(evidence["plan"])
        evidence = {
            **evidence,
            "markdown": f"{worse}\n\n{explain.as_markdown(again)}",
            "consent": explain.consent(again),
        }
    if task.task_id == kind(plan["kind"]).step_names[-1]:
        tell_finished(plan, context, evidence)
    return evidence


def _way_on(plan: dict[str, Any]) -> str:
    """Return how a recovery that failed after a change goes on; empty before, as GiveUp undoes all."""
    recovery = plan["recovery"]
    try:
        if not engine.is_past_return(Settings.from_environment(), plan["pipeline"], recovery):
            return ""
    except RequestError:
        return ""  # it is not in the ledger, so nothing was begun
    except StreamkeeperError as unknown:
        _log.warning("Whether %s changed anything could not be read: %s", recovery, unknown)
    return (
        "\nWhat the recovery did so far stays, and is found again. Fix the error above and clear this"
        f" task: the recovery continues from here. Or end it with `streamkeeper abandon {recovery}`: its"
        " holds and locks are removed, and the flows run with the generations that were decided."
    )


class Go(TriggerDagRunOperator):
    """Starts the recovery that was rehearsed, once a person said go; skipped where there is none."""

    def __init__(self, **kwargs: Any) -> None:
        go = "(ti.xcom_pull(task_ids='plan')['go'] or {})"
        kwargs = {
            "trigger_dag_id": f"{{{{ {go}.get('dag', '') }}}}",
            "conf": f"{{{{ {go}.get('conf', {{}}) | tojson }}}}",
            "trigger_run_id": "{{ ti.xcom_pull(task_ids='plan')['recovery'] }}",
            "skip_when_already_exists": True,
            **kwargs,
        }
        super().__init__(**kwargs)

    def execute(self, context: Context) -> None:
        """Start it.

        :raises AirflowSkipException: no recovery was rehearsed.
        """
        if not context["ti"].xcom_pull(task_ids=PLAN)[APPROVAL]:
            raise AirflowSkipException(
                "Approval was switched off, so the rehearsed recovery is not started. See the ledger."
            )
        if not self.trigger_dag_id:
            raise AirflowSkipException("The declaration was rehearsed successfully: deploy it.")
        super().execute(context)


class OnceFlows(BaseOperator):
    """Returns the DAGs of the flows that run once: nothing else would run them again after a recovery."""

    def execute(self, context: Context) -> list[str]:
        """Return the DAGs' ids; none for flows that their DAGs keep running."""
        dags: list[str] = context["ti"].xcom_pull(task_ids=PLAN)["once_dags"]
        return dags


def run_again(once_flows: OnceFlows) -> Any:
    """Return the task that triggers each of those DAGs.

    The runs are named after the recovery, so that a cleared task triggers no second ones. Without such a flow
    it is skipped.
    """
    named = TriggerDagRunOperator.partial(
        task_id="run_again",
        trigger_run_id="{{ ti.xcom_pull(task_ids='plan')['recovery'] }}",
        skip_when_already_exists=True,
    )
    return named.expand(trigger_dag_id=once_flows.output)


class GiveUp(BaseOperator):
    """Runs after the first step that changes something, however it ended; undoes a recovery without a change.

    If nothing was changed, it removes the recovery's holds and locks.

    :param after: that step.
    """

    def __init__(self, *, after: str, **kwargs: Any) -> None:
        kwargs = {"trigger_rule": TriggerRule.ALL_DONE, **kwargs}
        super().__init__(**kwargs)
        self.after = after

    def execute(self, context: Context) -> None:
        """Remove what the recovery holds, if it changed nothing.

        :raises AirflowSkipException: there is nothing to give up.
        """
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        if plan is None:
            raise AirflowSkipException("No step was started, so there is nothing to give up.")
        if plan[DRY_RUN]:
            engine.end_dry_run(Settings.from_environment(), plan["pipeline"], plan["recovery"])
            raise AirflowSkipException("It was a dry run, so there is nothing to give up.")
        if context["ti"].xcom_pull(task_ids=self.after) is not None:
            raise AirflowSkipException(f"The step {self.after} is done, so there is nothing to give up.")
        reason = course.Undone.BEFORE_CHANGE
        if not engine.give_up(Settings.from_environment(), plan["pipeline"], plan["recovery"], reason):
            raise AirflowSkipException(
                f"The step {self.after} has changed something already. Clear the failed task, and the"
                " recovery continues from there."
            )
        outcome = "was given up. Its holds and locks are removed, and nothing else was changed."
        self.log.info("The recovery %s %s", plan["recovery"], outcome)
        tell_undone(plan, context, f"{outcome} It was {reason}.")
